r"""The structure of an answer: list, set, tuple, interval, union, matrix, equation, inequality, or one value.

`read` only takes texts apart, at the top level of their brackets; what the values mean is for others.
"""

import re
from dataclasses import dataclass
from itertools import pairwise

from archer.rewards.math.numeric import parse_number
from archer.rewards.math.text import (
    enclosed,
    is_sound,
    split,
    squash,
    tidy,
    tokens,
    top_level_matches,
    unwrapped,
)

_LEFT = ("(", "[", r"\{", r"\lbrace", r"\langle")
_SEPARATOR = re.compile(
    r"\s*,?\s*(?:\\text\s*\{\s*,?\s*(?P<text>and|or)\s*\}|(?<![A-Za-z\\])(?P<word>and|or)(?![A-Za-z]))\s*|\s*,\s*"
)
_SEMICOLON = re.compile(r"\s*;\s*")
_COMMA = re.compile(r"\s*,\s*")
_UNION = re.compile(r"\\cup(?![A-Za-z])")
_EQUALS = re.compile(r"=")
_APPROXIMATELY = re.compile(r"\\approx(?![A-Za-z])")
_RELATION = re.compile(r"\\(?:leqslant|leq|le|geqslant|geq|ge|lt|gt|neq|ne)(?![A-Za-z])|<|>")
_OPERATORS = {"leq": "<=", "leqslant": "<=", "le": "<=", "lt": "<", "<": "<"}
_OPERATORS |= {"geq": ">=", "geqslant": ">=", "ge": ">=", "gt": ">", ">": ">", "ne": "!=", "neq": "!="}
_MEMBER = re.compile(r"[A-Za-z](?:_\{?[A-Za-z0-9]+\}?)?\s*\\in(?![A-Za-z])\s*")
_SUCH_THAT = re.compile(
    r"\\\{\s*[A-Za-z]\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?(?:\\mid(?![A-Za-z])|\||:)(?P<condition>.*)\\\}"
)
_MATRIX = re.compile(
    r"(?P<left>\[|\()?\s*\\begin\{(?P<name>[pbB]?(?:small)?matrix|array)\}\s*(?:\{[clr|\s]*\})?(?P<body>.*)"
    r"\\end\{(?P=name)\}\s*(?P<right>\]|\))?",
    re.DOTALL,
)
_ALL_BUT = re.compile(r"\\mathbb\s*\{?R\}?\s*(?:\\setminus|\\backslash|-)\s*\\\{(?P<points>.*)\\\}")
_REALS = re.compile(r"\\mathbb\s*\{?R\}?")
_NO_SOLUTION = r"no (?:real )?solutions?(?: exists?)?"
_EMPTY = re.compile(
    rf"\\(?:emptyset|varnothing)|\\\{{\s*\\\}}|\\text\{{\s*{_NO_SOLUTION}\s*\}}|{_NO_SOLUTION}", re.IGNORECASE
)
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![A-Za-z])\s*")
_SUBSCRIPT = re.compile(r"_\s*(?:\\?[A-Za-z0-9]+|\{[^{}]*\})")
_ARGUMENTS = re.compile(r"(?<=[A-Za-z])\s*\([^()]*\)")
_NAME = re.compile(r"[A-Za-z{} '|]+")
_LETTER = re.compile(r"[A-Za-z]")
_NAMING = re.compile(
    r"\\(?:text|angle|triangle|overline|vec|hat|bar|widehat|overrightarrow|mathcal|mathbb|max|min|deg|Pr|ell|alpha"
    r"|beta|gamma|delta|(?:var)?epsilon|zeta|eta|(?:var)?theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|(?:var)?phi|chi|psi"
    r"|omega|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega)(?![A-Za-z])"
)
_VARIABLE = re.compile(r"\\?[A-Za-z]+(?:_(?:[A-Za-z0-9]|\{[^{}]*\}))?")


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
_NOTHING = Scalar("")


def read(text: str) -> Structure:
    """Return the structure of an answer. Unbalanced or too deeply nested text has none: an empty scalar."""
    text = tidy(text)
    return _read(text) if is_sound(text) else _NOTHING


