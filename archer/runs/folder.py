"""The folder of a run: whose it is, and what lies where.

config.yaml      the resolved configuration
metrics.jsonl    one line per step
checkpoints/     see checkpoint.py
result.json      figures of the finished run
"""

import json
import re
import uuid
from pathlib import Path
from typing import IO, Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from archer.config.compose import to_yaml
from archer.config.parse import defaults, flat
from archer.config.root import TrainConfig
from archer.errors import ArcherError
from archer.files import PRIVATE, lock, plain_file, write_atomically
from archer.runs.checkpoint import Checkpoint, CheckpointFolder, checkpoint_at
from archer.runs.integrity import saved_run_id

MAY_CHANGE = (
    "trainer.",
    "engine.",
    "reward.num_workers",
    "reward.timeout_s",
    "data.val_",
    "actor_rollout_ref.rollout.val_kwargs",
    "actor_rollout_ref.rollout.max_num_seqs",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
)
MAY_NOT_CHANGE = (
    "trainer.skip_optimizer_step",
    "trainer.influence_trace.skip_optimizer_step",
    "engine.name",
)
_RUN_ID = re.compile(r"[\w-]{1,64}")


class RunFolder:
    """A claimed run folder: one training process at a time, one configuration."""

    def __init__(self, config: TrainConfig) -> None:
        self.path = config.run_dir
        self.checkpoints = CheckpointFolder(self.path / "checkpoints", config.trainer.max_actor_ckpt_to_keep)
        self._config = config
        self._lock: IO[str] | None = None
        self._damaged: list[Checkpoint] = []
        self.warnings: list[str] = []  # what a resume had to leave out

    @property
    def metrics_file(self) -> Path:
        """One JSON object per step."""
        return self.path / "metrics.jsonl"

    @property
    def run_id(self) -> str:
        """Name of this run for trackers and checkpoints, made once per folder."""
        known = self._known_id()
        assert known is not None, "claim() comes first"
        return known

    def _known_id(self) -> str | None:
        file = plain_file(self.path / ".run_id")
        text = file.read_text(errors="replace").strip() if file.is_file() else ""
        return text if _RUN_ID.fullmatch(text) else None

    def _saved_id(self, start: Checkpoint | None) -> str | None:
        """The id that a checkpoint of this folder was saved with, where the folder's own file is lost."""
        own = start is not None and start.path.resolve().parent == self.checkpoints.folder.resolve()
        saved = saved_run_id(start.path) if start is not None and own else None
        return saved if saved and _RUN_ID.fullmatch(saved) else None

    def inspect(self) -> Checkpoint | None:
        """Return the checkpoint to resume from, or refuse a folder that is not this run's; change nothing."""
        config_file = self.path / "config.yaml"
        if self.path.exists() and not self.path.is_dir():
            raise ArcherError(f"{self.path} is a file; the run needs a folder. {_elsewhere()}")
        if self._holds_files() and not config_file.is_file():
            raise ArcherError(
                f"{self.path} holds files but no config.yaml, so it is not the folder of an Archer run. "
                f"{_elsewhere()}"
            )
        if config_file.is_file():
            self._check_owner(config_file)
        return self._starting_point()

    def claim(self) -> Checkpoint | None:
        """Take the folder for this run and return the checkpoint to resume from.

        Nothing that is there is changed, and the configuration is only written by `settle`: a command that
        fails before training leaves no mark on a new folder.
        """
        start = self.inspect()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = lock(
                self.path / ".lock", f"Another process is training in {self.path}. {_elsewhere()}"
            )
            self.checkpoints.clean()
            if self._known_id() is None:
                write_atomically(self.path / ".run_id", self._saved_id(start) or uuid.uuid4().hex[:8])
        except OSError as error:
            raise ArcherError(f"{self.path} cannot be written: {error.strerror}. {_elsewhere()}") from error
        return start

    def settle(self) -> None:
        """Make the folder this run's: everything that could be checked has been."""
        for checkpoint in self._damaged:
            self.checkpoints.set_aside(checkpoint)
        write_atomically(self.path / "config.yaml", to_yaml(self._config), mode=PRIVATE)

    def write_result(self, result: dict[str, Any]) -> None:
        """Write the figures of the finished run."""
        write_atomically(self.path / "result.json", json.dumps(result, indent=2) + "\n")

    def release(self) -> None:
        """Let another process have the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _starting_point(self) -> Checkpoint | None:
        trainer = self._config.trainer
        newest = self.checkpoints.latest()
        if trainer.resume_mode == "disable" and (newest is not None or self.metrics_file.is_file()):
            raise ArcherError(
                f"trainer.resume_mode=disable, but {self.path} holds a run already, which would be lost. "
                f"{_elsewhere()}"
            )
        if trainer.resume_mode == "resume_path":
            assert trainer.resume_from_path is not None
            chosen = checkpoint_at(trainer.resume_from_path)
            if newest is None or newest.step <= chosen.step:
                self.checkpoints.check(chosen)
                return chosen
            if self.path.resolve() in chosen.path.resolve().parents:
                raise ArcherError(
                    f"{self.path} holds later checkpoints than step {chosen.step}, which would be lost. "
                    f"{_elsewhere()}"
                )
        return self._newest_whole()  # also where a run begun from another's checkpoint has got further since

    def _newest_whole(self) -> Checkpoint | None:
        """Return the newest checkpoint that is as it was saved; damaged ones after it are warned of."""
        self._damaged, self.warnings = [], []
        first: ArcherError | None = None
        for checkpoint in reversed(self.checkpoints.all()):
            try:
                self.checkpoints.check(checkpoint, self._known_id())
            except ArcherError as error:
                first = first or error
                self._damaged.append(checkpoint)
                problem = str(error).partition(". This checkpoint")[0]
                self.warnings.append(
                    f"{problem}. Step {checkpoint.step} is left out, as damaged_{checkpoint.path.name}; the "
                    "run resumes from the checkpoint before it."
                )
            else:
                return checkpoint
        if first is not None:  # to start over would drop the metrics and traces of all steps done
            raise first
        return None

    def _check_owner(self, config_file: Path) -> None:
        try:
            tree = _tree(OmegaConf.load(config_file))
            if not isinstance(tree, dict) or not tree.keys() & defaults(TrainConfig).keys():
                raise ValueError("it holds no settings")
            stored = flat(tree)
        except (OSError, ValueError, AttributeError, yaml.YAMLError, OmegaConfBaseException) as error:
            raise ArcherError(
                f"{config_file} cannot be read as a configuration: {error}. Put back what was there, or "
                f"choose another trainer.experiment_name=NAME."
            ) from error
        known = flat(defaults(TrainConfig))  # settings that did not exist then had no effect
        filled = {key.rsplit(".", depth)[0] for key in stored for depth in range(1, key.count(".") + 1)}
        theirs = {key: value for key, value in known.items() if key not in filled} | stored
        ours = flat(_tree(OmegaConf.create(to_yaml(self._config))))
        different = [
            f"  {key}: {theirs.get(key)!r} there, {ours.get(key)!r} now"
            for key in sorted(theirs.keys() | ours.keys())
            if theirs.get(key) != ours.get(key) and not _may_change(key)
        ]
        if different:
            raise ArcherError(
                f"{self.path} belongs to a run with another configuration:\n"
                + "\n".join(different)
                + f"\n{_elsewhere()} Or give the same settings to resume that run."
            )

    def _holds_files(self) -> bool:
        return self.path.is_dir() and any(not path.name.startswith(".") for path in self.path.iterdir())


def _may_change(key: str) -> bool:
    return key.startswith(MAY_CHANGE) and key not in MAY_NOT_CHANGE


def _elsewhere() -> str:
    return "Choose another trainer.experiment_name=NAME (or trainer.default_local_dir=FOLDER)."


def _tree(config: Any) -> Any:
    return OmegaConf.to_container(config)
