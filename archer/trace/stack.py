"""Rows of several steps as one step: a validation that was recorded in parts."""

from collections.abc import Sequence

import numpy as np

from archer.trace.arrays import OUTSIDE_MASK, SPECS
from archer.trace.schema import TraceStep


def stacked(parts: Sequence[TraceStep]) -> TraceStep:
    """Join at least one step row by row, as wide as the widest.

    What one part holds and another lacks is empty there: no text, zero, NaN for influence.
    """
    held = [part.arrays() for part in parts]
    width = max(part.response_mask.shape[1] for part in parts)
    joined: dict[str, np.ndarray] = {}
    for name in SPECS:
        if not any(name in arrays for arrays in held) or SPECS[name].layout in ("flat", "offsets"):
            continue
        rows = [
            _filled(name, arrays.get(name), part, width) for arrays, part in zip(held, parts, strict=True)
        ]
        joined[name] = np.concatenate(rows)
    if all("prompt_offsets" in arrays and "prompt_ids" in arrays for arrays in held):
        lengths = np.concatenate([np.diff(arrays["prompt_offsets"]) for arrays in held])
        joined["prompt_ids"] = np.concatenate([arrays["prompt_ids"] for arrays in held])
        joined["prompt_offsets"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return TraceStep(**joined)


def first_rows(step: TraceStep, count: int) -> TraceStep:
    """The first rows of a step, cut to the longest of them."""
    width = int(step.lengths[:count].max(initial=0))
    cut = {
        name: np.ascontiguousarray(array[:count, :width] if SPECS[name].layout == "token" else array[:count])
        for name, array in step.arrays().items()
        if SPECS[name].layout in ("token", "row")
    }
    if step.prompt_ids is not None and step.prompt_offsets is not None:
        offsets = step.prompt_offsets[: count + 1]
        cut |= {"prompt_offsets": offsets, "prompt_ids": step.prompt_ids[: offsets[-1]]}
    return TraceStep(**cut)


def _filled(name: str, array: np.ndarray | None, part: TraceStep, width: int) -> np.ndarray:
    spec = SPECS[name]
    outside = OUTSIDE_MASK.get(name, "" if spec.dtype == "U" else 0)
    if array is None:
        shape = part.response_mask.shape if spec.layout == "token" else (part.rows,)
        array = np.full(shape, outside, dtype="U1" if spec.dtype == "U" else spec.dtype)
    if spec.layout != "token":
        return array
    missing = width - array.shape[1]
    return np.pad(array, ((0, 0), (0, missing)), constant_values=np.array(outside, dtype=array.dtype))
