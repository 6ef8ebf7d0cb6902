"""What a tracker takes, and TensorBoard, W&B and trackio, each imported only when it is asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from archer.errors import ArcherError, install_hint
from archer.tracking.samples import Cell, ShownResponse


@dataclass(frozen=True)
class RunInfo:
    """The run that is tracked."""

    project: str
    experiment: str
    run_id: str  # the same for every start of one run folder
    folder: Path
    config: dict[str, Any]
    first_step: int = 1  # that will be logged; later ones of a killed run are void


class Tracker(Protocol):
    """Takes the metrics of each step, and responses of it or of its validation."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record the metrics of one step."""

    def log_samples(self, step: int, samples: Sequence[ShownResponse]) -> None:
        """Record responses, all of one kind, before the metrics of their step."""

    def close(self) -> None:
        """Write out whatever is still buffered."""


class TensorboardTracker:
    """Writes event files to `tensorboard/` in the run folder."""

    def __init__(self, run: RunInfo) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.first_step)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record one scalar per metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def log_samples(self, step: int, samples: Sequence[ShownResponse]) -> None:
        """Record one text per sample."""
        for number, sample in enumerate(samples):
            self._writer.add_text(f"{sample.table}/{number}", sample.markdown(), step)

    def close(self) -> None:
        """Flush the event file."""
        self._writer.close()


class WandbTracker:
    """Logs to Weights & Biases; `WANDB_MODE=offline` keeps everything in the run folder."""

    def __init__(self, run: RunInfo) -> None:
        import wandb

        try:
            self._run: Any = wandb.init(
                project=run.project,
                name=run.experiment,
                id=run.run_id,
                resume="allow",
                dir=str(run.folder),
                config=run.config,
            )
        except wandb.Error as error:
            raise ArcherError(
                f"W&B could not start: {error}\nRun `wandb login`, or set WANDB_MODE=offline."
            ) from error

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record the metrics of one step."""
        self._run.log(metrics, step=step)

    def log_samples(self, step: int, samples: Sequence[ShownResponse]) -> None:
        """Record a table."""
        import wandb

        for name, columns, rows in _tables(samples):
            self._run.log({name: wandb.Table(columns=columns, data=rows)}, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class TrackioTracker:
    """Logs to trackio's local store."""

    def __init__(self, run: RunInfo) -> None:
        import trackio

        self._trackio: Any = trackio
        trackio.init(
            project=run.project, name=f"{run.experiment}-{run.run_id}", config=run.config, resume="allow"
        )

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record the metrics of one step."""
        self._trackio.log(metrics, step=step)

    def log_samples(self, step: int, samples: Sequence[ShownResponse]) -> None:
        """Record a table."""
        for name, columns, rows in _tables(samples):
            self._trackio.log({name: self._trackio.Table(columns=columns, data=rows)}, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._trackio.finish()


def _tables(samples: Sequence[ShownResponse]) -> list[tuple[str, list[str], list[list[Cell]]]]:
    """Name, columns and rows of the table that the samples make; none without samples."""
    if not samples:
        return []
    first = samples[0]
    return [(first.table, list(first.columns), [sample.row() for sample in samples])]


TRACKERS: dict[str, Callable[[RunInfo], Tracker]] = {
    "tensorboard": TensorboardTracker,
    "wandb": WandbTracker,
    "trackio": TrackioTracker,
}


def make_trackers(names: Sequence[str], run: RunInfo) -> list[Tracker]:
    """Return the trackers that `trainer.logger` names (`console` is not one of them)."""
    trackers = []
    for name in names:
        if name == "console":
            continue
        try:
            trackers.append(TRACKERS[name](run))
        except ModuleNotFoundError as error:
            raise ArcherError(
                f"trainer.logger names {name}, but it is not installed: pip install {name}, or "
                f"{install_hint(name)}"
            ) from error
    return trackers
