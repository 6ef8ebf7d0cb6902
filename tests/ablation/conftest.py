"""A stand-in for `archer train`, given to the driver through its documented `--command`, and small traces."""

import io
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from archer.ablation.driver import Driver, RunOptions
from archer.ablation.folder import AblationFolder, CaseState
from archer.ablation.grid import RunGrid, parse_grid, plan_cases
from archer.ablation.progress import GridProgress
from archer.trace.schema import TraceStep

# What it does is told by trainer.project_name, a setting that means nothing to the driver.
STAND_IN = r"""
import os, signal, sys, time
from pathlib import Path
options = dict(argument.split("=", 1) for argument in sys.argv[1:])
folder = Path(options["trainer.default_local_dir"].strip("'"))
what = options.get("trainer.project_name", "well")
offloaded = options.get("trainer.influence_trace.grad_offload_to_cpu") == "true"
folder.mkdir(parents=True, exist_ok=True)
with (folder / "starts").open("a") as file:
    file.write(f"{os.getpid()}\n")
print("training", what, flush=True)
if what == "fails":
    raise RuntimeError("the third wheel came off")
if what == "cuda" and not offloaded:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
if what == "always_cuda":
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
if what == "killed" and not offloaded:
    os.kill(os.getpid(), signal.SIGKILL)
if what == "once" and len((folder / "starts").read_text().splitlines()) == 1:
    raise RuntimeError("not the first time")
if what == "meets":  # ends only when the other case is under way, too
    while len(list(folder.parents[1].glob("*/run/starts"))) < 2:
        time.sleep(0.02)
if what == "waits" and not (folder / "checkpoints").exists():
    def stop(number, frame):
        (folder / "checkpoints").mkdir()
        sys.exit(128 + number)
    signal.signal(signal.SIGINT, stop)
    (folder / "ready").touch()
    while True:
        time.sleep(0.02)
if what == "hangs_once" and len((folder / "starts").read_text().splitlines()) == 1:
    (folder / "ready").touch()
    while True:
        time.sleep(0.02)
"""


class Grids:
    """Runs grids of the stand-in below a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "grid"
        self.script = folder / "stand_in.py"
        self.script.write_text(STAND_IN)
        self.options = RunOptions(command=(sys.executable, str(self.script)))
        self.printed = io.StringIO()

    def run(self, text: str, **changes: object) -> dict[str, CaseState]:
        grid = parse_grid("test", text)
        return self.drive(grid, replace(self.options, keep_checkpoints=grid.keep_checkpoints, **changes))

    def drive(self, grid: RunGrid, options: RunOptions, extra: Sequence[str] = ()) -> dict[str, CaseState]:
        planned = plan_cases(grid, extra, None)
        folder = AblationFolder(self.out)
        with folder.held(grid, planned):
            progress = GridProgress(Console(file=self.printed), folder, planned)
            return Driver(folder, planned, options, progress).run()

    def starts(self, case: str, run: str = "run") -> int:
        """How often the process of a case was started."""
        file = self.out / "cases" / case / run / "starts"
        return len(file.read_text().splitlines()) if file.is_file() else 0


@pytest.fixture
def grids(tmp_path: Path) -> Grids:
    return Grids(tmp_path)


def trace_step(
    influence: np.ndarray,  # [N, L], NaN outside the mask
    mask: np.ndarray,  # [N, L]
    group: Sequence[int],
    index: Sequence[int] | None = None,
    tokens: np.ndarray | None = None,
) -> TraceStep:
    rows = len(group)
    zeros = np.zeros(mask.shape)
    return TraceStep.from_batch(
        entropies=zeros,
        response_mask=mask,
        responses=np.arange(mask.size).reshape(mask.shape) if tokens is None else tokens,
        response_index=list(range(rows)) if index is None else index,
        log_probs=zeros,
        reward=[0.0] * rows,
        accepted=[False] * rows,
        group_id=group,
        uid=[str(g) for g in group],
        prompts=[[g, g + 1] for g in group],
        influence=influence,
        advantage=zeros,
    )


@pytest.fixture
def make_step():
    return trace_step