def _read(text: str) -> Structure:
    text = unwrapped(text)
    if _EMPTY.fullmatch(text):
        return Collection((), braces=True)
    items = _list_items(text)
    if items is not None:
        return items
    if member := _MEMBER.match(text):
        return _read(text[member.end() :])
    if such_that := _SUCH_THAT.fullmatch(text):
        return _read(such_that["condition"])
    pieces = split(text, _UNION)
    if len(pieces) > 1:
        return Union(tuple(_read(piece) for piece in pieces))
    return _read_one(text)


def is_name(text: str) -> bool:
    r"""Tell whether a text names something, as opposed to stating it: `x`, `f(2)`, `\angle ABC`, `S_{10}`."""
    bare = _ARGUMENTS.sub("", _SUBSCRIPT.sub("", _NAMING.sub("x", text)))
    return "{}" not in bare and _NAME.fullmatch(bare) is not None and _LETTER.search(bare) is not None


def _list_items(text: str) -> Structure | None:
    """Read a list without brackets: by semicolons if there are any, else by commas, "and", "or"."""
    separator = _SEMICOLON if len(split(text, _SEMICOLON)) > 1 else _SEPARATOR
    pieces = split(text, separator)
    if len(pieces) == 1:
        return None
    if not all(piece.strip() for piece in pieces):
        return _NOTHING
    items = tuple(_read(piece) for piece in pieces)
    if all(isinstance(item, Relation) for item in items):
        return _join_relations(items, all_of="or" not in text)
    return Collection(_flat(items), braces=False)


def _join_relations(items: tuple[Structure, ...], all_of: bool) -> Structure:
    """Two bounds that hold together are one chain; alternatives are a union."""
    if not all_of:
        return Union(items)
    found = [solved(item) for item in items if isinstance(item, Relation)]
    if len(items) == len(found) == 2 and found[0] and found[1] and found[0][0] == found[1][0]:
        bounds = found[0][1], found[1][1]
        for a, b in (bounds, bounds[::-1]):
            if a.items[1] == Scalar(r"\infty") and b.items[0] == Scalar(r"-\infty"):
                if _is_after(a.items[0], b.items[1]):
                    return Union(items)  # x < 1, x > 3: nothing is both
                return Bracketed(a.left, (a.items[0], b.items[1]), b.right)
    return Collection(items, braces=False)


def _is_after(low: Structure, high: Structure) -> bool:
    ends = [parse_number(end.text) if isinstance(end, Scalar) else None for end in (low, high)]
    return ends[0] is not None and ends[1] is not None and ends[0].value >= ends[1].value


def _read_one(text: str) -> Structure:
    """Read what is neither a list nor a union."""
    for reader in (_read_relation, _read_matrix, _read_equation, _read_brackets, _read_signs, _read_reals):
        found = reader(text)
        if found is not None:
            return found
    return Scalar(text)


def _read_relation(text: str) -> Relation | None:
    parts = split(text, _RELATION)
    if len(parts) == 1:
        return None
    signs = [match[0].lstrip("\\") for match in top_level_matches(text, _RELATION)]
    return Relation(tuple(part.strip() for part in parts), tuple(_OPERATORS[sign] for sign in signs))


def _read_equation(text: str) -> Structure | None:
    exact, *rough = split(text, _APPROXIMATELY)
    if rough and not exact.strip():
        return _read(rough[0])
    if rough and not is_name(exact):
        return _read(exact) if _rounds(exact, rough) else _NOTHING
    parts = split("=".join([exact, *rough]), _EQUALS)
    if len(parts) == 1:
        return None
    return Equation(tuple(part.strip() for part in parts)) if all(map(str.strip, parts)) else _NOTHING


def _rounds(exact: str, rough: list[str]) -> bool:
    """Tell whether what follows a sign of approximation may be a rounded value of what stands before it."""
    value = parse_number(split(exact, _EQUALS)[-1])
    for text in rough:
        number = parse_number(text)
        if number is None or (value and abs(number.value - value.value) * 20 > abs(value.value)):
            return False
    return True


