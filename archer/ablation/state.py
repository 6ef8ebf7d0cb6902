"""What is known on disk of each case of a grid. Every change replaces a file in one rename."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal

from archer.ablation.grid import Grid
from archer.ablation.planning import PlannedCase
from archer.errors import ArcherError
from archer.files import lock, write_atomically

PLAN, CASES = "plan.json", "cases"
Status = Literal["pending", "running", "done", "failed", "stopped"]


@dataclass(frozen=True)
class Attempt:
    """One run folder of a case: as it was asked for, or with factors offloaded after it died of memory."""

    offloaded: bool = False
    starts: int = 0
    """How often its process was started: more than one where the grid was stopped and went on."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Processor time of the whole case, its start included: what a busy machine changes least."""
    returncode: int | None = None
    out_of_memory: str | None = None
    """What told that it died of memory."""
    last_lines: tuple[str, ...] = ()
    jobs: int = 1
    """Cases that ran at a time."""
    load: float = 0.0
    """The machine's load average over the minute before it ended, this case included."""


@dataclass(frozen=True)
class CaseState:
    """How far a case is."""

    status: Status = "pending"
    attempts: tuple[Attempt, ...] = field(default=())

    @property
    def offloaded(self) -> bool:
        """Whether the run that counts is the one with factors in CPU memory."""
        return bool(self.attempts) and self.attempts[-1].offloaded

    def with_attempt(self, attempt: Attempt) -> "CaseState":
        """The state with its latest attempt replaced."""
        return replace(self, attempts=(*self.attempts[:-1], attempt))


@dataclass(frozen=True)
class CaseFolder:
    """Where the files of one case are."""

    path: Path

    def run(self, offloaded: bool) -> Path:
        """The run folder of an attempt."""
        return self.path / ("run_offloaded" if offloaded else "run")

    def log(self, offloaded: bool) -> Path:
        """What the process of an attempt printed."""
        return self.path / ("train_offloaded.log" if offloaded else "train.log")

    def read(self) -> CaseState:
        """Read the state; a case without one is pending."""
        file = self.path / "state.json"
        if not file.is_file():
            return CaseState()
        stored = json.loads(file.read_text(encoding="utf-8"))
        attempts = tuple(
            Attempt(**{**one, "last_lines": tuple(one["last_lines"])}) for one in stored["attempts"]
        )
        return CaseState(stored["status"], attempts)

    def write(self, state: CaseState) -> None:
        """Replace the state."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / "state.json", json.dumps(asdict(state), indent=2) + "\n")


@dataclass(frozen=True)
class Plan:
    """The grid that a folder holds, as `collect` needs it."""

    grid: str
    baseline: str | None
    cases: dict[str, tuple[str, ...]]
    """Name -> overrides, in the grid's order."""
    own: dict[str, tuple[str, ...]]


class AblationFolder:
    """The folder of one grid, driven by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    def case(self, name: str) -> CaseFolder:
        """The folder of one case."""
        return CaseFolder(self.path / CASES / name)

    def plan(self) -> Plan:
        """Read which grid this is."""
        file = self.path / PLAN
        if not file.is_file():
            raise ArcherError(
                f"{self.path} holds no ablation: {PLAN} is not there. Give the folder of `archer ablate run`."
            )
        stored = json.loads(file.read_text(encoding="utf-8"))
        return Plan(
            grid=stored["grid"],
            baseline=stored["baseline"],
            cases={case["name"]: tuple(case["overrides"]) for case in stored["cases"]},
            own={case["name"]: tuple(case["own"]) for case in stored["cases"]},
        )

    def open(self, grid: Grid, cases: Sequence[PlannedCase]) -> None:
        """Take the folder for a grid; a case that was begun with other overrides is an error."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = lock(
                self.path / ".lock",
                f"Another process is running the grid in {self.path}. Choose another --out.",
            )
        except OSError as error:
            raise ArcherError(
                f"{self.path} cannot be written: {error.strerror}. Choose another --out."
            ) from error
        if (self.path / PLAN).is_file():
            self._check(cases)
        elif any(not entry.name.startswith(".") for entry in self.path.iterdir()):
            raise ArcherError(f"{self.path} holds files that are no ablation. Choose another --out.")
        described: dict[str, Any] = {
            "grid": grid.name,
            "baseline": grid.baseline,
            "cases": [{"name": c.name, "own": c.own, "overrides": c.overrides} for c in cases],
        }
        write_atomically(self.path / PLAN, json.dumps(described, indent=2) + "\n")

    def close(self) -> None:
        """Let another process have the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _check(self, cases: Sequence[PlannedCase]) -> None:
        stored = self.plan().cases
        for case in cases:
            if case.name not in stored or self.case(case.name).read().status == "pending":
                continue
            theirs, ours = set(stored[case.name]), set(case.overrides)
            if stored[case.name] != case.overrides:
                raise ArcherError(
                    f"{self.path} holds case {case.name} with other overrides:\n"
                    f"  only there: {' '.join(sorted(theirs - ours)) or 'the same in another order'}\n"
                    f"  only now:   {' '.join(sorted(ours - theirs)) or 'the same in another order'}\n"
                    "Choose another --out, or give the same overrides to go on."
                )
