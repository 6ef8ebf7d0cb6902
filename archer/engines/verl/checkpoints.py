"""verl's checkpoints in the run folder, and which of them are complete.

    checkpoints/global_step_20/actor/                model and optimizer, one file a rank
    checkpoints/global_step_20/actor/huggingface/    the whole model (with LoRA its tokenizer alone)
    checkpoints/global_step_20/lora_adapter/         with LoRA: the adapter in PEFT's format
    checkpoints/global_step_20/archer.json           written last: the checkpoint is complete

verl writes a checkpoint in place. One without `archer.json` was cut short by a kill; it is removed when the
run resumes, and never resumed from.
"""

import json
from dataclasses import dataclass
from typing import Any

from archer.config.root import TrainConfig
from archer.errors import ArcherError
from archer.files import remove_tree, write_atomically
from archer.generation.config import ModelConfig
from archer.runs.checkpoint import LATEST_FILE, Checkpoint, CheckpointFolder, checkpoint_at
from archer.runs.folder import RunFolder
from archer.runs.integrity import MANIFEST, DamagedCheckpointError, check_files, write_manifest

STATE = "archer.json"
PARTS = 1024  # of each file, 256 MiB together, are compared when a run resumes


@dataclass(frozen=True)
class VerlState:
    """What a resumed run needs besides verl's own files."""

    progress: dict[str, Any]
    kl_coefficient: float | None  # of an adaptive KL in the reward, which verl does not save
    ranks: int  # a checkpoint is one file a rank, so as many have to read it


class VerlCheckpoints(CheckpointFolder):
    """The checkpoints of one run."""

    def all(self) -> list[Checkpoint]:
        """Return the complete checkpoints, oldest first."""
        return [checkpoint for checkpoint in super().all() if (checkpoint.path / STATE).is_file()]

    def clean(self) -> None:
        """Remove what a killed run left half-written."""
        super().clean()
        complete = {checkpoint.path for checkpoint in self.all()}
        for checkpoint in super().all():
            if checkpoint.path not in complete:
                remove_tree(checkpoint.path)

    def check(self, checkpoint: Checkpoint, run_id: str | None = None) -> None:
        """Refuse a checkpoint whose files are not as they were saved, those of this machine at least."""
        read_state(checkpoint)
        if (checkpoint.path / MANIFEST).exists():
            check_files(checkpoint.path, checkpoint.step, run_id)

    def complete(self, step: int, state: VerlState) -> Checkpoint:
        """Mark the checkpoint that verl has written for `step`; older ones beyond `keep` go."""
        folder = self.folder / f"global_step_{step}"
        write_manifest(folder, step, None, parts=PARTS)
        write_atomically(folder / STATE, json.dumps(state.__dict__, indent=2) + "\n")
        write_atomically(self.folder / LATEST_FILE, str(step))
        self._prune()
        return Checkpoint(folder, step)


class VerlRunFolder(RunFolder):
    """A run folder whose checkpoints are verl's."""

    checkpoints: VerlCheckpoints

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.checkpoints = VerlCheckpoints(self.path / "checkpoints", config.trainer.max_actor_ckpt_to_keep)

    def inspect(self) -> Checkpoint | None:
        """Return the checkpoint to resume from, or refuse a folder that cannot be this run's."""
        path = self._config.trainer.resume_from_path
        if path is not None:
            read_state(checkpoint_at(path))
        return super().inspect()


def read_state(checkpoint: Checkpoint) -> VerlState:
    """Return the state of a checkpoint to resume from."""
    file = checkpoint.path / STATE
    if not file.is_file():
        raise ArcherError(f"{checkpoint.path} has no {STATE}: it is no complete checkpoint of engine=verl.")
    try:
        return VerlState(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise DamagedCheckpointError(file, f"is damaged ({error})") from error


def check_adapter(checkpoint: Checkpoint, model: ModelConfig) -> None:
    """Refuse a checkpoint of other adapters than those of this run, or of none."""
    file = checkpoint.path / "actor" / "lora_train_meta.json"  # verl's own note
    try:
        saved = json.loads(file.read_text()) if file.is_file() else {"r": 0}
        rank, alpha = int(saved["r"]), int(saved.get("lora_alpha", model.lora_alpha))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedCheckpointError(file, f"is damaged ({error})") from error
    compared = [("lora_rank", rank, model.lora_rank)]
    if rank > 0 and model.lora_adapter_path is None:  # otherwise alpha is that adapter's
        compared.append(("lora_alpha", alpha, model.lora_alpha))
    for name, there, here in compared:
        if there != here:
            raise ArcherError(
                f"{checkpoint.path} was saved with actor_rollout_ref.model.{name}={there}, but it is {here} "
                f"now. Set actor_rollout_ref.model.{name}={there} to resume, or begin a new run."
            )


def check_ranks(checkpoint: Checkpoint, state: VerlState, ranks: int) -> None:
    """Refuse a checkpoint of another number of devices."""
    if state.ranks != ranks:
        raise ArcherError(
            f"{checkpoint.path} was written by {state.ranks} devices and this run has {ranks}: verl reads "
            "one file a rank. Set trainer.nnodes and trainer.n_gpus_per_node as they were, or begin a new "
            f"run from the model in {checkpoint.path / 'actor' / 'huggingface'}."
        )
