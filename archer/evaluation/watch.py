"""Evaluating each new checkpoint of a run while it trains.

A checkpoint counts once it is complete: Archer renames it when it is whole, and copies that arrive slowly are
told by their weight files. The watch ends after `until_step`, or when the run has written its result and its
last checkpoint has been evaluated.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf
from rich.console import Console

from archer.errors import ArcherError
from archer.evaluation.choice import CHECKPOINTS, checkpoint_choice, is_complete
from archer.evaluation.plan import EvalOptions, make_plan
from archer.evaluation.run import Evaluated, evaluate
from archer.files import write_atomically
from archer.runs.checkpoint import Checkpoint, CheckpointFolder
from archer.tracking.jsonl import read_metrics

HISTORY = "history.jsonl"


@dataclass(frozen=True)
class Watch:
    """What is watched, and until when."""

    checkpoints: Path
    options: EvalOptions
    until_step: int | None = None
    out: Path | None = None
    overwrite: bool = False


def watched_folder(given: Path) -> Path:
    """The checkpoints folder that a user named, also by its run; it may not exist before the first save."""
    folder = given if given.name == CHECKPOINTS else given / CHECKPOINTS
    if given.is_dir() and CheckpointFolder(given).all():
        folder = given
    if not folder.is_dir() and not folder.parent.is_dir():
        raise ArcherError(
            f"--watch {given}: there is no such folder. Start the run first, then watch its folder or its "
            f"{CHECKPOINTS}. Relative paths start at {Path.cwd()}."
        )
    return folder.absolute()


def watch(
    plan: Watch, console: Console, wait: Callable[[], None] = lambda: time.sleep(5)
) -> Iterator[tuple[int, Evaluated]]:
    """Yield (step, evaluation) of one checkpoint after another, the oldest first; `wait` between looks."""
    done: set[int] = set()
    folder = CheckpointFolder(plan.checkpoints)
    while True:
        last_look = _ended(
            plan.checkpoints.parent
        )  # asked before looking, so that the last checkpoint is not missed
        until = plan.until_step
        found = folder.all()
        wanted = [c for c in found if c.step not in done and (until is None or c.step <= until)]
        checkpoint = next((c for c in wanted if is_complete(c.path)), None)
        if checkpoint is not None:
            done.add(checkpoint.step)
            result = _evaluate(plan, checkpoint, console)
            if result is not None:
                yield checkpoint.step, result
            continue
        reached = until is not None and (until in done or any(c.step > until for c in found))
        if not wanted and (last_look or reached):
            return
        wait()


def _evaluate(plan: Watch, checkpoint: Checkpoint, console: Console) -> Evaluated | None:
    try:
        choice = checkpoint_choice(checkpoint.path)
        evaluation = make_plan(choice, plan.options)
        out = None if plan.out is None else plan.out / choice.name
        result = evaluate(evaluation, console, out, plan.overwrite)
    except (ArcherError, FileNotFoundError):
        if checkpoint.path.exists():
            raise
        console.print(  # runs keep their newest checkpoints only (trainer.max_actor_ckpt_to_keep)
            f"step {checkpoint.step} was removed before it could be read", highlight=False
        )
        return None
    _write_history(result.folder.parent)
    return result


def _write_history(folder: Path) -> None:
    """Gather the figures of every checkpoint evaluated so far, in the order of steps."""
    found = [json.loads(file.read_text()) for file in folder.glob("global_step_*/summary.json")]
    found.sort(key=lambda one: one["step"])
    lines = [json.dumps({"step": one["step"], **one["overall"], **one["metrics"]}) for one in found]
    write_atomically(folder / HISTORY, "".join(f"{line}\n" for line in lines))


def _ended(run: Path) -> bool:
    """Whether the run is over: its result is there, and not of an earlier part of a run that still trains."""
    try:
        steps = json.loads((run / "result.json").read_text())["steps"]
        logged = read_metrics(run / "metrics.jsonl")
        wanted = OmegaConf.load(run / "config.yaml").trainer.total_training_steps
    except (OSError, ValueError, KeyError):
        return False
    latest = max((line["step"] for line in logged), default=0)
    return latest <= steps and (wanted is None or wanted <= steps)
