r"""The structure of an answer: list, set, tuple, interval, union, matrix, equation, inequality, or one value.

`read` only takes texts apart, at the top level of their brackets; what the values mean is for others.
"""

import re

from archer.rewards.math.brackets import OUTWARD, enclosed, is_sound, split, tokens, top_level_matches
from archer.rewards.math.intervals import interval, reals_without, solved
from archer.rewards.math.numeric import parse_number
from archer.rewards.math.shapes import (
    Bracketed,
    Collection,
    Equation,
    Matrix,
    Relation,
    Scalar,
    Structure,
    Union,
)
from archer.rewards.math.text import tidy, unwrapped

_LEFT = ("(", "[", "]", r"\{", r"\lbrace", r"\langle")

_THOUSANDS = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9]|,[0-9])")
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
_EMPTY = re.compile(r"\\(?:emptyset|varnothing)|\\\{\s*\\\}|\\text\{\s*no solutions?\s*\}", re.IGNORECASE)
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
    member = _MEMBER.match(text)
    if member:
        return _read(text[member.end() :])
    such_that = _SUCH_THAT.fullmatch(text)
    if such_that:
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
    text = _top_level_thousands(text)
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
    first, second = items[0], items[-1]
    if len(items) == 2 and isinstance(first, Relation) and isinstance(second, Relation):
        low, high = solved(first), solved(second)
        if low and high and low.variable == high.variable:
            bounds = low.interval, high.interval
            for a, b in (bounds, bounds[::-1]):
                if a.items[1] == Scalar(r"\infty") and b.items[0] == Scalar(r"-\infty"):
                    if _is_after(a.items[0], b.items[1]):
                        return Union(items)  # x < 1, x > 3: nothing is both
                    return Bracketed(a.left, (a.items[0], b.items[1]), b.right)
    return Collection(items, braces=False)


def _is_after(low: Structure, high: Structure) -> bool:
    ends = [parse_number(end.text) if isinstance(end, Scalar) else None for end in (low, high)]
    return ends[0] is not None and ends[1] is not None and ends[0].value >= ends[1].value


def _top_level_thousands(text: str) -> str:
    if not re.search(r"[(\[]|\\\{", text):
        return _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    return text


def _read_one(text: str) -> Structure:
    """Read what is neither a list nor a union."""
    relation = _read_relation(text)
    if relation is not None:
        return relation
    matrix = _read_matrix(text)
    if matrix is not None:
        return matrix
    equation = _read_equation(text)
    if equation is not None:
        return equation
    bracketed = _read_brackets(text)
    if bracketed is not None:
        return bracketed
    if _PLUS_MINUS.search(text):
        return Collection(tuple(_read(variant) for variant in _both_signs(text)), braces=False)
    return _read_reals(text) or Scalar(text)


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


def _both_signs(text: str) -> tuple[str, str]:
    upper = _PLUS_MINUS.sub(lambda match: "+" if match[1] == "pm" else "-", text)
    lower = _PLUS_MINUS.sub(lambda match: "-" if match[1] == "pm" else "+", text)
    return upper.removeprefix("+"), lower.removeprefix("+")


def _read_brackets(text: str) -> Structure | None:
    parts = tokens(text)
    if len(parts) < 2 or parts[0] not in _LEFT:
        return None
    left, right = parts[0], parts[-1]
    outward = OUTWARD.fullmatch(text)
    if outward and (left, right) != ("[", "]"):
        left, right = {"]": "("}.get(left, left), {"[": ")"}.get(right, right)
        inside = outward["inside"]
        if len(split(inside, _COMMA)) < 2 and len(split(inside, _SEMICOLON)) < 2:
            return _NOTHING
    elif enclosed(parts):
        inside = "".join(parts[1:-1])
    else:
        return None
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