def _read_matrix(text: str) -> Structure | None:
    match = _MATRIX.fullmatch(text)
    if match is None or (match["name"] in ("matrix", "array", "smallmatrix")) != bool(match["left"]):
        return None
    rows = [row for row in match["body"].split(r"\\") if row.strip()]
    return Matrix(tuple(tuple(_read(entry) for entry in row.split("&")) for row in rows))


def _read_signs(text: str) -> Structure | None:
    r"""Read the two values of a \pm."""
    if not _PLUS_MINUS.search(text):
        return None
    upper = _PLUS_MINUS.sub(lambda match: "+" if match[1] == "pm" else "-", text)
    lower = _PLUS_MINUS.sub(lambda match: "-" if match[1] == "pm" else "+", text)
    return Collection(tuple(_read(each.removeprefix("+")) for each in (upper, lower)), braces=False)


def _read_brackets(text: str) -> Structure | None:
    parts = tokens(text)
    if len(parts) < 2 or parts[0] not in _LEFT:
        return None
    left, right = parts[0], parts[-1]
    if not enclosed(parts):
        return None
    inside = "".join(parts[1:-1])
    separator = _SEMICOLON if len(split(inside, _SEMICOLON)) > 1 else _COMMA
    pieces = split(inside, separator)
    if not all(piece.strip() for piece in pieces):
        return _NOTHING
    if len(pieces) == 1 and (left, right) == ("(", ")"):
        return _read(inside)
    items = tuple(_read(piece) for piece in pieces)
    if left in (r"\{", r"\lbrace"):
        return Collection(_flat(items), braces=True) if right in (r"\}", r"\rbrace") else _NOTHING
    if len(pieces) == 1:
        return None
    left, right = {r"\langle": "("}.get(left, left), {r"\rangle": ")"}.get(right, right)
    return Bracketed(left, items, right) if left in "([" and right in ")]" else _NOTHING


def _flat(items: tuple[Structure, ...]) -> tuple[Structure, ...]:
    r"""Lay the two values of a \pm among the other members of its set."""
    return tuple(
        inner
        for item in items
        for inner in (item.items if isinstance(item, Collection) and not item.braces else (item,))
    )


def _read_reals(text: str) -> Structure | None:
    if _REALS.fullmatch(text):
        return interval("(", r"-\infty", r"\infty", ")")
    all_but = _ALL_BUT.fullmatch(text)
    return reals_without(split(all_but["points"], _COMMA)) if all_but else None


def reals_without(points: list[str]) -> Union:
    """Return the real line without some points, as a union of open intervals."""
    numbers = [parse_number(point) for point in points]
    if len(points) > 1 and all(number is not None for number in numbers):
        pairs = zip(numbers, points, strict=True)
        points = [point for _, point in sorted(pairs, key=lambda pair: pair[0].value if pair[0] else 0)]
    ends = [r"-\infty", *points, r"\infty"]
    return Union(tuple(interval("(", a, b, ")") for a, b in pairwise(ends)))


def interval(left: str, start: str, end: str, right: str) -> Bracketed:
    """Return an interval from the texts of its ends."""
    return Bracketed(left, (Scalar(unwrapped(start)), Scalar(unwrapped(end))), right)


def solved(relation: Relation) -> tuple[str, Bracketed] | None:
    """Return the variable and interval of an inequality x < a, a < x or a < x < b; None for other forms."""
    parts, operators = relation.parts, relation.operators
    if operators[0] in (">", ">="):  # read it from the other side
        flipped = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "!=": "!="}
        parts, operators = parts[::-1], tuple(flipped[operator] for operator in operators[::-1])
    if not all(operator in ("<", "<=") for operator in operators):
        return None
    brackets = [("[", "]") if operator == "<=" else ("(", ")") for operator in operators]
    is_variable = [_VARIABLE.fullmatch(squash(part)) is not None for part in parts]
    if len(parts) == 3 and is_variable[1]:
        return parts[1], interval(brackets[0][0], parts[0], parts[2], brackets[1][1])
    if len(parts) == 2 and is_variable[0]:
        return parts[0], interval("(", r"-\infty", parts[1], brackets[0][1])
    if len(parts) == 2 and is_variable[1]:
        return parts[1], interval(brackets[0][0], parts[0], r"\infty", ")")
    return None
