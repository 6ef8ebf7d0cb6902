"""What a run knows of itself, whatever the engine: progress, outcome, trackers, a request to stop."""

import os
import signal
from dataclasses import dataclass
from types import FrameType

from rich.console import Console

from archer.config.compose import stored_tree
from archer.config.root import TrainConfig
from archer.runs.checkpoint import Checkpoint
from archer.runs.folder import RunFolder
from archer.tracking import JsonlTracker, RunInfo, Tracker, make_trackers
from archer.tracking.console import accuracy_text, sampled_how


@dataclass
class Progress:
    """Figures that a resumed run carries on."""

    accuracy_before: float | None = None
    accuracy_after: float | None = None
    measured_at: int | None = None  # step that accuracy_after belongs to
    seconds: float = 0.0
    sampled_before: str = ""  # how accuracy_before was sampled: a resumed run may sample otherwise
    sampled_after: str = ""

    def measured(self, step: int, accuracy: float, how: str) -> None:
        """Take down the accuracy of the weights after `step`."""
        if step == 0:
            self.accuracy_before, self.sampled_before = accuracy, how
        else:
            self.accuracy_after, self.sampled_after, self.measured_at = accuracy, how, step

    def result(self, steps: int) -> dict[str, float | int | None]:
        """Return what `result.json` holds."""
        return {
            "accuracy_before": self.accuracy_before,
            "accuracy_after": self.accuracy_after,
            "steps": steps,
            "seconds": round(self.seconds, 2),
        }


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    steps: int
    total_steps: int
    progress: Progress
    stopped_by: int | None  # signal number
    begun_at: int = 0  # steps that were done before this start

    @property
    def was_finished(self) -> bool:
        """Whether all steps were done before this start."""
        return self.begun_at >= self.total_steps


def say_accuracy(console: Console, config: TrainConfig, accuracy: float) -> None:
    """Print an accuracy that has just been measured, with how it was sampled."""
    shown = accuracy_text(accuracy, sampled_how(config.actor_rollout_ref.rollout.val_kwargs))
    console.print(f"accuracy on held-out prompts: {shown}", highlight=False, soft_wrap=True)


def run_trackers(config: TrainConfig, folder: RunFolder, start: Checkpoint | None) -> list[Tracker]:
    """Open `metrics.jsonl` and the trackers of `trainer.logger`, to resume after `start`."""
    info = RunInfo(
        project=config.trainer.project_name,
        experiment=config.trainer.experiment_name,
        run_id=folder.run_id,
        folder=folder.path,
        config=stored_tree(config),
        first_step=1 if start is None else start.step + 1,
    )
    last_step = -1 if start is None else start.step
    return [
        JsonlTracker(folder.metrics_file, last_step=last_step),
        *make_trackers(config.trainer.logger, info),
    ]


def due(every: int, step: int, last: bool) -> bool:
    """Whether something that happens every so many steps, and after the last, happens now."""
    return last or (every > 0 and step % every == 0)


class StopRequest:
    """Notes a request to stop while it is active; restores the previous handlers afterwards."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopRequest":
        for number in self.SIGNALS:
            self._previous[number] = signal.signal(number, self._note)
        return self

    def listen(self) -> None:
        """Take the signals again, after a library (Ray) has taken them for itself."""
        for number in self.SIGNALS:
            signal.signal(number, self._note)

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def __call__(self) -> bool:
        """Whether a signal has come."""
        return self.signal is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
        os.write(2, b"\nStopping after this step. Once more ends at once, without saving.\n")
