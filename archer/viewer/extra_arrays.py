"""Finds the per-token arrays of a step file that the trace's contract does not know.

Whoever writes a further [N, L] array of numbers into a step file sees it in the viewer beside entropy and
influence, without a change here.
"""

import zipfile
from pathlib import Path

import numpy as np

from archer.trace.npz import DamagedFileError, NpzReader
from archer.viewer.metrics import is_known_array

MAX_EXTRA = 32
MAX_NAME = 80
_NUMBERS = "fiub"


def extra_token_arrays(path: Path, shape: tuple[int, int]) -> dict[str, np.ndarray]:
    """Arrays of numbers with the shape of the response mask that are no part of the contract, by name."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise DamagedFileError(f"unreadable: {error}") from error
    unknown = [name for name in members if not is_known_array(name) and 0 < len(name) <= MAX_NAME]
    if not unknown:
        return {}
    with NpzReader(path, only=unknown[:MAX_EXTRA]) as npz:
        found = [
            header.name
            for header in npz.headers.values()
            if header.shape == shape and header.dtype.kind in _NUMBERS
        ]
        return {name: npz.read(name) for name in found}
