r"""Plain numerals as exact rationals: integers, decimals, thousands separators, `\frac{a}{b}`, `a/b`.

Everything is bounded before it is computed, so that no numeral can cost time or memory.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from archer.rewards.boxed import closing_brace

MAX_NUMERAL_CHARS = 1000
_MIN_PLACES = 6
_MIN_SIGNIFICANT = 6

_MATH_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_SIZING = re.compile(r"(?<!\\)\\(?:left|right|displaystyle|textstyle)(?![A-Za-z])|(?<!\\)\\!")
_SPACING = re.compile(r"(?<!\\)\\(?:[,;: ]|quad(?![A-Za-z])|qquad(?![A-Za-z]))|~|[\u00a0\u2009\u202f]")
_FRAC_VARIANT = re.compile(r"(?<!\\)\\[dtc]frac(?![A-Za-z])")
_LOOSE_SPACE = re.compile(r"(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])")

_DIGITS = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]{0,2}(?: [0-9]{3})+|[0-9]+)"
_DECIMAL = re.compile(
    rf"(?P<sign>[+-]?)(?P<whole>{_DIGITS}(?=\.|e|E|$)|(?=\.[0-9]))"
    r"(?:\.(?P<part>[0-9]*))?(?:[eE](?P<exponent>[+-]?[0-9]{1,3}))?"
)
_FRACTIONS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?P<sign>[+-]?)(?P<top>[0-9.,]+)/(?P<bottom>[0-9.,]+)",
        r"(?P<sign>[+-]?)(?P<mixed>[0-9]+) (?P<top>[0-9]+)/(?P<bottom>[0-9]+)",
        r"(?P<sign>[+-]?)\\frac\{(?P<top>[+-]?[0-9.,]+)\}\{(?P<bottom>[+-]?[0-9.,]+)\}",
        r"(?P<sign>[+-]?)\\frac ?(?P<top>[0-9]) ?(?P<bottom>[0-9])",
    )
)


@dataclass(frozen=True)
class Number:
    """A numeral's exact value, and how many decimal places it was written with (None: a fraction)."""

    value: Fraction
    places: int | None


def tidy(text: str) -> str:
    """Strip what does not change an answer: delimiters, outer braces, sizing and spacing, a final stop."""
    text = text.strip().replace("\u2212", "-").replace("{,}", ",")
    text = _FRAC_VARIANT.sub(r"\\frac", _SPACING.sub(" ", _SIZING.sub("", text))).strip()
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1].rstrip()
    return _without_wrapping(text)


def _without_wrapping(text: str) -> str:
    for opening, closing in _MATH_DELIMITERS:
        inner = text[len(opening) : -len(closing)]
        if text.startswith(opening) and text.endswith(closing) and inner and "$" not in inner:
            text = inner.strip()
    # Each layer costs a scan, so only a few are taken off.
    layers = 0
    while layers < 16 and text.startswith("{") and closing_brace(text, 0) == len(text) - 1:
        text, layers = text[1:-1].strip(), layers + 1
    return text


def squash(text: str) -> str:
    """Drop the blanks of a tidy text, except one between letters or digits, where it separates."""
    return re.sub(r"\s+", " ", _LOOSE_SPACE.sub("", text))


def parse_number(text: str) -> Number | None:
    """Read a tidy text that is one plain numeral and nothing else; None when it is anything more."""
    text = squash(text)
    if len(text) > MAX_NUMERAL_CHARS:
        return None
    decimal = _parse_decimal(text)
    if decimal is not None:
        return decimal
    for pattern in _FRACTIONS:
        match = pattern.fullmatch(text)
        if match:
            return _read_fraction(match)
    return None


def _parse_decimal(text: str) -> Number | None:
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return None
    whole = re.sub(r"[, ]", "", match["whole"])
    part, exponent = match["part"] or "", int(match["exponent"] or 0)
    value = Fraction(int(whole + part), 10 ** len(part)) * Fraction(10) ** exponent
    return Number(-value if match["sign"] == "-" else value, max(0, len(part) - exponent))


def _read_fraction(match: re.Match[str]) -> Number | None:
    top, bottom = _parse_decimal(match["top"]), _parse_decimal(match["bottom"])
    if top is None or bottom is None or bottom.value == 0:
        return None
    value = top.value / bottom.value + int(match.groupdict().get("mixed") or 0)
    return Number(-value if match["sign"] == "-" else value, None)


def numbers_agree(a: Number, b: Number) -> bool:
    """Tell whether two numerals stand for the same number.

    They do when their values are equal, or when one is the other rounded to the places it is written with,
    provided that those are at least six and show at least six significant digits: 0.333333 is 1/3, but 0.33
    is not, and 0.0000001 is not 0.
    """
    return a.value == b.value or _rounds_to(a, b) or _rounds_to(b, a)


def _rounds_to(exact: Number, rounded: Number) -> bool:
    if rounded.places is None or rounded.places < _MIN_PLACES:
        return False
    if exact.places is not None and exact.places <= rounded.places:
        return False
    scale = 10**rounded.places
    shows_enough = abs(rounded.value) * scale >= 10 ** (_MIN_SIGNIFICANT - 1)
    return shows_enough and abs(exact.value - rounded.value) * scale <= Fraction(1, 2)
