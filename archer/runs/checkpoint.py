"""Checkpoints: a Hugging Face folder plus what training needs to resume exactly where it was.

    checkpoints/global_step_20/      model, tokenizer (loads with from_pretrained) and training_state.pt
    checkpoints/global_step_20/lora_adapter/      with LoRA: the adapter in PEFT's format instead of a model
    checkpoints/global_step_20/checkpoint.json    size and digest of every file: see integrity.py
    checkpoints/latest_checkpointed_iteration.txt

A checkpoint is written under a hidden name and renamed when it is complete, so whatever is called
global_step_N is whole, unless something damaged it later.
"""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel

from archer.errors import ArcherError
from archer.files import remove_tree, sync_folder, sync_tree, write_atomically
from archer.generation.model import ADAPTER_FOLDER
from archer.runs.integrity import (
    STATE_FILE,
    check_files,
    load_training_state,
    refuse_not_finite,
    write_manifest,
)

LATEST_FILE = "latest_checkpointed_iteration.txt"
_NAME = re.compile(r"^global_step_(\d+)$")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    step: int

    def training_state(self) -> dict[str, Any]:
        """Return optimizer, scheduler, data position and the rest, as saved."""
        return load_training_state(self.path, self.step)


class CheckpointFolder:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, keep: int | None = None) -> None:
        self.folder = folder
        self.keep = keep

    def all(self) -> list[Checkpoint]:
        """Return the complete checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        found = [
            Checkpoint(path, int(match[1]))
            for path in self.folder.iterdir()
            if path.is_dir() and (match := _NAME.match(path.name))
        ]
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def latest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint."""
        return next(reversed(self.all()), None)

    def check(self, checkpoint: Checkpoint, run_id: str | None = None) -> None:
        """Refuse a checkpoint whose files are not as they were saved, or are another run's."""
        check_files(checkpoint.path, checkpoint.step, run_id)

    def save(
        self,
        step: int,
        model: PreTrainedModel,
        tokenizer: Any,
        state: dict[str, Any],
        run_id: str | None = None,
        save_weights: Callable[[Path], None] | None = None,
    ) -> Checkpoint:
        """Write the checkpoint of `step`; older ones beyond `keep` go once it is complete.

        save_weights: writes adapters to the folder it is given, where only those are trained

        Weights that are not finite are refused: what was saved before stays the newest checkpoint.
        """
        refuse_not_finite(model, step, self.latest())
        self.folder.mkdir(parents=True, exist_ok=True)
        final = self.folder / f"global_step_{step}"
        temporary = self.folder / f".saving-{final.name}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            if save_weights is None:
                model.save_pretrained(temporary)
            else:
                save_weights(temporary / ADAPTER_FOLDER)
            tokenizer.save_pretrained(temporary)
            torch.save(state, temporary / STATE_FILE)
            write_manifest(temporary, step, run_id)
            sync_tree(temporary)
        except (OSError, RuntimeError, ValueError, SafetensorError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            newest = self.latest()
            kept = f"Checkpoint {newest.path} is untouched" if newest else "There is no earlier checkpoint"
            raise ArcherError(
                f"The checkpoint of step {step} could not be written to {self.folder}: {error}\n"
                f"{kept}. Make room or set trainer.default_local_dir, then run the same command again."
            ) from error
        remove_tree(final)
        temporary.rename(final)
        sync_folder(self.folder)
        write_atomically(self.folder / LATEST_FILE, str(step))
        self._prune()
        return Checkpoint(final, step)

    def set_aside(self, checkpoint: Checkpoint) -> None:
        """Rename a damaged checkpoint, so that nothing takes it for one; it is never deleted."""
        aside = self.folder / f"damaged_{checkpoint.path.name}"
        number = 1
        while aside.exists():
            number += 1
            aside = self.folder / f"damaged_{checkpoint.path.name}_{number}"
        checkpoint.path.rename(aside)

    def clean(self) -> None:
        """Remove what a killed run left half-written or half-removed."""
        if self.folder.is_dir():
            for path in [*self.folder.glob(".saving-*"), *self.folder.glob(".removing-*")]:
                shutil.rmtree(path)

    def _prune(self) -> None:
        if self.keep is not None:
            for checkpoint in self.all()[: -self.keep]:
                remove_tree(checkpoint.path)


def checkpoint_at(path: str) -> Checkpoint:
    """Return the checkpoint that `trainer.resume_from_path` names."""
    folder = Path(path)
    match = _NAME.match(folder.name)
    if not folder.is_dir() or match is None:
        raise ArcherError(
            f"trainer.resume_from_path={path}: expected an existing folder called global_step_N "
            "inside the checkpoints folder of a run."
        )
    return Checkpoint(folder, int(match[1]))
