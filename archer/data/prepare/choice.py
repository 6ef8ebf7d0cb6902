"""Which records of a source become prompts: conditions on their fields, and questions that are held out.

archer data prepare math train.jsonl --where difficulty=3..5 --exclude data/math500-test.parquet
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archer.data.files import read_source, sha256_of
from archer.data.prepare.example import RowError, text_field
from archer.data.prepare.math_sets import QUESTION_FIELDS
from archer.errors import ArcherError

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)"
_RANGE = re.compile(rf"({_NUMBER})?\.\.({_NUMBER})?")
_LABELLED = re.compile(rf"[^\d.+-]*({_NUMBER})[^\d.]*")  # the only number of a text: Level 3


@dataclass(frozen=True)
class RecordCondition:
    """What a field has to be: one of some texts, or a number of a range, both ends included."""

    text: str
    field: str
    values: tuple[str, ...] = ()
    low: float = float("-inf")
    high: float = float("inf")

    @staticmethod
    def parse(text: str) -> "RecordCondition":
        """Read `level=Level 3,Level 4`, `difficulty=3..5` or `year=2020..`."""
        name, sign, wanted = (part.strip() for part in text.partition("="))
        span = _RANGE.fullmatch(wanted)
        values = tuple(value.strip() for value in wanted.split(","))
        if not (name and sign) or not all(values) or wanted == "..":
            raise ArcherError(
                f"--where {text}: expected FIELD=VALUE[,VALUE] or FIELD=LOW..HIGH, "
                "for example difficulty=3..5."
            )
        if span is None:
            return RecordCondition(text, name, values)
        low, high = (float(end) if end else None for end in span.groups())
        if low is not None and high is not None and low > high:
            raise ArcherError(f"--where {text}: no number is at least {low:g} and at most {high:g}.")
        infinity = float("inf")
        return RecordCondition(
            text, name, (), -infinity if low is None else low, infinity if high is None else high
        )

    def holds(self, record: Mapping[str, Any]) -> bool:
        """Whether a record is wanted. One without the field cannot be judged."""
        value = record.get(self.field)
        if value is None:
            raise RowError(f"no field {self.field}, which --where asks for")
        if self.values:
            return _text(value) in self.values
        number = _number(value)
        if number is None:
            raise RowError(f"{self.field} holds no number, which --where asks for")
        return self.low <= number <= self.high


def same_question(question: str) -> str:
    """A key that two questions share if their text is the same, whatever its spacing and form of accents."""
    plain = " ".join(unicodedata.normalize("NFC", question).split())
    return hashlib.blake2b(plain.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Choice:
    """Conditions that all have to hold, and files whose questions are held out."""

    conditions: tuple[RecordCondition, ...] = ()
    excluded: tuple[Path, ...] = ()

    @staticmethod
    def of(where: Iterable[str], exclude: Iterable[Path]) -> "Choice":
        """Read the options of the command line."""
        files = tuple(path.expanduser() for path in exclude)
        for path in files:
            if not path.is_file():
                raise ArcherError(f"--exclude {path} is not a file; relative paths start at {Path.cwd()}.")
        return Choice(tuple(map(RecordCondition.parse, where)), files)

    def wants(self, record: Mapping[str, Any]) -> bool:
        """Whether all conditions hold for a record."""
        return all(condition.holds(record) for condition in self.conditions)

    def held_out(self) -> frozenset[str]:
        """Keys of all questions in the excluded files."""
        return frozenset(same_question(question) for path in self.excluded for question in _questions(path))

    def identity(self) -> dict[str, Any]:
        """What the output depends on, as plain JSON; empty where all records are wanted."""
        files = [{"file": path.name, "sha256": sha256_of(path)} for path in self.excluded]
        conditions = [condition.text for condition in self.conditions]
        return {key: value for key, value in (("where", conditions), ("exclude", files)) if value}


def _questions(path: Path) -> Iterable[str]:
    """The questions of a prepared file, or of a data set's own; a row without one is an error."""
    for row in read_source(path):
        extra = row.values.get("extra_info")
        question = extra.get("question") if isinstance(extra, dict) else None
        try:
            if row.problem is not None:
                raise RowError(row.problem)
            yield question if isinstance(question, str) else text_field(row.values, *QUESTION_FIELDS)
        except RowError as bad:
            raise ArcherError(
                f"--exclude {path}, {row.where}: {bad.reason}. Expected a file that `archer data prepare` "
                f"wrote, or rows with their question in {', '.join(QUESTION_FIELDS)}."
            ) from bad


def _text(value: Any) -> str:
    """A value as it is written after `--where FIELD=`; 3.0 is 3."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _number(value: Any) -> float | None:
    """A number, or the only one in a text (`Level 3`)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    found = _LABELLED.fullmatch(value.strip()) if isinstance(value, str) else None
    return float(found[1]) if found else None
