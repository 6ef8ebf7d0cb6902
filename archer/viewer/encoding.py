"""What tokens look like on their way to the browser: texts with the starts of their tokens, packed arrays.

A browser counts a string in UTF-16 units, so that is what the starts are in. The common case, valid UTF-8, is
done on whole arrays; broken bytes go the exact but slower way of `Vocab.decode`. Binary answers are packed:

    bytes 0-3   b"ARC1"
    bytes 4-7   uint32, size of the header in bytes
    header      UTF-8 JSON: {..., "arrays": {name: [dtype, offset, count]}}
    arrays      each at a multiple of 8 bytes; offsets count from the end of the padded header
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archer.trace.vocab import Vocab


@dataclass(frozen=True, eq=False)
class TokenText:
    """Token i is `text[starts[i]:starts[i + 1]]`; the last one goes to the end of the text."""

    text: str
    starts: NDArray[np.int32]  # [T] in UTF-16 units


def token_text(vocab: Vocab | None, ids: NDArray[np.int32]) -> TokenText:
    """Text of a token sequence; without a vocabulary every token is its id in brackets."""
    if vocab is None:
        tokens = [f"⟨{token_id}⟩" for token_id in ids.tolist()]
        return TokenText("".join(tokens), _edges([len(token) for token in tokens])[:-1].astype(np.int32))
    data, edges = _joined_bytes(vocab, ids)
    try:
        text, starts = data.tobytes().decode("utf-8"), edges[:-1]
        # A character counts where its first byte stands; those of four bytes are two UTF-16 units.
        units = ((data & 0xC0) != 0x80).astype(np.int32) + (data >= 0xF0)
    except UnicodeDecodeError:
        decoded = vocab.decode(ids.tolist())
        text, starts = decoded.text, decoded.starts
        units = np.array([1 + (ord(char) > 0xFFFF) for char in text], dtype=np.int32)
    return TokenText(text, _edges(units)[starts].astype(np.int32))


def token_bytes(vocab: Vocab, ids: NDArray[np.int32]) -> bytes:
    """All bytes of a token sequence."""
    return _joined_bytes(vocab, ids)[0].tobytes()


def _joined_bytes(vocab: Vocab, ids: NDArray[np.int32]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of all tokens one after the other, and the [T + 1] edges between them."""
    known = (ids >= 0) & (ids < len(vocab))
    if not known.all():
        pieces = [vocab.token(int(token_id)) for token_id in ids]
        return np.frombuffer(b"".join(pieces), dtype=np.uint8), _edges([len(piece) for piece in pieces])
    first = vocab.offsets[ids]
    sizes = vocab.offsets[ids.astype(np.int64) + 1] - first
    edges = _edges(sizes)
    source = np.arange(edges[-1]) + np.repeat(first - edges[:-1], sizes)
    return vocab.data[source], edges


def _edges(sizes: Sequence[int] | np.ndarray) -> NDArray[np.int64]:
    """Where each of some consecutive pieces begins, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """JSON as browsers read it: no NaN, and texts that are no valid Unicode with a question mark in it."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


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
    return b"".join([b"ARC1", struct.pack("<I", len(text)), text, *parts])
