"""Verdicts, which may be left open, and the algebra that comparisons ask.

A verdict is True, False, or None where only an algebra could tell and the one at hand does not.
"""

from collections.abc import Iterable
from typing import Protocol

Verdict = bool | None


class Algebra(Protocol):
    """What can be asked about the texts of expressions."""

    def same(self, a: str, b: str) -> Verdict:
        """Tell whether two expressions are equal."""
        ...

    def answers(self, answer: str, reference: str) -> Verdict:
        """Tell whether they are equal, and the answer is no less worked out than the reference."""
        ...

    def equivalent(self, a: tuple[str, str], b: tuple[str, str]) -> Verdict:
        """Tell whether two equations, each of two sides, have the same solutions by being multiples."""
        ...


class NoAlgebra:
    """Leaves every question open."""

    def same(self, a: str, b: str) -> Verdict:
        """Leave it open."""
        return None

    def answers(self, answer: str, reference: str) -> Verdict:
        """Leave it open."""
        return None

    def equivalent(self, a: tuple[str, str], b: tuple[str, str]) -> Verdict:
        """Leave it open."""
        return None


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return False at the first False, else None if anything is open, else True."""
    outcome: Verdict = True
    for verdict in verdicts:
        if verdict is False:
            return False
        outcome = None if verdict is None else outcome
    return outcome


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return True at the first True, else None if anything is open, else False."""
    outcome: Verdict = False
    for verdict in verdicts:
        if verdict:
            return True
        outcome = None if verdict is None else outcome
    return outcome
