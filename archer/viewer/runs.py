"""The runs a viewer shows: each one an entropy trace, an influence trace, or both."""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archer.errors import ArcherError
from archer.trace.files import MANIFEST, STEPS_FOLDER, SUMMARY
from archer.trace.manifest import ManifestLine, StepStatistics
from archer.trace.reader import TRACE_FOLDERS, StepEntry, TraceReader, find_traces
from archer.trace.vocab import Vocab


@dataclass(frozen=True)
class TimelineStep(ManifestLine):
    """A step as the manifests of all traces know it; no step file is opened for it."""

    problems: tuple[str, ...] = ()


class TracedRun:
    """One run open for reading. Methods may be called from several threads."""

    def __init__(self, folder: Path, model_path: str | None = None) -> None:
        self.readers = [TraceReader(path) for path in find_traces(folder)]
        # The entropy trace holds the whole rollout batch, so it is the one that rows are counted in.
        self.readers.sort(key=lambda reader: reader.summary.kind)
        self.name = _name(folder, self.readers[0].summary.metadata)
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


class Library:
    """The runs given to one viewer."""

    def __init__(self, runs: list[TracedRun]) -> None:
        self.runs = runs

    @classmethod
    def open(cls, folders: list[Path], model_path: str | None = None) -> "Library":
        """Open trace or run folders; raises `ArcherError` for the first that is neither."""
        if not folders:
            raise ArcherError("no trace folder given; pass --trace-dir FOLDER, or --demo to look around.")
        return cls([TracedRun(folder, model_path) for folder in folders])

    def run(self, number: int) -> TracedRun:
        """A run by its place in the list."""
        if not 0 <= number < len(self.runs):
            raise ArcherError(f"there is no run {number}; this viewer holds runs 0 to {len(self.runs) - 1}.")
        return self.runs[number]


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


def _name(folder: Path, metadata: dict[str, Any]) -> str:
    experiment = metadata.get("experiment")
    if isinstance(experiment, str) and experiment:
        return experiment
    resolved = folder.resolve()
    return resolved.parent.name if resolved.name in TRACE_FOLDERS else resolved.name


def _state(path: Path) -> tuple[int, int, int] | None:
    """What changes with a file or folder; None where it is not there, or out of reach for now."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _digest(marks: Sequence[object]) -> str:
    return hashlib.blake2b(repr(marks).encode(), digest_size=8).hexdigest()
