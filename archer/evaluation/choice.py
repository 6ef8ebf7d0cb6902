"""Which model is meant by `--model`: a checkpoint of a run, a run, a Hugging Face folder, a hub id."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from archer.data.builtin import PREFIX
from archer.errors import ArcherError
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
    inside = _model_inside(folder)
    if inside is None:
        raise ArcherError(
            f"--model {folder}: there is no config.json, so this is no model. Expected a folder written by "
            f"save_pretrained, e.g. an Archer checkpoint ({CHECKPOINTS}/global_step_N)."
        )
    match = re.match(r"^global_step_(\d+)$", folder.name)
    if match is None:
        return ModelChoice(str(inside), folder.name)
    run = folder.parent.parent
    return ModelChoice(
        str(inside), folder.name, run if (run / "config.yaml").is_file() else None, int(match[1])
    )


def is_complete(folder: Path) -> bool:
    """Whether every weight file of a model is there with all its bytes: copies may arrive slowly."""
    inside = _model_inside(folder)
    if inside is None:
        return False
    index = inside / "model.safetensors.index.json"
    try:
        names = {"model.safetensors"}
        if index.is_file():
            names = set(json.loads(index.read_text())["weight_map"].values())
        for name in names:
            with safe_open(inside / name, framework="pt"):  # compares the header with the file's length
                pass
        json.loads((inside / "config.json").read_text())
    except (OSError, ValueError, KeyError, SafetensorError):
        return False
    return True


def _model_inside(folder: Path) -> Path | None:
    return next((p for p in (folder, folder / _VERL_MODEL) if (p / "config.json").is_file()), None)
