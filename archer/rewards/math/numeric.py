r"""Plain numerals as exact rationals: integers, decimals, fractions, mixed numbers, `3 \times 10^8`.

Everything is bounded before it is computed, so that no numeral can cost time or memory.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from archer.rewards.math.text import squash

MAX_NUMERAL_CHARS = 1000
_MIN_PLACES = 6
_MIN_SIGNIFICANT = 6

_DIGITS = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]{0,2}(?: [0-9]{3})+|[0-9]+)"
_DECIMAL = re.compile(
    rf"(?P<sign>[+-]?)(?P<whole>{_DIGITS}(?=\.|e|E|$)|(?=\.[0-9]))"
    r"(?:\.(?P<part>[0-9]*))?(?:[eE](?P<exponent>[+-]?[0-9]{1,3}))?"
)
_SCIENTIFIC = re.compile(
    r"(?P<mantissa>[+-]?[0-9.,]+)(?:\\times|\\cdot|\*) ?(?:10|\{10\}|\(10\))"
    r"\^(?:\{(?P<braced>[+-]?[0-9]{1,3})\}|(?P<bare>[+-]?[0-9]{1,3}))"
)
_REPEATING = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)\.(?P<part>[0-9]*)"
    r"(?:\\(?:overline|bar)\{(?P<bar>[0-9]{1,50})\}|(?<=[0-9.])\((?P<brackets>[0-9]{1,50})\)"
    r"|(?P<dots>\\dot(?:\{[0-9]\}| ?[0-9])(?:[0-9]{0,48}\\dot(?:\{[0-9]\}| ?[0-9]))?))"
)
_ENDLESS = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]+)\.(?P<digits>[0-9]{3,100})(?:\.\.\.|\\l?dots|\\cdots)"
)
_SEEN_CYCLE = re.compile(r"(?P<part>[0-9]*?)(?:(?P<one>[0-9])(?P=one){2,}|(?P<cycle>[0-9]{2,}?)(?P=cycle)+)")
_NO_DIGIT = re.compile(r"[^0-9]+")
_RATIO = re.compile(r":| to |\\text\{ ?to ?\}|\\colon(?![A-Za-z])")
_MAX_TERMS = 10
_CLOCK = re.compile(r"(?:[01]?[0-9]|2[0-4]):[0-5][0-9](?::[0-5][0-9])?")
_FRACTIONS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?P<sign>[+-]?)\{?(?P<top>[0-9.,]+)\}?/\{?(?P<bottom>[0-9.,]+)\}?",
        r"(?P<sign>[+-]?)(?P<mixed>[0-9]+) (?P<top>[0-9]+)/(?P<bottom>[0-9]+)",
        r"(?P<sign>[+-]?)(?P<mixed>[0-9]+)\\frac\{(?P<top>[0-9]+)\}\{(?P<bottom>[0-9]+)\}",
        r"(?P<sign>[+-]?)(?P<mixed>[0-9]+)\\frac ?(?P<top>[0-9]) ?(?P<bottom>[0-9])",
        r"(?P<sign>[+-]?)\\frac\{(?P<top>[+-]?[0-9.,]+)\}\{(?P<bottom>[+-]?[0-9.,]+)\}",
        r"(?P<sign>[+-]?)\\frac ?(?P<top>[0-9]) ?(?P<bottom>[0-9])",
        r"(?P<sign>[+-]?)\\frac ?(?P<top>[0-9]) ?\{(?P<bottom>[+-]?[0-9.,]+)\}",
        r"(?P<sign>[+-]?)\\frac\{(?P<top>[+-]?[0-9.,]+)\} ?(?P<bottom>[0-9])",
    )
)


@dataclass(frozen=True)
class Number:
    """A numeral's exact value, and how many decimal places it was written with (None: a fraction)."""

    value: Fraction
    places: int | None


