"""The runs a viewer shows: each one an entropy trace, an influence trace, or both, and its metrics."""

import hashlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archer.errors import ArcherError
from archer.files import real_path
from archer.trace.files import MANIFEST, STEPS_FOLDER, SUMMARY
from archer.trace.manifest import ManifestLine, StepStatistics
from archer.trace.reader import TRACE_FOLDERS, StepEntry, TraceReader, find_traces
from archer.trace.vocab import Vocab
from archer.viewer.discover import MAX_DEPTH, VALIDATION, find_runs, unique_names
from archer.viewer.metricsfile import METRICS, MetricsFile
from archer.viewer.notes import Notebook


@dataclass(frozen=True)
class TimelineStep(ManifestLine):
    """A step as the manifests of all traces know it; no step file is opened for it."""

    problems: tuple[str, ...] = ()


class TracedRun:
    """One run open for reading. Methods may be called from several threads."""

    def __init__(self, folder: Path, model_path: str | None = None, *, read_only: bool = False) -> None:
        self.folder = _home(folder)
        self.readers = [TraceReader(path) for path in _traces(folder)]
        # The entropy trace holds the whole rollout batch, so it is the one that rows are counted in.
        self.readers.sort(key=lambda reader: reader.summary.kind)
        self.own_name = _name(folder, self.readers[0].summary.metadata if self.readers else {})
        self.name = self.own_name
        """As the viewer's links have it; a library makes the names of its runs differ."""
        self.metrics = MetricsFile(self.folder)
        self.notes = Notebook(self.folder, read_only)
        self._model_path = model_path
        self._lock = threading.Lock()
        self._vocab: tuple[Vocab | None, str | None] | None = None  # None until it is looked for
        self._signature = self.signature()

    def signature(self) -> str:
        """Changes whenever a step was added, replaced or dropped."""
        names = (MANIFEST, SUMMARY, STEPS_FOLDER)
        return _digest([_state(reader.folder / name) for reader in self.readers for name in names])

    def refresh(self) -> str:
        """Look at the folders again if they changed; returns the signature of what is now known."""
        with self._lock:
            seen = self.signature()
            if seen != self._signature:
                for reader in self.readers:
                    reader.refresh()
                self._signature = seen
            return seen

    def timeline(self) -> list[TimelineStep]:
        """All steps in order, from the manifests alone."""
        with self._lock:
            entries = [{entry.step: entry for entry in reader.entries} for reader in self.readers]
        steps = sorted(set().union(*entries))
        return [_timeline_step(step, [found[step] for found in entries if step in found]) for step in steps]

    def timeline_step(self, step: int) -> TimelineStep:
        """One step of the timeline."""
        return _timeline_step(step, [entry for _, entry in self.entries(step)])

    def entries(self, step: int) -> list[tuple[TraceReader, StepEntry]]:
        """The traces that know a step; raises `ArcherError` when none does."""
        with self._lock:
            known = [
                (reader, reader.entry(step))
                for reader in self.readers
                if any(entry.step == step for entry in reader.entries)
            ]
            if not known and not self.readers:
                raise ArcherError(f"run {self.name} has metrics but no trace, so no step {step} to show.")
            if not known:
                self.readers[0].entry(step)  # raises with the steps there are
        return known

    def version(self, step: int) -> str:
        """Identity of a step's files: another one when a step was written again."""
        marks: list[object] = []
        for reader, _ in self.entries(step):
            try:
                marks.append(_state(reader.step_file(step)))
            except ArcherError as error:
                marks.append(str(error))
        return _digest(marks)

    def vocab(self) -> tuple[Vocab | None, str | None]:
        """The token table, and a remark for the user when there is none or it is damaged."""
        with self._lock:
            if self._vocab is None:
                self._vocab = self._find_vocab()
            return self._vocab

    def _find_vocab(self) -> tuple[Vocab | None, str | None]:
        note = None
        for reader in self.readers:
            try:
                if reader.vocab is not None:
                    return reader.vocab, None
            except ArcherError as error:  # damaged, or a link that leads out of the folder
                note = str(error)
        if self._model_path is not None:
            return vocab_of_model(self._model_path), None
        hint = "tokens are shown as ids; start the viewer with --model-path to decode them."
        return None, f"{note}; {hint}" if note else f"This trace has no vocab.npz, so {hint}"


RESCAN = 1.0  # seconds between two looks for new runs


