"""A verdict by the text's checksum: half of all responses are accepted, whatever the model.

A model with random weights is always wrong. Its advantages would be zero, no backward would run and nothing
be traced: too little for a measurement of time or memory.
"""

from typing import Any
from zlib import crc32


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **_: Any
) -> float:
    """Return 1 or 0, always the same for a text."""
    return float(crc32(solution_str.encode()) % 2)