def parse_number(text: str) -> Number | None:
    """Read a tidy text that is one plain numeral and nothing else; None when it is anything more."""
    text = squash(text)
    if len(text) > MAX_NUMERAL_CHARS:
        return None
    number = _parse_decimal(text)
    if number is not None:
        return number
    for pattern in _FRACTIONS:
        match = pattern.fullmatch(text)
        if match:
            return _read_fraction(match)
    return _parse_scientific(text) or _parse_repeating(text)


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
    mixed = match.groupdict().get("mixed")
    if mixed is not None and top.value >= bottom.value:
        return None  # 3\frac{4}{3} is no mixed number
    value = top.value / bottom.value + int(mixed or 0)
    return Number(-value if match["sign"] == "-" else value, None)


def _parse_scientific(text: str) -> Number | None:
    match = _SCIENTIFIC.fullmatch(text)
    mantissa = _parse_decimal(match["mantissa"]) if match else None
    if match is None or mantissa is None or mantissa.places is None:
        return None
    exponent = int(match["braced"] or match["bare"])
    return Number(mantissa.value * Fraction(10) ** exponent, max(0, mantissa.places - exponent))


def _parse_repeating(text: str) -> Number | None:
    r"""Read a decimal whose cycle is marked (`0.\overline{3}`, `0.\dot{3}`, `0.(3)`) or seen (`0.333...`)."""
    match = _REPEATING.fullmatch(text)
    if match is not None:
        cycle = _NO_DIGIT.sub("", match["bar"] or match["brackets"] or match["dots"])
        return _repeating(match["sign"], match["whole"], match["part"], cycle)
    match = _ENDLESS.fullmatch(text)
    seen = _SEEN_CYCLE.fullmatch(match["digits"]) if match else None
    if match is None or seen is None:
        return None
    return _repeating(match["sign"], match["whole"], seen["part"], seen["one"] or seen["cycle"])


def _repeating(sign: str, whole: str, part: str, cycle: str) -> Number:
    once = Fraction(int((whole + part) or 0), 10 ** len(part))
    value = once + Fraction(int(cycle), (10 ** len(cycle) - 1) * 10 ** len(part))
    return Number(-value if sign == "-" else value, None)


def parse_ratio(text: str) -> tuple[Fraction, ...] | None:
    """Read a ratio of positive numerals, `3:5` or `1:2:3`, scaled to end in 1; None when it is none."""
    numbers = [parse_number(term) for term in _RATIO.split(squash(text), maxsplit=_MAX_TERMS)]
    terms = [number.value for number in numbers if number is not None and number.value > 0]
    return tuple(term / terms[-1] for term in terms) if 1 < len(terms) == len(numbers) else None


def ratios_agree(a: str, b: str) -> bool:
    """Tell whether two texts are proportional ratios, not two times of the day (1:10 and 2:20)."""
    first, second = parse_ratio(a), parse_ratio(b)
    if first is None or first != second:
        return False
    return not all(_CLOCK.fullmatch(squash(text)) for text in (a, b))


def numbers_agree(a: Number, b: Number) -> bool:
    """Tell whether two numerals stand for the same number.

    They do when their values are equal, or when one is the other rounded to the places it is written with,
    provided that those are at least six and show at least six significant digits: 0.333333 is 1/3, but 0.33
    is not, and 0.0000001 is not 0.
    """
    return a.value == b.value or _rounds_to(a, b) or _rounds_to(b, a)


def _rounds_to(exact: Number, rounded: Number) -> bool:
    if exact.places is not None and rounded.places is not None and exact.places <= rounded.places:
        return False
    tolerance = rounding_tolerance(rounded)
    return tolerance is not None and abs(exact.value - rounded.value) <= tolerance


def rounding_tolerance(rounded: Number) -> Fraction | None:
    """Return half a unit of a decimal's last place, if it shows enough digits to stand for an exact value."""
    if rounded.places is None or rounded.places < _MIN_PLACES:
        return None
    scale = 10**rounded.places
    if abs(rounded.value) * scale < 10 ** (_MIN_SIGNIFICANT - 1):
        return None
    return Fraction(1, 2 * scale)
