"""The metrics and traces of a run folder, read step by step. Nothing in them is trusted."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from archer.diagnosis.evidence import StepEvidence, TraceFacts
from archer.diagnosis.thresholds import Thresholds
from archer.diagnosis.trace_facts import trace_facts
from archer.errors import ArcherError
from archer.files import plain_file, real_path
from archer.trace.files import VALIDATION
from archer.trace.reader import TRACE_FOLDERS, DamagedStepError, TraceReader, find_traces, is_trace
from archer.trace.vocab import Vocab

METRICS = "metrics.jsonl"
LARGEST_STEP = 10**15  # the viewer's links have no more digits
LARGEST_FILE = 2**30

Figures = dict[str, float | None]


@dataclass
class RunFiles:
    """What there is to read of a run; `notes` grows while it is read."""

    name: str  # as the viewer calls it
    rows: dict[int, Figures]  # step -> its metrics
    trace: TraceReader | None
    vocab: Vocab | None
    notes: list[str] = field(default_factory=list)

    @property
    def steps(self) -> list[int]:
        """All steps, in order."""
        traced = [] if self.trace is None else [entry.step for entry in self.trace.entries]
        return sorted({*self.rows, *traced})

    def evidence(self, limits: Thresholds) -> Iterator[StepEvidence]:
        """All steps in order, the arrays of one in memory at a time."""
        for step in self.steps:
            yield StepEvidence(step, self.rows.get(step, {}), self._facts(step, limits))

    def _facts(self, step: int, limits: Thresholds) -> TraceFacts | None:
        trace = self.trace
        if trace is None or all(entry.step != step for entry in trace.entries):
            return None
        try:
            arrays = trace.read(step).arrays
        except DamagedStepError as error:
            self.notes.append(f"trace {error.problem}; the step is judged by its metrics alone")
            return None
        return trace_facts(step, arrays, self.vocab, limits, whole=trace.summary.kind == "entropy")


def open_run(path: Path) -> RunFiles:
    """Look at a run folder, or at a trace; raises `ArcherError` where there is nothing to diagnose."""
    if not path.is_dir():
        raise ArcherError(f"{path} is not a folder; expected the output folder of a run, or a trace.")
    if real_path(path).name == VALIDATION:
        raise ArcherError(f"{path} holds validations, not training; give the run folder above it.")
    home = real_path(path).parent if is_trace(path) and real_path(path).name in TRACE_FOLDERS else path
    notes: list[str] = []
    rows = read_rows(home / METRICS, notes)
    trace = _trace(path, notes)
    run = RunFiles(_name(home, trace), rows, trace, _vocab(trace, notes), notes)
    if not run.steps:
        said = f" ({'; '.join(notes)})" if notes else ""
        raise ArcherError(
            f"{path} has no steps to diagnose{said}; expected {METRICS} or {' or '.join(TRACE_FOLDERS)} "
            "of a run that has trained at least one step."
        )
    return run


def _name(home: Path, trace: TraceReader | None) -> str:
    experiment = None if trace is None else trace.summary.metadata.get("experiment")
    return (experiment if isinstance(experiment, str) and experiment else real_path(home).name)[:200]


def _trace(path: Path, notes: list[str]) -> TraceReader | None:
    """The entropy trace, which has every response; else the influence trace, which has the mixed groups."""
    try:
        readers = {reader.summary.kind: reader for reader in map(TraceReader, find_traces(path))}
    except (ArcherError, OSError) as error:
        if any((path / name).exists() for name in TRACE_FOLDERS) or is_trace(path):
            notes.append(f"the trace cannot be read: {error}")
        else:
            notes.append("no trace: judged by metrics alone")
        return None
    if "entropy" in readers:
        return readers["entropy"]
    notes.append(
        "no entropy trace: the influence trace has mixed groups only, which says nothing of the rest"
    )
    return readers["influence"]


def _vocab(trace: TraceReader | None, notes: list[str]) -> Vocab | None:
    if trace is None:
        return None
    try:
        vocab = trace.vocab
    except (ArcherError, OSError) as error:
        notes.append(f"tokens are shown as ids: {error}")
        return None
    if vocab is None:
        notes.append("tokens are shown as ids: the trace has no vocab.npz")
    return vocab


def read_rows(path: Path, notes: list[str]) -> dict[int, Figures]:
    """Step -> metrics; of two lines of one step the later counts, as a resumed run writes it again."""
    try:
        if not plain_file(path).is_file():
            notes.append(f"no {METRICS}: judged by the trace alone")
            return {}
        if path.stat().st_size > LARGEST_FILE:
            notes.append(f"{METRICS} is larger than {LARGEST_FILE >> 20} MiB and is not read")
            return {}
        text = path.read_text(encoding="utf-8", errors="replace")
    except (ArcherError, OSError) as error:
        notes.append(f"{METRICS} cannot be read: {error}")
        return {}
    rows: dict[int, Figures] = {}
    lines = [line for line in text.split("\n") if line.strip()]
    bad = 0
    for number, line in enumerate(lines):
        row = _row(line)
        if row is not None:
            rows[row[0]] = row[1]
        elif number < len(lines) - 1 or len(lines) == 1:  # a run at work, or a kill, leaves the last one torn
            bad += 1
    if bad:
        notes.append(f"{METRICS}: {bad} lines are no metrics of a step and are left out")
    return {step: figures for step, figures in rows.items() if step > 0}  # step 0 is before training


def _row(line: str) -> tuple[int, Figures] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    step = found.pop("step", None)
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < LARGEST_STEP:
        return None
    return step, {name: _number(value) for name, value in found.items()}


def _number(value: object) -> float | None:
    """A finite number; None for whatever else stands there."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
