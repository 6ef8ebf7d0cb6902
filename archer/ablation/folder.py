"""What is known on disk of each case of a grid. Every change replaces a file in one rename."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from archer.ablation.grid import PlannedCase, RunGrid, seeds_text
from archer.errors import ArcherError
from archer.files import lock, write_atomically

PLAN, STATE = "plan.json", "state.json"
TAIL_BYTES = 64 * 1024
Status = Literal["pending", "running", "done", "failed", "stopped"]


@dataclass(frozen=True)
class Attempt:
    """One run folder of a case: as it was asked for, or with factors offloaded after it ran out of memory."""

    offloaded: bool = False
    starts: int = 0
    """How often its process was started: more than once where the grid was stopped and resumed."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Processor time of the whole case, its start included: what a busy machine changes least."""
    returncode: int | None = None
    out_of_memory: str | None = None
    """What told that it ran out of memory."""
    last_lines: tuple[str, ...] = ()
    jobs: int = 1
    """Cases that ran at a time."""
    load: float = 0.0
    """The machine's load average over the minute before it ended, this case included."""

    @property
    def failure(self) -> str:
        """Why it failed, in one line."""
        return self.out_of_memory or (self.last_lines or (f"exit status {self.returncode}",))[-1]


@dataclass(frozen=True)
class CaseState:
    """How far a case is."""

    status: Status = "pending"
    attempts: tuple[Attempt, ...] = ()

    @property
    def offloaded(self) -> bool:
        """Whether the run that counts is the one with factors in CPU memory."""
        return bool(self.attempts) and self.attempts[-1].offloaded

    @property
    def label(self) -> str:
        """What a table says of it."""
        return f"{self.status}, offloaded" if self.offloaded else self.status


@dataclass(frozen=True)
class Plan:
    """The grid that a folder holds, as `collect` needs it."""

    grid: str
    baseline: str | None
    cases: dict[str, tuple[str, ...]]
    """Name -> overrides, in the grid's order."""
    own: dict[str, tuple[str, ...]]
    arguments: tuple[str, ...]
    """Of `archer ablate run`: the grid, its seeds and the overrides of the command line."""
    seeds: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Of a grid with seeds: name -> the variant and its seed."""
    controls: tuple[tuple[str, str], ...] = ()
    """Pairs of a variant and its control."""

    @property
    def shared(self) -> tuple[str, ...]:
        """Overrides that are no case's own: the grid's and the command line's; the last of a key counts."""
        first = next(iter(self.cases))
        others = [override for override in self.cases[first] if override not in self.own[first]]
        return tuple({override.split("=", 1)[0]: override for override in others}.values())


@dataclass(frozen=True)
class AblationFolder:
    """The folder of one grid, driven by one process at a time."""

    path: Path

    def case(self, name: str) -> Path:
        """Where the files of one case are."""
        return self.path / "cases" / name

    def run(self, name: str, offloaded: bool) -> Path:
        """The run folder of a case's attempt."""
        return self.case(name) / ("run_offloaded" if offloaded else "run")

    def log(self, name: str, offloaded: bool) -> Path:
        """What the process of a case's attempt printed."""
        return self.case(name) / ("train_offloaded.log" if offloaded else "train.log")

    def read(self, name: str) -> CaseState:
        """Read the state of a case; one without is pending."""
        file = self.case(name) / STATE
        if not file.is_file():
            return CaseState()
        stored = json.loads(file.read_text(encoding="utf-8"))
        attempts = [Attempt(**one | {"last_lines": tuple(one["last_lines"])}) for one in stored["attempts"]]
        return CaseState(stored["status"], tuple(attempts))

    def write(self, name: str, state: CaseState) -> None:
        """Replace the state of a case."""
        self.case(name).mkdir(parents=True, exist_ok=True)
        write_atomically(self.case(name) / STATE, json.dumps(asdict(state), indent=2) + "\n")

    def plan(self) -> Plan:
        """Read which grid this is."""
        file = self.path / PLAN
        if not file.is_file():
            raise ArcherError(
                f"{self.path} holds no ablation: {PLAN} is not there. Give the folder of `archer ablate run`."
            )
        stored = json.loads(file.read_text(encoding="utf-8"))
        cases, own = (
            {case["name"]: tuple(case[key]) for case in stored["cases"]} for key in ("overrides", "own")
        )
        arguments = stored.get("arguments", [stored["grid"]])  # absent from folders of earlier versions
        seeds = {
            case["name"]: (case["variant"], case["seed"])
            for case in stored["cases"]
            if case.get("seed") is not None
        }
        controls = tuple((one, other) for one, other in stored.get("controls", []))
        return Plan(stored["grid"], stored["baseline"], cases, own, tuple(arguments), seeds, controls)

    @contextmanager
    def held(self, grid: RunGrid, cases: Sequence[PlannedCase]) -> Iterator[None]:
        """Hold the folder for a grid; a case that was begun with other overrides is an error."""
        busy = f"Another process is running the grid in {self.path}. Choose another --out."
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            locked = lock(self.path / ".lock", busy)
        except OSError as error:
            problem = f"{self.path} cannot be written: {error.strerror}. Choose another --out."
            raise ArcherError(problem) from error
        with locked:
            if (self.path / PLAN).is_file():
                self._check(cases)
            elif any(not entry.name.startswith(".") for entry in self.path.iterdir()):
                raise ArcherError(f"{self.path} holds files that are no ablation. Choose another --out.")
            extra = cases[0].overrides[len(grid.shared) + len(cases[0].own) :]
            described = {
                "grid": grid.name,
                "arguments": [
                    grid.file or grid.name,
                    *(["--seeds", seeds_text(grid.seeds)] if grid.seeds else []),
                    *extra,
                ],
                "baseline": grid.baseline,
                "controls": grid.controls,
                "cases": [
                    {"name": c.name, "own": c.own, "overrides": c.overrides}
                    | {"variant": c.variant, "seed": c.seed}
                    for c in cases
                ],
            }
            write_atomically(self.path / PLAN, json.dumps(described, indent=2) + "\n")
            yield

    def _check(self, cases: Sequence[PlannedCase]) -> None:
        stored = self.plan().cases
        for case in cases:
            theirs, ours = stored.get(case.name, case.overrides), case.overrides
            if theirs != ours and self.read(case.name).status != "pending":
                missing, added = (sorted({*a} - {*b}) for a, b in ((theirs, ours), (ours, theirs)))
                raise ArcherError(
                    f"{self.path} holds case {case.name} with other overrides:\n"
                    f"  only there: {' '.join(missing) or 'the same in another order'}\n"
                    f"  only now:   {' '.join(added) or 'the same in another order'}\n"
                    "Choose another --out, or give the same overrides to resume."
                )


def tail(path: Path, start: int = 0) -> bytes:
    """The end of a file that may be growing; nothing before `start`."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(start, size - TAIL_BYTES))
        return file.read()
