"""When a value of the program agrees with one that was read from JSON."""

import math
from typing import Any

TOLERANCE = 1e-6


def numbers_agree(value: float, expected: float) -> bool:
    """Compare with a tolerance of 1e-6, absolute below 1 and relative above; NaN and infinities exactly."""
    if math.isfinite(value) and math.isfinite(expected):
        return math.isclose(value, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return value == expected or (math.isnan(value) and math.isnan(expected))


def values_agree(value: Any, expected: Any) -> bool:
    """Compare a program's value with one that was read from JSON.

    JSON has neither tuples nor keys that are no strings, so a tuple may stand for a list, and a key agrees
    with its text. Where a float is expected, numbers agree within a tolerance; everywhere else exactly.
    """
    if isinstance(expected, list):
        return (
            isinstance(value, list | tuple)
            and len(value) == len(expected)
            and all(map(values_agree, value, expected))
        )
    if isinstance(expected, dict):
        if not isinstance(value, dict) or len(value) != len(expected):
            return False
        texts = {key if isinstance(key, str) else str(key): item for key, item in value.items()}
        return texts.keys() == expected.keys() and all(
            values_agree(texts[key], item) for key, item in expected.items()
        )
    if isinstance(expected, float) and isinstance(value, int | float):
        try:
            return numbers_agree(float(value), expected)
        except OverflowError:  # an integer beyond all floats
            return False
    return bool(value == expected)
