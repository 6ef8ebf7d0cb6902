"""The viewer's binary answers: a small JSON header and little-endian arrays behind it.

bytes 0-3   b"ARC1"
bytes 4-7   uint32, size of the header in bytes
header      UTF-8 JSON: {..., "arrays": {name: [dtype, offset, count]}}
arrays      each at a multiple of 8 bytes; offsets count from the end of the padded header
"""

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

MAGIC = b"ARC1"
MEDIA_TYPE = "application/octet-stream"
_CODES: dict[str, np.dtype] = {"f4": np.dtype("<f4"), "i4": np.dtype("<i4"), "u1": np.dtype("u1")}


def pack(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """One buffer of a header and its arrays, which must be float32, int32 or uint8."""
    places: dict[str, tuple[str, int, int]] = {}
    parts: list[bytes] = []
    offset = 0
    for name, array in arrays.items():
        code = next(code for code, dtype in _CODES.items() if dtype == array.dtype)
        data = np.ascontiguousarray(array, dtype=_CODES[code]).tobytes()
        data += b"\0" * (-len(data) % 8)
        places[name] = (code, offset, int(array.size))
        parts.append(data)
        offset += len(data)
    text = json.dumps({**header, "arrays": places}, allow_nan=False, ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % 8)
    return b"".join([MAGIC, struct.pack("<I", len(text)), text, *parts])


def unpack(buffer: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The inverse of `pack`."""
    if buffer[:4] != MAGIC:
        raise ValueError("not a packed answer of the viewer")
    (size,) = struct.unpack("<I", buffer[4:8])
    header = json.loads(buffer[8 : 8 + size])
    start = 8 + size
    arrays = {
        name: np.frombuffer(buffer, _CODES[code], count, start + offset)
        for name, (code, offset, count) in header.pop("arrays").items()
    }
    return header, arrays