class Library:
    """The runs given to one viewer. A run keeps its number; new ones below the folders come at the end."""

    def __init__(self, runs: list[TracedRun]) -> None:
        self.runs = runs
        self.left_out: dict[Path, str] = {}  # runs below the folders that cannot be read, and why
        self._folders: list[Path] = []
        self._model_path: str | None = None
        self._read_only = False
        self._known: set[Path] = set()
        self._looked = 0.0
        self._lock = threading.Lock()

    @classmethod
    def open(
        cls, folders: list[Path], model_path: str | None = None, *, read_only: bool = False
    ) -> "Library":
        """Open traces, runs, or folders of runs; raises `ArcherError` for the first without any of them."""
        if not folders:
            raise ArcherError("no trace folder given; pass --trace-dir FOLDER, or --demo to look around.")
        library = cls([])
        library._folders, library._model_path, library._read_only = folders, model_path, read_only
        for folder in folders:
            if not library._add(folder, strict=True):
                find_traces(folder)  # what is no folder says so itself
                raise ArcherError(
                    f"no run in {folder}, nor up to {MAX_DEPTH} folders below it; expected {METRICS} or a "
                    f"trace ({', '.join(TRACE_FOLDERS)})."
                )
        library._name_all()
        return library

    def rescan(self) -> None:
        """Pick up runs that began since the last look."""
        with self._lock:
            if time.monotonic() - self._looked < RESCAN:
                return
            if sum(self._add(folder, strict=False) for folder in self._folders):
                self._name_all()
            self._looked = time.monotonic()

    def run(self, number: int) -> TracedRun:
        """A run by its place in the list."""
        if not 0 <= number < len(self.runs):
            raise ArcherError(f"there is no run {number}; this viewer holds runs 0 to {len(self.runs) - 1}.")
        return self.runs[number]

    def _add(self, folder: Path, *, strict: bool) -> int:
        """Open what is new at or below a folder; returns how many runs that were."""
        added = 0
        for place in find_runs(folder):
            if (key := real_path(place)) in self._known and not strict:
                continue
            try:
                run = TracedRun(place, self._model_path, read_only=self._read_only)
            except ArcherError as error:
                if place == folder:
                    raise  # named by the user; one of many is only left out, until it can be read
                self.left_out[place] = str(error)
                continue
            self.left_out.pop(place, None)
            self._known.add(key)
            self.runs.append(run)
            added += 1
        return added

    def _name_all(self) -> None:
        names = unique_names([run.own_name for run in self.runs], [run.folder for run in self.runs])
        for run, name in zip(self.runs, names, strict=True):
            run.name = name


def vocab_of_model(model_path: str) -> Vocab:
    """The byte table of a model's tokenizer, for traces that carry none."""
    from transformers import AutoTokenizer

    from archer.trace.vocab import vocab_from_tokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model_path)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ArcherError(
            f"--model-path {model_path} holds no tokenizer that can be loaded: {reason}"
        ) from error
    return vocab_from_tokenizer(tokenizer)


def _timeline_step(step: int, entries: list[StepEntry]) -> TimelineStep:
    lines = [entry.line for entry in entries if entry.line is not None]
    merged: dict[str, Any] = {}
    for line in lines:  # the entropy trace comes first: its figures are those of the whole batch
        for name, value in line.statistics.to_json().items():
            if merged.get(name) is None:
                merged[name] = value
    return TimelineStep(
        step=step,
        statistics=StepStatistics(**merged),
        size=sum(line.size or 0 for line in lines) or None,
        seconds=sum(line.seconds or 0.0 for line in lines) or None,
        time=max((line.time for line in lines if line.time is not None), default=None),
        problems=tuple(entry.problem.reason for entry in entries if entry.problem is not None),
    )


def _traces(folder: Path) -> list[Path]:
    """The traces of a run; none for a run that left metrics only."""
    try:
        return find_traces(folder)
    except ArcherError:
        if (folder / METRICS).is_file():
            return []
        raise


def _home(folder: Path) -> Path:
    """The run's folder, also where one of its traces was given."""
    resolved = real_path(folder)
    return resolved.parent if resolved.name in TRACE_FOLDERS else resolved


def _name(folder: Path, metadata: dict[str, Any]) -> str:
    resolved = real_path(folder)
    validation = resolved.name == VALIDATION
    experiment = metadata.get("experiment")
    if not (isinstance(experiment, str) and experiment):
        inside = validation or resolved.name in TRACE_FOLDERS
        experiment = resolved.parent.name if inside else resolved.name
    return f"{experiment[:200]}/{VALIDATION}" if validation else experiment[:200]


def _state(path: Path) -> tuple[int, int, int] | None:
    """What changes with a file or folder; None where it is not there, or out of reach for now."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _digest(marks: Sequence[object]) -> str:
    return hashlib.blake2b(repr(marks).encode(), digest_size=8).hexdigest()
