r"""Quantities in several units: `1 \text{ hour } 30 \text{ minutes}`, `3 dollars and 50 cents`."""

import re
from fractions import Fraction

from archer.rewards.math.numeric import parse_number
from archer.rewards.math.quantity import find_unit

_JOIN = r"\s*(?:,|\\text\s*\{\s*,?\s*and\s*\}|(?<![A-Za-z])and(?![A-Za-z]))?\s*"
_PART = (
    r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*"
    r"(?:\\text\s*\{\s*(?P<text>[A-Za-z.]{1,12})\s*(?:,|,? and)?\s*\}|(?P<bare>[A-Za-z]{1,12}))"
)
_QUANTITY = re.compile(rf"{_PART}{_JOIN}")
_MAX_PARTS = 4


def in_one_unit(text: str) -> str:
    """Return the sum of a tidy text's quantities in the smallest of their units; other texts as they are."""
    total, unit, name, position, count = Fraction(0), None, "", 0, 0
    while count < _MAX_PARTS:
        part = _QUANTITY.match(text, position)
        number = parse_number(part["number"]) if part else None
        if part is None or number is None:
            break
        smaller = find_unit(part["text"] or part["bare"])
        if smaller is None or (unit and (unit.measures != smaller.measures or unit.factor <= smaller.factor)):
            return text
        if unit and number.value >= unit.factor / smaller.factor:
            return text  # 1 hour 90 minutes
        total = (total * unit.factor / smaller.factor if unit else Fraction(0)) + number.value
        unit, name, position, count = smaller, part["text"] or part["bare"], part.end(), count + 1
    if position < len(text) or count < 2:
        return text
    if unit and unit.measures == "dollars":
        total, name = total * unit.factor, "dollars"
    value = str(total) if total.denominator == 1 else rf"\frac{{{total.numerator}}}{{{total.denominator}}}"
    return rf"{value}\text{{ {name}}}"
