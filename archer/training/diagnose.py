"""`trainer.diagnose`: the rules of `archer diagnose` while a run trains.

The arrays of a step are looked at when they are made, its metrics when the step is done.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from archer.diagnosis.diagnosis import Diagnosis
from archer.diagnosis.evidence import RunFinding, StepEvidence, TraceFacts
from archer.diagnosis.rules import RULES
from archer.diagnosis.run_files import read_rows
from archer.diagnosis.trace_facts import trace_facts
from archer.trace.schema import TraceStep
from archer.trace.vocab import Vocab

PREFIX = "diagnose/"


@dataclass(frozen=True)
class StepDiagnosis:
    """What is said of a step."""

    new: list[RunFinding] = field(default_factory=list)  # those not said before
    metrics: dict[str, float] = field(default_factory=dict)


class StepWatcher(Protocol):
    """Looks at every step of a run."""

    def wants(self, step: int) -> bool:
        """Whether the arrays of a step are looked at."""
        ...

    def recall(self, metrics_file: Path, last: int) -> None:
        """Take the steps up to `last` from the file of a run that is resumed."""
        ...

    def look(self, step: int, arrays: TraceStep) -> None:
        """Take the arrays of the step under way; they are not changed."""
        ...

    def step(self, step: int, metrics: Mapping[str, float]) -> StepDiagnosis:
        """Judge a step that is done."""
        ...


class NoDiagnosis:
    """A run without `trainer.diagnose`: looks at nothing and says nothing."""

    def wants(self, step: int) -> bool:
        """No step is wanted."""
        return False

    def recall(self, metrics_file: Path, last: int) -> None:
        """Nothing is read."""

    def look(self, step: int, arrays: TraceStep) -> None:
        """Nothing is looked at."""

    def step(self, step: int, metrics: Mapping[str, float]) -> StepDiagnosis:
        """Nothing is said."""
        return StepDiagnosis()


class LiveDiagnosis:
    """Says each finding once; `diagnose/NAME` is 1 at the steps at which it holds."""

    def __init__(self, vocab: Vocab | None) -> None:
        self._vocab = vocab
        self._diagnosis = Diagnosis()
        self._said: set[str] = set()
        self._facts: tuple[int, TraceFacts] | None = None
        self._seconds = 0.0

    def wants(self, step: int) -> bool:
        """Every step is wanted."""
        return True

    def recall(self, metrics_file: Path, last: int) -> None:
        """What was said before the run stopped is not said again."""
        rows = read_rows(metrics_file, []) if last else {}
        for step in sorted(step for step in rows if step <= last):
            self._diagnosis.add(StepEvidence(step, rows[step]))
            self._said |= {rule.name for rule in RULES if rows[step].get(f"{PREFIX}{rule.name}")}

    def look(self, step: int, arrays: TraceStep) -> None:
        """Reduce the arrays to what the rules read."""
        began = time.perf_counter()
        self._facts = (step, trace_facts(step, arrays, self._vocab, self._diagnosis.limits))
        self._seconds = time.perf_counter() - began

    def step(self, step: int, metrics: Mapping[str, float]) -> StepDiagnosis:
        """Judge a step; a step without responses has no arrays."""
        began = time.perf_counter()
        facts = self._facts[1] if self._facts is not None and self._facts[0] == step else None
        found = self._diagnosis.add(StepEvidence(step, metrics, facts))
        new = [finding for finding in found if finding.name not in self._said]
        self._said |= {finding.name for finding in new}
        holding = self._diagnosis.holding
        figures = {f"{PREFIX}{rule.name}": float(rule.name in holding) for rule in RULES}
        seconds = self._seconds + time.perf_counter() - began
        self._facts, self._seconds = None, 0.0
        return StepDiagnosis(new, {**figures, "timing_s/diagnose": seconds})
