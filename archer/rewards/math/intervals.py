r"""Inequalities as intervals: x < 3, 1 <= x < 2, x != 1, and the real line without some points."""

import re
from dataclasses import dataclass
from itertools import pairwise

from archer.rewards.math.numeric import parse_number
from archer.rewards.math.shapes import Bracketed, Relation, Scalar, Union
from archer.rewards.math.text import squash, unwrapped

_VARIABLE = re.compile(r"\\?[A-Za-z]+(?:_(?:[A-Za-z0-9]|\{[^{}]*\}))?")


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


@dataclass(frozen=True)
class Solved:
    """An inequality in one variable that stands alone, as the interval of its values."""

    variable: str
    interval: Bracketed


def solved(relation: Relation) -> Solved | None:
    """Return the interval of an inequality of the form x < a, a < x or a < x < b; None for any other form."""
    parts, operators = relation.parts, relation.operators
    if operators[0] in (">", ">="):  # read it from the other side
        flipped = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "!=": "!="}
        parts, operators = parts[::-1], tuple(flipped[operator] for operator in operators[::-1])
    if not all(operator in ("<", "<=") for operator in operators):
        return None
    brackets = [("[", "]") if operator == "<=" else ("(", ")") for operator in operators]
    is_variable = [_VARIABLE.fullmatch(squash(part)) is not None for part in parts]
    if len(parts) == 3 and is_variable[1]:
        return Solved(parts[1], interval(brackets[0][0], parts[0], parts[2], brackets[1][1]))
    if len(parts) == 2 and is_variable[0]:
        return Solved(parts[0], interval("(", r"-\infty", parts[1], brackets[0][1]))
    if len(parts) == 2 and is_variable[1]:
        return Solved(parts[1], interval(brackets[0][0], parts[0], r"\infty", ")"))
    return None
