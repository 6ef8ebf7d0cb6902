"""When two single values are the same: by spelling, words, sign of infinity, number and unit."""

import re
from fractions import Fraction

from archer.rewards.math.numeric import Number, numbers_agree, parse_number
from archer.rewards.math.quantity import PERCENT, Quantity, factor, read_quantity
from archer.rewards.math.text import squash
from archer.rewards.math.units import DEGREES
from archer.rewards.math.verdict import Algebra, Verdict, any_of

_INFINITE = re.compile(r"(?P<sign>[+-]?)\\infty")
_WORDS = re.compile(
    r"\\text\s*\{[^{}]*[A-Za-z][^{}]*\}|(?<![A-Za-z\\])(?!sqrt|sin|cos|tan|log|arc)[A-Za-z]{4,}"
)
_ARTICLE = re.compile(r"^(?:the|an?) ")


def compare_scalars(answer: str, reference: str, algebra: Algebra) -> Verdict:
    """Judge one value, by its spelling, its words, its sign of infinity, its number and its unit."""
    if squash(answer) == squash(reference):
        return bool(answer)
    infinities = [_INFINITE.fullmatch(squash(text)) for text in (answer, reference)]
    if any(infinities):
        signs = {match["sign"] == "-" if match else None for match in infinities}
        return len(signs) == 1
    found, wanted = read_quantity(answer), read_quantity(reference)
    if _WORDS.search(found.value) or _WORDS.search(wanted.value):
        return words(answer) == words(reference) != ""
    return _compare_quantities(found, wanted, algebra)


def words(text: str) -> str:
    """Return the words of a text in small letters, without articles, quotes and brackets."""
    text = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text).lower()
    return _ARTICLE.sub("", " ".join(re.sub(r"[^\w+*/^=<>\\-]", " ", text).split()))


def _compare_quantities(answer: Quantity, reference: Quantity, algebra: Algebra) -> Verdict:
    units = answer.unit, reference.unit
    if answer.unit is not None and reference.unit is not None:
        if answer.unit.measures != reference.unit.measures:
            return False
        scales = factor(answer, in_base_units=True), factor(reference, in_base_units=True)
        return _equal_multiples((answer.value, scales[0]), (reference.value, scales[1]), algebra)
    scales = factor(answer, in_base_units=False), factor(reference, in_base_units=False)
    plain = _equal_multiples((answer.value, scales[0]), (reference.value, scales[1]), algebra)
    if PERCENT in units:
        hundredth = [
            scale / 100 if unit is PERCENT else scale for unit, scale in zip(units, scales, strict=True)
        ]
        part = _equal_multiples((answer.value, hundredth[0]), (reference.value, hundredth[1]), algebra)
        return any_of((plain, part))
    if reference.unit == DEGREES and r"\pi" in answer.value:
        return algebra.same(answer.value, rf"({reference.value})\cdot\frac{{\pi}}{{180}}")
    return plain


def _equal_multiples(
    answer: tuple[str, Fraction], reference: tuple[str, Fraction], algebra: Algebra
) -> Verdict:
    """Compare values times factors."""
    numbers = parse_number(answer[0]), parse_number(reference[0])
    if numbers[0] is not None and numbers[1] is not None:
        if numbers[1].places is not None and _is_undone_division(answer[0], numbers[0]):
            return False
        return numbers_agree(_times(numbers[0], answer[1]), _times(numbers[1], reference[1]))
    ratio = answer[1] / reference[1]
    return algebra.answers(answer[0] if ratio == 1 else _multiple(answer[0], ratio), reference[0])


def _is_undone_division(text: str, number: Number) -> bool:
    return number.value.denominator == 1 and ("/" in text or r"\frac" in text)


def _times(number: Number, scale: Fraction) -> Number:
    return number if scale == 1 else Number(number.value * scale, None)


def _multiple(text: str, ratio: Fraction) -> str:
    return rf"({text})\cdot\frac{{{ratio.numerator}}}{{{ratio.denominator}}}"
