"""Whether a program printed what it was to print."""

import math
import re

from archer.rewards.code.inside.agreement import numbers_agree

_INTEGER = re.compile(r"[+-]?[0-9]{1,400}")
_DECIMAL = re.compile(
    r"[+-]?(?:[0-9]{1,400}\.[0-9]{0,400}|\.[0-9]{1,400}|[0-9]{1,400}(?=[eE]))(?:[eE][+-]?[0-9]{1,4})?"
)


def outputs_agree(printed: str, expected: str) -> bool:
    """Compare line by line and word by word.

    White space counts only as what separates words and lines; empty lines at the ends do not count. Where a
    decimal fraction is expected, a number may differ by 1e-6 (relative above 1); where an integer is
    expected, `3.0` is as good as `3`.
    """
    if printed == expected:
        return True
    printed_lines, expected_lines = printed.strip().split("\n"), expected.strip().split("\n")
    return len(printed_lines) == len(expected_lines) and all(map(_lines_agree, printed_lines, expected_lines))


def _lines_agree(printed: str, expected: str) -> bool:
    printed_words, expected_words = printed.split(), expected.split()
    return len(printed_words) == len(expected_words) and all(map(_words_agree, printed_words, expected_words))


def _words_agree(printed: str, expected: str) -> bool:
    if printed == expected:
        return True
    if _INTEGER.fullmatch(expected):
        whole, point, fraction = printed.partition(".")
        return point == "." and whole == expected and not fraction.strip("0")
    if _DECIMAL.fullmatch(expected) and (_DECIMAL.fullmatch(printed) or _INTEGER.fullmatch(printed)):
        return math.isfinite(float(expected)) and numbers_agree(float(printed), float(expected))
    return False
