"""Adapters on disk, in PEFT's format, and models that are loaded with them.

    lora_adapter/adapter_config.json          rank, alpha, modules, and where the base model is
    lora_adapter/adapter_model.safetensors    A and B of every layer; its metadata hold a digest of the base

The base model is not saved: it does not change. The digest tells whether the one at hand is the same.
"""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from archer.errors import ArcherError
from archer.generation.config import ModelConfig
from archer.generation.device import Compute
from archer.generation.lora import KEY, Adapters, attach, lora_config, narrow_frozen, read_lora_config
from archer.generation.model import ADAPTER_FOLDER, load_weights, model_folder, set_up_policy

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
DIGEST = "archer_base_digest"


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter."""
    return (folder / CONFIG_FILE).is_file()


def load_adapted(
    config: ModelConfig, compute: Compute, weights: str | None = None, trains: bool = True
) -> tuple[PreTrainedModel, Adapters | None]:
    """Return the policy with its adapters; merged into a plain model where it is not trained.

    weights: a checkpoint whose adapter is taken; otherwise lora_adapter_path's, or a new one
    """
    folder = adapter_source(config, weights)
    chosen = chosen_config(config, folder, of_run=weights is not None)
    model = load_weights(config)
    adapters = attach(model, chosen)
    if folder is not None:
        load_adapters(adapters, folder, config.path)
    if compute.mixed:
        narrow_frozen(model, compute)
    if not trains:
        return set_up_policy(adapters.merge(), config, compute), None
    return set_up_policy(model, config, compute), adapters


def adapter_source(config: ModelConfig, weights: str | None) -> Path | None:
    """Return the folder of the adapter to begin with; None: a new one.

    A checkpoint with an adapter for a run without, or the other way round, is refused.
    """
    if weights is not None:
        saved = Path(weights) / ADAPTER_FOLDER
        if is_adapter(saved) and config.lora_rank == 0:
            rank = read_lora_config(saved).r
            raise ArcherError(
                f"{weights} is a checkpoint of a run with LoRA (rank {rank}), but {KEY}.lora_rank is 0. Set "
                f"{KEY}.lora_rank={rank} to resume it, or merge it with `archer export-model` and train "
                "the result."
            )
        if not is_adapter(saved) and config.lora_rank > 0:
            raise ArcherError(
                f"{weights} holds no {ADAPTER_FOLDER}: all weights were trained there, but {KEY}.lora_rank "
                f"is {config.lora_rank}. Set {KEY}.lora_rank=0 to resume it, or {KEY}.path={weights} to "
                "begin a new run from its weights."
            )
        return saved if config.lora_rank > 0 else None
    if config.lora_adapter_path is None:
        return None
    folder = Path(config.lora_adapter_path).expanduser()
    folder = folder / ADAPTER_FOLDER if is_adapter(folder / ADAPTER_FOLDER) else folder
    if not is_adapter(folder):
        what = f"there is no {CONFIG_FILE} in it" if folder.is_dir() else "there is no such folder"
        raise ArcherError(
            f"{KEY}.lora_adapter_path={config.lora_adapter_path}: {what}. Expected an adapter as PEFT's "
            f"save_pretrained writes it, or an Archer checkpoint that holds one ({ADAPTER_FOLDER})."
        )
    return folder


def chosen_config(config: ModelConfig, folder: Path | None, of_run: bool = False) -> Any:
    """Return PEFT's configuration of the adapters: the saved one's, or what the settings ask for.

    of_run: the folder is a checkpoint's, which must be of a run with the same settings.
    """
    if folder is None:
        return lora_config(config)
    saved = read_lora_config(folder)
    compared = [("lora_rank", saved.r, config.lora_rank)]
    if of_run and config.lora_adapter_path is None:
        compared.append(("lora_alpha", saved.lora_alpha, config.lora_alpha))
    for name, there, here in compared:
        if there != here:
            raise ArcherError(
                f"{folder} holds an adapter of {name} {there}, but {KEY}.{name} is {here}. Set "
                f"{KEY}.{name}={there}, or begin a new run."
            )
    return lora_config(config) if of_run and config.lora_adapter_path is None else saved


def save_adapters(adapters: Adapters, base: str, folder: Path) -> None:
    """Write an adapter that PEFT loads; `base` is the model it belongs to, as `model.path` names it."""
    write_adapter(folder, base, adapters.config, adapters.named_parameters(), adapters.base_digest)


def write_adapter(
    folder: Path, base: str, config: Any, tensors: Mapping[str, Tensor], digest: str | None = None
) -> None:
    """Write A and B of every layer, under the names that PEFT's files have, and their configuration."""
    config = copy.copy(config)
    if not isinstance(config.target_modules, str):
        config.target_modules = sorted(config.target_modules)
    config.inference_mode = True  # what PEFT expects of a file
    source = model_folder(base)
    config.base_model_name_or_path = str(Path(source).resolve()) if Path(source).is_dir() else source
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(str(folder))
    metadata = {"format": "pt", **({} if digest is None else {DIGEST: digest})}
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(on_cpu, folder / WEIGHTS_FILE, metadata)


@torch.no_grad()
def load_adapters(adapters: Adapters, folder: Path, base: str) -> None:
    """Take over A and B of every layer; anything missing, surplus, misshapen or not finite is refused."""
    file = folder / WEIGHTS_FILE
    tensors, digest = _read(file)
    wanted = adapters.named_parameters()
    problems = {
        "lacks {} tensors of the adapter": wanted.keys() - tensors.keys(),
        "has {} tensors that the adapter does not have": tensors.keys() - wanted.keys(),
        "has {} tensors of another shape": {
            name for name in wanted.keys() & tensors.keys() if wanted[name].shape != tensors[name].shape
        },
        "has NaN or infinite values in {} tensors": {
            name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())
        },
    }
    for problem, names in problems.items():
        if names:
            raise ArcherError(
                f"{file} {problem.format(len(names))}, e.g. {min(names)}. It does not belong to {base} with "
                f"these {KEY}.target_modules, or it is damaged: copy it again."
            )
    if digest not in (None, adapters.base_digest):
        raise ArcherError(
            f"{file} was trained beside other weights than those of {base}. Set {KEY}.path to the model that "
            f"its {CONFIG_FILE} names ({base_of(folder)})."
        )
    for name, parameter in wanted.items():
        parameter.copy_(tensors[name])


def base_of(folder: Path) -> str:
    """The model that an adapter was trained on."""
    try:
        named = json.loads((folder / CONFIG_FILE).read_text())["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArcherError(f"{folder / CONFIG_FILE} is damaged: it names no base model ({error}).") from error
    return str(named)


def as_settings(folder: Path, base: str | None = None) -> ModelConfig:
    """The settings that load a saved adapter; `base` comes before the model that it names, if it is there."""
    path = base if base is not None and _is_there(base) else base_of(folder)
    return ModelConfig(path=path, lora_rank=read_lora_config(folder).r, lora_adapter_path=str(folder))


def _is_there(path: str) -> bool:
    try:
        model_folder(path)
    except ArcherError:
        return False
    return True


def _read(file: Path) -> tuple[dict[str, Tensor], str | None]:
    try:
        with safe_open(file, framework="pt") as opened:
            digest = (opened.metadata() or {}).get(DIGEST)
            return {name: opened.get_tensor(name) for name in opened.keys()}, digest  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise ArcherError(
            f"{file} cannot be read ({str(error).splitlines()[0]}): copy the adapter again."
        ) from error
