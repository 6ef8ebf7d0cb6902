"""Whether a value can be one of a setting of verl's, which itself finds out in its workers, minutes later.

Known of each setting is its default. A number takes the place of a number, True or False that of True or
False; no number is NaN. What has no default, or text or a list, is verl's to read.
"""

import math
from typing import Any


def value_problem(value: Any, default: Any) -> str | None:
    """Return what was expected instead of this value, or None where it may stand."""
    if any(isinstance(each, float) and math.isnan(each) for each in _scalars(value)):
        return "expected a number that is not NaN"
    if value is None or isinstance(value, bool | int | float):
        is_flag = isinstance(value, bool) and isinstance(default, int | float)
        return "expected a number" if is_flag and not isinstance(default, bool) else None
    if isinstance(default, bool):
        return "expected True or False"
    return "expected a number" if isinstance(default, int | float) else None


def _scalars(value: Any) -> list[Any]:
    """All plain values in nested lists and dictionaries."""
    if isinstance(value, dict):
        return [scalar for inner in value.values() for scalar in _scalars(inner)]
    if isinstance(value, list | tuple):
        return [scalar for inner in value for scalar in _scalars(inner)]
    return [value]
