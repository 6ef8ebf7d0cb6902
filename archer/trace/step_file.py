"""Loads the arrays of a step file into contract dtypes, whatever version of the format wrote it."""

from collections.abc import Collection
from pathlib import Path

import numpy as np

from archer.trace.npz import DamagedFileError, NpzReader
from archer.trace.schema import ALWAYS, SPECS, ArraySpec, check_shapes

PROMPTS = ("prompt_ids", "prompt_offsets")


def load_arrays(path: Path, names: Collection[str]) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Read the named arrays that the file holds; the remarks say what an older format keeps out of reach.

    All headers are checked before any data is read: dtype, agreement of the shapes, total size. Raises
    `ArcherError` when one does not hold. Arrays of Python objects, as older traces have for prompts, are
    left out with a remark: reading them would mean unpickling.
    """
    with NpzReader(path, only=tuple(SPECS)) as npz:
        plain = {name: header for name, header in npz.headers.items() if not header.dtype.hasobject}
        notes = [_note(name) for name in npz.headers if name not in plain and name not in ALWAYS]
        if ("prompt_ids" in plain) != ("prompt_offsets" in plain):
            if "prompt_ids" in plain:
                notes.append("prompt_ids has no prompt_offsets; prompts need re-export")
            for name in PROMPTS:
                plain.pop(name, None)
        missing = [name for name in ALWAYS if name not in plain]
        if missing:
            raise DamagedFileError(f"the file lacks {', '.join(missing)}")
        for name, header in plain.items():
            if not SPECS[name].castable_from(header.dtype):
                raise DamagedFileError(f"{name} is {header.dtype}, expected {SPECS[name].dtype}")
        check_shapes({name: header.shape for name, header in plain.items()})
        arrays = {name: _cast(SPECS[name], npz.read(name)) for name in names if name in plain}
    return arrays, tuple(notes)


def _note(name: str) -> str:
    if name in PROMPTS:
        return "prompts are stored as Python objects, which are never unpickled; prompts need re-export"
    return f"{name} is stored as Python objects, which are never unpickled; it needs re-export"


def _cast(spec: ArraySpec, array: np.ndarray) -> np.ndarray:
    if spec.dtype == "U":
        return array
    target = np.dtype(spec.dtype)
    if target.kind == "i" and array.size:
        bounds = np.iinfo(target)
        if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
            raise DamagedFileError(f"{spec.name} holds values outside {spec.dtype}")
    with np.errstate(over="ignore"):
        return array.astype(target, copy=False)
