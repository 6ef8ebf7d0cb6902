"""One response as another tool wrote it down, and the checks of a stranger's values.

Every reader turns its format into `ImportedRow`; nothing after it knows where a response came from. Errors
name file, line and column.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from archer.errors import ArcherError

MAX_TOKENS = 2**21  # of one response, prompt included
MAX_STEP = 10**9
MAX_SHOWN = 60


@dataclass(frozen=True)
class ImportedRow:
    """A response; None is what a tool does not write. Per-token values are [T], T tokens of the response."""

    where: str  # file and line, for messages
    step: int
    prompt: str | list[dict[str, str]] | list[int]  # text, chat messages or token ids
    response: str | list[int]
    reward: float | None  # None: no reward could be given
    accepted: bool | None = None  # None: to be told from the reward
    group: str | None = None  # name of the prompt's group in the step; None: equal prompts are a group
    ground_truth: str | None = None
    extracted_answer: str | None = None
    data_source: str | None = None
    extra: Mapping[str, float | str] = field(default_factory=dict)  # further columns, by name
    mask: list[bool] | None = None  # [T] the tokens that the model itself wrote; None: all
    entropies: np.ndarray | None = None  # [T] nats
    log_probs: np.ndarray | None = None  # [T] of the training pass
    rollout_log_probs: np.ndarray | None = None  # [T] as sampled
    ratio: np.ndarray | None = None  # [T]
    clipped: np.ndarray | None = None  # [T] -1, 0, +1
    advantage: np.ndarray | None = None  # [T], or [1] where all tokens share it


@dataclass(frozen=True)
class StepFiles:
    """The files of one step, in the order of their rows."""

    step: int
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Record:
    """One line or row of a file, with access that checks."""

    file: Path
    place: str  # `line 3`
    values: Mapping[str, Any]

    @property
    def where(self) -> str:
        """File and place."""
        return f"{self.file}, {self.place}"

    def bad(self, column: str, expected: str) -> ArcherError:
        """What to raise for a column that does not hold what it should."""
        if column not in self.values:
            there = ", ".join(map(str, list(self.values)[:20])) or "nothing"
            return ArcherError(
                f"{self.where}: column {column} is missing, expected {expected}. The row has: {there}."
            )
        shown = repr(self.values[column])
        shown = shown if len(shown) <= MAX_SHOWN else shown[: MAX_SHOWN - 3] + "..."
        return ArcherError(f"{self.where}, column {column}: found {shown}, expected {expected}.")

    def text(self, column: str) -> str:
        """A text that must be there."""
        value = self.values.get(column)
        if not isinstance(value, str):
            raise self.bad(column, "a text")
        return clean(value)

    def whole(self, column: str) -> int:
        """A step's number, that must be there."""
        value = self.values.get(column)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_STEP:
            raise self.bad(column, f"a whole number from 0 to {MAX_STEP:,}")
        return value

    def number(self, column: str) -> float:
        """A number that must be there; NaN and infinity are numbers."""
        value = as_number(self.values.get(column))
        if value is None:
            raise self.bad(column, "a number")
        return value

    def tokens(self, column: str, kind: type, length: int | None = None) -> list[Any]:
        """A list with one value a token: `int` token ids or `bool` marks."""
        value = self.values.get(column)
        what = {int: "token ids from 0 to 2,147,483,647", bool: "true and false"}[kind]
        expected = f"a list of {what}" + ("" if length is None else f", {length:,} long as token_ids")
        if not isinstance(value, list) or (length is not None and len(value) != length):
            raise self.bad(column, expected)
        if len(value) > MAX_TOKENS:
            raise self.bad(column, f"at most {MAX_TOKENS:,} tokens")
        if not all(type(item) is kind for item in value):
            raise self.bad(column, expected)
        if kind is int and value and not 0 <= min(value) <= max(value) < 2**31:
            raise self.bad(column, expected)
        return value

    def floats(self, column: str, length: int) -> np.ndarray | None:
        """[length] numbers, NaN where null; None where the column is not there or has nothing but nulls."""
        value = self.values.get(column)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != length:
            raise self.bad(column, f"a list of {length:,} numbers or nulls")
        numbers = [math.nan if item is None else as_number(item) for item in value]
        if any(number is None for number in numbers):
            raise self.bad(column, f"a list of {length:,} numbers or nulls")
        found = np.array(numbers, dtype=np.float64)
        return None if np.isnan(found).all() else found


def as_number(value: object) -> float | None:
    """A JSON or Arrow value as a float; None for what is no number."""
    if isinstance(value, bool | int | float):
        try:
            return float(value)
        except OverflowError:  # JSON has integers of any size
            return None
    return None


def clean(text: str) -> str:
    """A text that can be encoded: half a surrogate pair, which JSON can spell, becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def further(values: Mapping[str, Any], taken: Sequence[str]) -> dict[str, float | str]:
    """The columns that have no place of their own: numbers and texts by name, others as short text."""
    found: dict[str, float | str] = {}
    for name, value in values.items():
        if name in taken or value is None:
            continue
        number = as_number(value)
        if number is None:
            found[clean(str(name))] = clean(value if isinstance(value, str) else str(value)[:1000])
        elif math.isfinite(number):
            found[clean(str(name))] = number
    return found
