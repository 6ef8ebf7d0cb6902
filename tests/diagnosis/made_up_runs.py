"""Runs of few numbers: what a rule reads and nothing else."""

from collections.abc import Mapping, Sequence

from archer.diagnosis.diagnosis import Diagnosis
from archer.diagnosis.evidence import StepEvidence, TraceFacts

Steps = Sequence[Mapping[str, float | None]]


def diagnosed(steps: Steps, facts: Mapping[int, TraceFacts] | None = None) -> Diagnosis:
    """The diagnosis of steps 1, 2, ... with these metrics."""
    diagnosis = Diagnosis()
    for number, metrics in enumerate(steps, 1):
        diagnosis.add(StepEvidence(number, metrics, (facts or {}).get(number)))
    return diagnosis


def columns(**values: Sequence[float | None]) -> list[dict[str, float | None]]:
    """Columns, `/` written as `__`, as one row a step."""
    names = [name.replace("__", "/") for name in values]
    return [dict(zip(names, row, strict=True)) for row in zip(*values.values(), strict=True)]
