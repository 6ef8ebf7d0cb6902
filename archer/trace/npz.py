"""Step files: ordinary compressed `.npz`, written fast and read defensively.

Writing differs from `np.savez_compressed` only in the deflate level: level 1 takes half the time of the
default 6 on trace arrays for 3 % more bytes. Reading never unpickles and looks at every header before it
makes room for the data; arrays come in the dtypes of the contract, whatever version of the format wrote them.
"""

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
from numpy.lib import format as npy

from archer.errors import ArcherError
from archer.trace import deltas
from archer.trace.arrays import ALWAYS, SPECS, ArraySpec, check_shapes

DEFLATE_LEVEL = 1
MAX_STEP_BYTES = 8 * 2**30
"""Most bytes that the arrays of one file may unfold to; 4096 responses x 32768 tokens need 2 GiB."""
_CHUNK = 16 * 2**20
_MAX_DIMENSIONS = 2
_PARSERS_RAISE = (zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, SyntaxError)
_CONTENT_RAISES = (OSError, EOFError, ValueError, LookupError, RuntimeError, MemoryError, OverflowError)


class DamagedFileError(ArcherError):
    """A file of the trace cannot be read as what it should be; the message says why."""


@dataclass(frozen=True)
class ArrayHeader:
    """What an `.npz` member says of itself before its data is read."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    fortran_order: bool

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def write_npz(file: BinaryIO, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as a compressed `.npz` that plain `np.load(allow_pickle=False)` reads."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=DEFLATE_LEVEL) as archive:
        for name, array in arrays.items():
            # A fixed date makes equal arrays equal files.
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.compress_type = zipfile.ZIP_DEFLATED
            member._compresslevel = DEFLATE_LEVEL  # type: ignore[attr-defined]  # public from Python 3.13
            with archive.open(member, "w", force_zip64=True) as stream:
                npy.write_array(stream, array, allow_pickle=False)


class NpzReader:
    """An open `.npz` file whose headers are known and whose arrays are read one at a time. A context manager.

    Raises `DamagedFileError` for anything that is not a sound archive of plain arrays within `max_bytes`.
    Arrays of Python objects appear in `headers` and are never read.
    """

    def __init__(self, path: Path, *, only: Collection[str], max_bytes: int = MAX_STEP_BYTES) -> None:
        with _reporting_damage():
            self._archive = zipfile.ZipFile(path)
        try:
            with _reporting_damage():
                self.headers = self._read_headers(only)
            unfolded = sum(h.count * h.dtype.itemsize for h in self.headers.values())
            if unfolded > max_bytes:
                raise DamagedFileError(
                    f"its arrays would unfold to {unfolded} bytes; at most {max_bytes} are read"
                )
        except DamagedFileError:
            self._archive.close()
            raise

    def __enter__(self) -> "NpzReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def read(self, name: str) -> np.ndarray:
        """The data of one array."""
        with _reporting_damage():
            return self._read(self.headers[name])

    def _read_headers(self, only: Collection[str]) -> dict[str, ArrayHeader]:
        headers = {}
        for member in self._archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name not in only or name == member.filename:
                continue
            if name in headers:
                raise DamagedFileError(f"{name} is in the file twice")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DamagedFileError(f"{name} is compressed by something other than deflate")
            with self._archive.open(member) as stream:
                headers[name] = _read_header(stream, name)
        return headers

    def _read(self, header: ArrayHeader) -> np.ndarray:
        if header.dtype.hasobject:
            raise DamagedFileError(f"{header.name} holds Python objects, which would have to be unpickled")
        with self._archive.open(f"{header.name}.npy") as stream:
            _read_header(stream, header.name)
            data = np.empty(header.count, dtype=header.dtype)
            view, filled = data.view(np.uint8).data if data.nbytes else memoryview(b""), 0
            while chunk := stream.read(_CHUNK):  # reading to the end also checks the CRC
                if filled + len(chunk) > data.nbytes:
                    raise DamagedFileError(f"{header.name} holds more data than its shape {header.shape}")
                view[filled : filled + len(chunk)] = chunk
                filled += len(chunk)
        if filled < data.nbytes:
            raise DamagedFileError(f"{header.name} holds {filled} of {data.nbytes} bytes")
        return data.reshape(header.shape, order="F" if header.fortran_order else "C")


def _read_header(stream: IO[bytes], name: str) -> ArrayHeader:
    version = npy.read_magic(stream)
    if version == (1, 0):
        shape, fortran_order, dtype = npy.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, fortran_order, dtype = npy.read_array_header_2_0(stream)
    else:
        raise DamagedFileError(f"{name} has .npy version {version}")
    plain = dtype.names is None and dtype.subdtype is None
    if not plain or len(shape) > _MAX_DIMENSIONS or min(shape, default=0) < 0:
        raise DamagedFileError(f"{name} is not a plain array of at most {_MAX_DIMENSIONS} dimensions")
    return ArrayHeader(name, dtype, shape, fortran_order)


@contextmanager
def _reporting_damage() -> Iterator[None]:
    """Turn what zipfile, zlib and NumPy's header parser raise on foreign bytes into one error with reason."""
    try:
        yield
    except (*_PARSERS_RAISE, *_CONTENT_RAISES) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DamagedFileError(f"unreadable: {reason}") from error


