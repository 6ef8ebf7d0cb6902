"""Reads a trace: the manifest at once, the arrays of one step when they are asked for.

A trace is data from strangers and perhaps from a run that was killed. Damage is reported with its step and
reason, and the rest stays readable. Nothing is ever unpickled, no link out of the folder is followed, and the
only path taken from a file is the name of a folder beside the trace, which it may refer to.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from archer.errors import ArcherError
from archer.trace.arrays import SPECS
from archer.trace.files import (
    MANIFEST,
    STEPS_FOLDER,
    VALIDATION,
    TraceSummary,
    kind_of_folder,
    read_summary,
    regular_file_inside,
    step_file_name,
    step_of_file_name,
)
from archer.trace.joined import join, referred_arrays
from archer.trace.manifest import BadLine, Manifest, ManifestLine, read_manifest
from archer.trace.npz import CHECKSUMS, DamagedFileError, load_arrays
from archer.trace.schema import TraceStep
from archer.trace.vocab import Vocab, read_vocab

MISSING = "its file is missing"
TRACE_FOLDERS = ("entropy_trace", "influence_trace")


@dataclass(frozen=True)
class StepProblem:
    """A step that cannot be read, and why."""

    step: int
    reason: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.reason}"


class DamagedStepError(ArcherError):
    """A step that was asked for cannot be read."""

    def __init__(self, problem: StepProblem) -> None:
        super().__init__(f"trace {problem}")
        self.problem = problem


@dataclass(frozen=True)
class StepEntry:
    """What is known of a step without opening its file."""

    step: int
    line: ManifestLine | None  # None in older traces, and after a kill between the step file and its line
    problem: StepProblem | None  # known damage; what looks sound may still turn out damaged when it is read


@dataclass(frozen=True)
class LoadedStep:
    """The arrays of a step, and remarks about what could not be taken over from an older format."""

    step: int
    arrays: TraceStep
    notes: tuple[str, ...]


class TraceReader:
    """A trace folder, open for reading; `refresh` picks up the steps of a run that is still training."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not is_trace(self.folder):
            raise ArcherError(
                f"{self.folder} is not a trace folder; expected {MANIFEST} or {STEPS_FOLDER}/ in it."
            )
        self.refresh()

    def refresh(self) -> None:
        """Look at the folder again: summary, manifest and names of the step files, never their content."""
        summary = read_summary(self.folder)
        self.summary: TraceSummary = summary or TraceSummary(kind_of_folder(self.folder), format_version="1")
        # The manifest first: a step that is written in between then has a file, never a line without a file.
        self._manifest: Manifest = read_manifest(self.folder)
        steps_folder = self.folder / STEPS_FOLDER
        names = {path.name for path in steps_folder.iterdir()} if steps_folder.is_dir() else set()
        on_disk = {step for name in names if (step := step_of_file_name(name)) is not None}
        lines = self._manifest.lines
        self._entries = {
            step: StepEntry(step, lines.get(step), None if step in on_disk else StepProblem(step, MISSING))
            for step in sorted(on_disk.union(lines))
        }

    @property
    def entries(self) -> list[StepEntry]:
        """All steps in order, the damaged ones included."""
        return list(self._entries.values())

    @property
    def objective(self) -> str | None:
        """The `output_function` of the run's influence, None where the trace does not say."""
        knobs = self.summary.metadata.get("influence_trace")
        found = knobs.get("output_function") if isinstance(knobs, dict) else None
        return found if isinstance(found, str) else None

    @property
    def bad_lines(self) -> tuple[BadLine, ...]:
        """Manifest lines that could not be read."""
        return self._manifest.bad

    @cached_property
    def vocab(self) -> Vocab | None:
        """The trace's token table, None where the trace has none."""
        return read_vocab(self.folder)

    def entry(self, step: int) -> StepEntry:
        """What is known of one step."""
        if step not in self._entries:
            raise ArcherError(
                f"trace {self.folder} has no step {step}; it holds {describe_steps(list(self._entries))}."
            )
        return self._entries[step]

    def read(self, step: int, beside: TraceStep | None = None) -> LoadedStep:
        """The arrays of one step; raises `DamagedStepError` when they cannot be read.

        A step that refers to the entropy trace beside this one comes with that one's arrays. Who has read
        them already passes them as `beside`.
        """
        with self._reporting(step):
            arrays, notes = load_arrays(self.step_file(step), tuple(SPECS))
            if CHECKSUMS in arrays:
                sums = arrays.pop(CHECKSUMS)
                other = self._referred(step, tuple(SPECS)) if beside is None else beside.arrays()
                arrays = join(arrays, sums, other)
            return LoadedStep(step, TraceStep(**arrays), notes)

    def read_arrays(self, step: int, names: Collection[str]) -> dict[str, np.ndarray]:
        """Some arrays of one step without the cost of the others; those the trace lacks are left out."""
        with self._reporting(step):
            arrays = load_arrays(self.step_file(step), {*names, "response_index", "response_mask"})[0]
            if CHECKSUMS in arrays:
                sums = arrays.pop(CHECKSUMS)
                others = [name for name in names if name not in arrays]
                if others:
                    arrays = join(arrays, sums, self._referred(step, others))
            return {name: arrays[name] for name in names if name in arrays}

    def _referred(self, step: int, names: Collection[str]) -> dict[str, np.ndarray]:
        return referred_arrays(self.folder, self.summary.refers_to, step, names)

    def __iter__(self) -> Iterator[LoadedStep | StepProblem]:
        """All steps in order, one in memory at a time; a damaged one as its problem."""
        for step in list(self._entries):
            try:
                yield self.read(step)
            except DamagedStepError as error:
                yield error.problem

    def step_file(self, step: int) -> Path:
        """The file of a step inside the trace folder; links that lead out are refused."""
        path = regular_file_inside(self.folder, f"{STEPS_FOLDER}/{step_file_name(step)}")
        if path is None:
            raise DamagedFileError(MISSING)
        return path

    @contextmanager
    def _reporting(self, step: int) -> Iterator[None]:
        self.entry(step)
        try:
            yield
        except ArcherError as error:
            raise DamagedStepError(StepProblem(step, str(error))) from error


def is_trace(folder: Path) -> bool:
    """Whether a folder is laid out as a trace."""
    return (folder / MANIFEST).is_file() or (folder / STEPS_FOLDER).is_dir()


def find_traces(path: str | Path) -> list[Path]:
    """The trace at `path`, or the `entropy_trace` and `influence_trace` of the run folder at `path`."""
    folder = Path(path)
    if not folder.is_dir():
        raise ArcherError(f"{folder} is not a folder; expected a trace or a run's output folder.")
    if is_trace(folder):
        return [folder]
    found = [folder / name for name in TRACE_FOLDERS if is_trace(folder / name)]
    if not found:
        raise ArcherError(
            f"no trace in {folder}; expected {MANIFEST} and {STEPS_FOLDER}/ there, "
            f"or in {' or '.join(TRACE_FOLDERS)} below it."
        )
    return found


def all_traces(path: str | Path) -> list[Path]:
    """As `find_traces`, with the trace of its validations where a run has one."""
    folder = Path(path)
    validation = folder / VALIDATION
    if folder.is_dir() and not is_trace(folder) and is_trace(validation):
        trained = [folder / name for name in TRACE_FOLDERS if is_trace(folder / name)]
        return [*trained, validation]
    return find_traces(folder)


def describe_steps(steps: Sequence[int]) -> str:
    """`no steps`, `step 3`, `12 steps from 10 to 120`."""
    if not steps:
        return "no steps"
    return f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps from {steps[0]} to {steps[-1]}"
