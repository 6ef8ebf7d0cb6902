r"""Sets on the real line: their names (`\mathbb{R}^+`, "all real numbers except 2"), and points taken out."""

import math
import re
from fractions import Fraction
from itertools import pairwise

from archer.rewards.math.forms import Bracketed, Collection, Scalar, Structure, Union
from archer.rewards.math.numeric import parse_number
from archer.rewards.math.text import unwrapped

_R = r"(?:\\mathbb\s*(?:\{R\}|R)|\\R(?![A-Za-z]))"
_ALL_REALS = (
    r"(?:\\text\s*\{\s*)?(?:the set of )?(?:all )?(?:real numbers|reals)(?: [a-z](?![a-z]))?"
    r"|(?:\\text\s*\{\s*)?all real (?:values(?: of [a-z](?![a-z]))?|[a-z](?![a-z]))"
)
_NAMED = (
    (re.compile(rf"{_R}|(?:{_ALL_REALS})\s*\}}?", re.IGNORECASE), ("(", r"-\infty")),
    (re.compile(rf"{_R}\s*(?:\^|_)\s*\{{?\s*(?:\+|>\s*0)\s*\}}?"), ("(", "0")),
    (re.compile(rf"{_R}\s*_\s*\{{?\s*(?:\\ge(?:q|qslant)?(?![A-Za-z]))\s*0\s*\}}?"), ("[", "0")),
)
_EXCEPT = re.compile(
    rf"(?:{_ALL_REALS})\s*,?\s*\}}?\s*(?:\\text\s*\{{\s*)?(?:except|other than|excluding|but)(?: for)?"
    r"(?:(?P<word>\s*\})|(?=[\s$\\]))(?P<points>.+)",
    re.IGNORECASE | re.DOTALL,
)


def interval(left: str, start: str, end: str, right: str) -> Bracketed:
    """Return an interval from the texts of its ends."""
    return Bracketed(left, (Scalar(unwrapped(start)), Scalar(unwrapped(end))), right)


REAL_LINE = interval("(", r"-\infty", r"\infty", ")")


def named_reals(text: str) -> Structure | None:
    """Return the interval that a text names: all real numbers, the positive ones, those from 0."""
    for name, (left, start) in _NAMED:
        if name.fullmatch(text):
            return interval(left, start, r"\infty", ")")
    return None


def points_excepted(text: str) -> str | None:
    """Return what follows "all real numbers except"."""
    found = _EXCEPT.fullmatch(text)
    if found is None:
        return None
    points = re.sub(r"^\s*[a-z]\s*=", "", found["points"]).strip()
    return points.removesuffix("}").strip() if points.count("{") < points.count("}") else points


def _reals_without(points: list[str]) -> Union:
    """Return the real line without some points, as a union of open intervals."""
    numbers = [parse_number(point) for point in points]
    if len(points) > 1 and all(number is not None for number in numbers):
        pairs = zip(numbers, points, strict=True)
        points = [point for _, point in sorted(pairs, key=lambda pair: pair[0].value if pair[0] else 0)]
    ends = [r"-\infty", *points, r"\infty"]
    return Union(tuple(interval("(", a, b, ")") for a, b in pairwise(ends)))


def without_points(base: Structure, points: Structure) -> Structure | None:
    """Take a point or a set of points out of intervals; None where their order is not plain."""
    items = points.items if isinstance(points, Collection) else (points,)
    texts = [item.text for item in items if isinstance(item, Scalar)]
    if not texts or len(texts) < len(items):
        return None
    if base == REAL_LINE:
        return _reals_without(texts)
    pieces: tuple[Structure, ...] | None = base.pieces if isinstance(base, Union) else (base,)
    for text in texts:
        number = parse_number(text)
        pieces = _without(pieces, text, number.value) if pieces and number else None
    if pieces is None:
        return None
    return pieces[0] if len(pieces) == 1 else Union(pieces)


def _without(pieces: tuple[Structure, ...], text: str, value: Fraction) -> tuple[Structure, ...] | None:
    left: list[Structure] = []
    for piece in pieces:
        ends = [_end(item) for item in piece.items] if isinstance(piece, Bracketed) else []
        if not isinstance(piece, Bracketed) or len(ends) != 2 or ends[0] is None or ends[1] is None:
            return None
        low, high = ends[0], ends[1]
        start, end = piece.items
        if low < value < high:
            left.append(Bracketed(piece.left, (start, Scalar(text)), ")"))
            left.append(Bracketed("(", (Scalar(text), end), piece.right))
        else:
            sides = "(" if value == low else piece.left, ")" if value == high else piece.right
            left.append(Bracketed(sides[0], piece.items, sides[1]))
    return tuple(left)


def _end(item: Structure) -> Fraction | float | None:
    text = item.text.replace(" ", "") if isinstance(item, Scalar) else ""
    if text.lstrip("+-") == r"\infty":
        return -math.inf if text.startswith("-") else math.inf
    number = parse_number(text)
    return None if number is None else number.value
