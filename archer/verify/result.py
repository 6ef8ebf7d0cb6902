"""What a check hands back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One line of a check: numbers under the check's columns.

    Attributes:
        what: the thing measured.
        values: one number for each column; None where a column does not apply.
        holds: whether an exact figure is within its limit; None for a figure that is only reported.
    """

    what: str
    values: tuple[float | None, ...]
    holds: bool | None = None


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check.

    Attributes:
        name: what is checked, in a few words.
        meaning: what a reader may conclude, in one sentence.
        columns: names of the numbers in each figure.
        figures: the measurements.
        passed: for an exact check whether all figures hold; None for a check that only reports.
        note: how to read the figures, where that is not plain.
    """

    name: str
    meaning: str
    columns: tuple[str, ...]
    figures: tuple[Figure, ...]
    passed: bool | None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values by name, the numbers of a figure by column; NaN becomes None."""
        return {
            "name": self.name,
            "meaning": self.meaning,
            "note": self.note,
            "passed": self.passed,
            "figures": [
                {"what": figure.what, "holds": figure.holds}
                | {column: _plain(value) for column, value in zip(self.columns, figure.values, strict=True)}
                for figure in self.figures
            ],
        }


def at_most(what: str, value: float, limit: float) -> Figure:
    """An exact figure that holds up to `limit`; NaN never does."""
    return Figure(what, (value, limit), holds=value <= limit)


def at_least(what: str, value: float, limit: float) -> Figure:
    """An exact figure that holds from `limit` on; NaN never does."""
    return Figure(what, (value, limit), holds=value >= limit)


def exact(name: str, meaning: str, figures: list[Figure]) -> CheckResult:
    """A check that decides the verdict: every figure has to hold, and there has to be one."""
    passed = bool(figures) and all(figure.holds is True for figure in figures)
    return CheckResult(name, meaning, ("measured", "allowed"), tuple(figures), passed)


def reported(
    name: str, meaning: str, note: str, columns: tuple[str, ...], figures: list[Figure]
) -> CheckResult:
    """A check that shows how good something is and decides nothing."""
    return CheckResult(name, meaning, columns, tuple(figures), None, note)


def _plain(value: float | None) -> float | None:
    return None if value is None or value != value else value