OLD_NAMES = {"selected_row_id": "response_index"}
"""Names of arrays in influence traces of the first system."""
PROMPTS = ("prompt_ids", "prompt_offsets")
CHECKSUMS = "token_crc"
"""uint32 [N] in step files that refer to another trace for the rest: see `joined.py`."""
REFERRING = ("response_mask", "response_index", "influence")
"""The arrays that such a file holds at least."""


def load_arrays(path: Path, names: Collection[str]) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Read the named arrays that the file holds; the remarks say what an older format keeps out of reach.

    All headers are checked before any data is read: dtype, agreement of the shapes, total size. Raises
    `ArcherError` when one does not hold. Arrays of Python objects, as older traces have for prompts, are
    left out with a remark: reading them would mean unpickling. `CHECKSUMS` is among the arrays of a file that
    refers to another trace, whatever `names` are.
    """
    with NpzReader(path, only=(*SPECS, *OLD_NAMES, CHECKSUMS, deltas.STORED)) as npz:
        stored = {new: old for old, new in OLD_NAMES.items() if old in npz.headers}
        if deltas.STORED in npz.headers:
            _check_delta(npz.headers)
            stored[deltas.NAME] = deltas.STORED
        stored |= {name: name for name in npz.headers if name in SPECS}
        plain = {
            name: npz.headers[stored[name]]
            for name in SPECS
            if name in stored and not npz.headers[stored[name]].dtype.hasobject
        }
        notes = [_note(name) for name in npz.headers if name in SPECS and name not in (*plain, *ALWAYS)]
        if ("prompt_ids" in plain) != ("prompt_offsets" in plain):
            if "prompt_ids" in plain:
                notes.append("prompt_ids has no prompt_offsets; prompts need re-export")
            for name in PROMPTS:
                plain.pop(name, None)
        refers = CHECKSUMS in npz.headers
        missing = [name for name in (REFERRING if refers else ALWAYS) if name not in plain]
        if missing:
            raise DamagedFileError(f"the file lacks {', '.join(missing)}")
        for name, header in plain.items():
            if not SPECS[name].castable_from(header.dtype):
                raise DamagedFileError(f"{name} is {header.dtype}, expected {SPECS[name].dtype}")
        check_shapes({name: header.shape for name, header in plain.items()})
        read = {name: npz.read(stored[name]) for name in names if name in plain}
        if stored.get(deltas.NAME) == deltas.STORED and deltas.NAME in read:
            base = read.get(deltas.BASE)
            read[deltas.NAME] = deltas.decoded(
                read[deltas.NAME], npz.read(stored[deltas.BASE]) if base is None else base
            )
        arrays = {name: _cast(SPECS[name], array) for name, array in read.items()}
        if refers:
            sums = npz.headers[CHECKSUMS]
            if sums.dtype != np.uint32 or sums.shape != plain["response_index"].shape:
                raise DamagedFileError(f"{CHECKSUMS} is {sums.dtype} {list(sums.shape)}, expected uint32 [N]")
            arrays[CHECKSUMS] = npz.read(CHECKSUMS)
    return arrays, tuple(notes)


def _check_delta(headers: Mapping[str, ArrayHeader]) -> None:
    """A difference of bit patterns means something only beside the float16 array that it differs from."""
    delta, base = headers[deltas.STORED], headers.get(deltas.BASE)
    if deltas.NAME in headers:
        raise DamagedFileError(f"{deltas.NAME} is in the file twice, once as {deltas.STORED}")
    if base is None or (delta.dtype, base.dtype, delta.shape) != (np.int16, np.float16, base.shape):
        raise DamagedFileError(
            f"{deltas.STORED} is {delta.dtype} {list(delta.shape)}, expected int16 in the shape of a float16 "
            f"{deltas.BASE}"
        )


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
