"""Influence steps that refer to the entropy trace beside them, instead of repeating its arrays.

Such a step file holds what is its own (`OWN`) and a checksum of every response's tokens. All else is in the
step file of the same number in the entropy trace: the row of the same `response_index`, cut to this file's
width. The checksums tell when the two files do not belong together.
"""

import zlib
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from archer.errors import ArcherError
from archer.trace.arrays import SPECS
from archer.trace.files import STEPS_FOLDER, regular_file_inside, sibling_folder, step_file_name
from archer.trace.npz import CHECKSUMS, DamagedFileError, load_arrays
from archer.trace.schema import TraceStep

OWN = ("response_index", "response_mask", "influence", "advantage")
_KEYS = ("response_index", "response_mask", "responses")
_RAGGED = ("prompt_ids", "prompt_offsets")


def own_arrays(step: TraceStep) -> dict[str, np.ndarray]:
    """What a step file that refers holds."""
    held = step.arrays()
    own = {name: held[name] for name in OWN if name in held}
    return own | {CHECKSUMS: checksums(step.responses, step.response_mask)}


def checksums(
    responses: NDArray[np.int32],  # [N, L]
    mask: NDArray[np.bool_],  # [N, L]
) -> NDArray[np.uint32]:  # [N]
    """CRC-32 of the valid tokens of each response, as little-endian int32."""
    rows = zip(responses, mask, strict=True)
    return np.array([zlib.crc32(row[valid].astype("<i4").tobytes()) for row, valid in rows], dtype=np.uint32)


def referred_arrays(
    folder: Path, name: str | None, step: int, wanted: Collection[str]
) -> dict[str, np.ndarray]:
    """Arrays of a step of the trace `name` beside `folder`, with those that rows are found by."""
    if name is None:
        raise DamagedFileError(
            "the file refers to an entropy trace that summary.json does not name; restore summary.json"
        )
    beside = sibling_folder(folder, name)
    if not beside.is_dir():
        raise DamagedFileError(
            f"it takes its tokens from the trace {name}, which is not beside {folder}; move both folders "
            "together, or make this one stand alone where both are (`archer trace convert`)"
        )
    path = regular_file_inside(beside, f"{STEPS_FOLDER}/{step_file_name(step)}")
    if path is None:
        raise DamagedFileError(f"it takes its tokens from the trace {name}, which has no step {step}")
    try:
        arrays, _ = load_arrays(path, {*wanted, *_KEYS, *(_RAGGED if set(wanted) & set(_RAGGED) else ())})
    except ArcherError as error:
        raise DamagedFileError(f"it takes its tokens from the trace {name}: {error}") from error
    return arrays


def join(
    own: Mapping[str, np.ndarray],  # of the file that refers: index and mask at least
    sums: NDArray[np.uint32],  # [N] its checksums
    other: Mapping[str, np.ndarray],  # of the whole step: index, mask and tokens at least
) -> dict[str, np.ndarray]:
    """Return the arrays of both, for the rows of `own`; refuses rows that are other responses there."""
    if CHECKSUMS in other:
        raise DamagedFileError("the trace that it refers to refers to another one")
    width = own["response_mask"].shape[1]
    place = {index: row for row, index in enumerate(other["response_index"].tolist())}
    missing = [index for index in own["response_index"].tolist() if index not in place]
    if missing:
        raise DamagedFileError(f"response {missing[0]} is not in the entropy trace that it refers to")
    rows = np.array([place[index] for index in own["response_index"].tolist()], dtype=np.int64)
    different = np.flatnonzero(checksums(other["responses"][rows], other["response_mask"][rows]) != sums)
    if different.size or other["responses"].shape[1] < width:
        which = int(own["response_index"][different[0]]) if different.size else 0
        raise DamagedFileError(
            f"response {which} is another one in the entropy trace that it refers to; the two folders are "
            "of different runs, or one of them was written again"
        )
    taken = {name: array for name, array in other.items() if name not in own and name not in _RAGGED}
    cut = {
        name: np.ascontiguousarray(array[rows, :width] if SPECS[name].layout == "token" else array[rows])
        for name, array in taken.items()
    }
    if all(name in other for name in _RAGGED):
        cut |= _prompts(other["prompt_ids"], other["prompt_offsets"], rows)
    return {name: value for name in SPECS if (value := own.get(name, cut.get(name))) is not None}


def _prompts(ids: np.ndarray, offsets: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
    lengths = np.diff(offsets)[rows]
    parts = [ids[offsets[row] : offsets[row + 1]] for row in rows]
    return {
        "prompt_ids": np.concatenate([np.empty(0, np.int32), *parts]),
        "prompt_offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    }
