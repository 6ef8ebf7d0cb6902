"""What a check before training found."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from archer.errors import ArcherError

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was looked at, what was found, and what to do about it.

    `ok` is as it should be, a `note` worth knowing, and with a `problem` the run cannot start here.
    """

    level: Level
    subject: str
    text: str
    remedy: str = ""

    @property
    def sentence(self) -> str:
        """Finding and way out, for a message."""
        return f"{self.text} {self.remedy}".strip()


def ok(subject: str, text: str) -> Finding:
    """All is well."""
    return Finding("ok", subject, text)


def note(subject: str, text: str, remedy: str = "") -> Finding:
    """Worth knowing, but nothing keeps the run from starting."""
    return Finding("note", subject, text, remedy)


def problem(subject: str, text: str, remedy: str = "") -> Finding:
    """The run cannot start here."""
    return Finding("problem", subject, text, remedy)


def problems(findings: list[Finding]) -> list[Finding]:
    """Those that keep the run from starting."""
    return [finding for finding in findings if finding.level == "problem"]


@contextmanager
def as_problem(subject: str, found: list[Finding]) -> Iterator[None]:
    """Turn an ArcherError inside into a problem among `found`."""
    try:
        yield
    except ArcherError as error:
        found.append(problem(subject, str(error)))
