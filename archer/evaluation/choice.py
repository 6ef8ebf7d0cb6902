"""Which model is meant by `--model`: a checkpoint of a run, a run, a Hugging Face folder, a hub id."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import OmegaConf
from safetensors import SafetensorError, safe_open

from archer.data.builtin import PREFIX
from archer.errors import ArcherError
from archer.generation.adapter_files import CONFIG_FILE, WEIGHTS_FILE, as_settings, is_adapter
from archer.generation.config import ModelConfig
from archer.generation.model import ADAPTER_FOLDER
from archer.runs.checkpoint import CheckpointFolder

CHECKPOINTS = "checkpoints"
_VERL_MODEL = Path("actor") / "huggingface"  # where verl puts the Hugging Face part of a checkpoint


@dataclass(frozen=True)
class ModelChoice:
    """What is loaded, what it is called, and the Archer run it belongs to, if any."""

    path: str
    name: str
    run: Path | None = None
    step: int | None = None
    adapter: Path | None = None  # of a checkpoint that holds no whole model


def choose_model(given: str) -> ModelChoice:
    """Find the model that a user named; a run stands for its newest checkpoint."""
    folder = Path(given).expanduser()
    if given.startswith(PREFIX) or (not folder.exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", given)):
        return ModelChoice(given, given.removeprefix(PREFIX).replace("/", "--"))
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ArcherError(
            f"--model {given}: this {what}. Give a checkpoint (RUN/{CHECKPOINTS}/global_step_N), a run "
            f"folder, a folder written by save_pretrained, or a hub id. Relative paths start at {Path.cwd()}."
        )
    if (folder / CHECKPOINTS).is_dir() or (folder / "config.yaml").is_file():
        folder = folder / CHECKPOINTS
    if folder.name == CHECKPOINTS:
        newest = CheckpointFolder(folder).latest()
        if newest is None:
            raise ArcherError(f"--model {given}: this run has no checkpoint yet (trainer.save_freq).")
        folder = newest.path
    return checkpoint_choice(folder)


def checkpoint_choice(folder: Path) -> ModelChoice:
    """The choice of a folder that holds a model."""
    folder = folder.absolute()
    inside, adapter = _model_inside(folder), adapter_inside(folder)
    if adapter is not None:
        inside = folder
    if inside is None:
        raise ArcherError(
            f"--model {folder}: there is no config.json, so this is no model. Expected a folder written by "
            f"save_pretrained, e.g. an Archer checkpoint ({CHECKPOINTS}/global_step_N)."
        )
    match = re.match(r"^global_step_(\d+)$", folder.name)
    if match is None:
        return ModelChoice(str(inside), folder.name, adapter=adapter)
    run = folder.parent.parent
    return ModelChoice(
        str(inside), folder.name, run if (run / "config.yaml").is_file() else None, int(match[1]), adapter
    )


def adapter_inside(folder: Path) -> Path | None:
    """The LoRA adapter that a folder is or holds, where there is no whole model beside it."""
    if (folder / "config.json").is_file():
        return None
    return next((p for p in (folder / ADAPTER_FOLDER, folder) if is_adapter(p)), None)


def model_settings(choice: ModelChoice, base: str | None = None) -> ModelConfig:
    """The settings that load a chosen model; one that is its own base has no adapter."""
    if choice.adapter is None:
        return ModelConfig(path=choice.path)
    stored = None
    if choice.run is not None:
        stored = OmegaConf.select(OmegaConf.load(choice.run / "config.yaml"), "actor_rollout_ref.model.path")
    folders = (Path(choice.path), Path(choice.path) / _VERL_MODEL)
    tokenizer = next((str(f) for f in folders if (f / "tokenizer_config.json").is_file()), None)
    return replace(as_settings(choice.adapter, base or stored), tokenizer_path=tokenizer)


def is_complete(folder: Path) -> bool:
    """Whether every weight file of a model is there with all its bytes: copies may arrive slowly."""
    adapter = adapter_inside(folder)
    inside = _model_inside(folder) if adapter is None else adapter
    if inside is None:
        return False
    config = "config.json" if adapter is None else CONFIG_FILE
    index = inside / "model.safetensors.index.json"
    try:
        names = {"model.safetensors"} if adapter is None else {WEIGHTS_FILE}
        if index.is_file():
            names = set(json.loads(index.read_text())["weight_map"].values())
        for name in names:
            with safe_open(inside / name, framework="pt"):  # compares the header with the file's length
                pass
        json.loads((inside / config).read_text())
    except (OSError, ValueError, KeyError, SafetensorError):
        return False
    return True


def _model_inside(folder: Path) -> Path | None:
    return next((p for p in (folder, folder / _VERL_MODEL) if (p / "config.json").is_file()), None)
