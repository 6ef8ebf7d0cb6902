"""What an answer may be: a value, a list, a tuple or interval, a union, a matrix, an equation, a relation."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scalar:
    """One value, or anything that has no structure known here."""

    text: str


@dataclass(frozen=True)
class Collection:
    """Values whose order does not matter: a set in braces, or a list without brackets."""

    items: tuple["Structure", ...]
    braces: bool


@dataclass(frozen=True)
class Bracketed:
    """Values whose order matters: a tuple, a vector, an interval. The brackets are round or square."""

    left: str
    items: tuple["Structure", ...]
    right: str


@dataclass(frozen=True)
class Union:
    """A union of intervals and sets."""

    pieces: tuple["Structure", ...]


@dataclass(frozen=True)
class Matrix:
    """The entries by rows."""

    rows: tuple[tuple["Structure", ...], ...]


@dataclass(frozen=True)
class Equation:
    """The texts between the equals signs, two at least."""

    parts: tuple[str, ...]


@dataclass(frozen=True)
class Relation:
    """Texts joined by inequality signs, one of `< <= > >= !=` fewer than texts."""

    parts: tuple[str, ...]
    operators: tuple[str, ...]


Structure = Scalar | Collection | Bracketed | Union | Matrix | Equation | Relation
NOTHING = Scalar("")  # what has no readable structure
