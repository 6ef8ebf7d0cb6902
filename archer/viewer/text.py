"""Token ids as text for a browser: the joined text, and where in it every token starts.

A browser counts a string in UTF-16 units, so that is what the starts are in. The common case, valid UTF-8, is
done on whole arrays; broken bytes go the exact but slower way of `Vocab.decode`.
"""

from dataclasses import dataclass

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
        return _tiled([f"⟨{token_id}⟩" for token_id in ids.tolist()])
    data, edges = _joined_bytes(vocab, ids)
    try:
        text = data.tobytes().decode("utf-8")
    except UnicodeDecodeError:
        return _exact(vocab, ids)
    # A character counts where its first byte stands; those of four bytes are two UTF-16 units.
    units = ((data & 0xC0) != 0x80).astype(np.int32) + (data >= 0xF0)
    before = np.concatenate([np.zeros(1, np.int32), np.cumsum(units, dtype=np.int32)])
    return TokenText(text, before[edges[:-1]])


def token_bytes(vocab: Vocab, ids: NDArray[np.int32]) -> bytes:
    """All bytes of a token sequence."""
    return _joined_bytes(vocab, ids)[0].tobytes()


def _joined_bytes(vocab: Vocab, ids: NDArray[np.int32]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of all tokens one after the other, and the [T + 1] edges between them."""
    known = (ids >= 0) & (ids < len(vocab))
    if not known.all():
        pieces = [vocab.token(int(token_id)) for token_id in ids]
        sizes = np.array([len(piece) for piece in pieces], dtype=np.int64)
        edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        return np.frombuffer(b"".join(pieces), dtype=np.uint8), edges
    first = vocab.offsets[ids]
    sizes = vocab.offsets[ids.astype(np.int64) + 1] - first
    edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    source = np.arange(edges[-1]) + np.repeat(first - edges[:-1], sizes)
    return vocab.data[source], edges


def _exact(vocab: Vocab, ids: NDArray[np.int32]) -> TokenText:
    decoded = vocab.decode(ids.tolist())
    units = np.array([1 + (ord(char) > 0xFFFF) for char in decoded.text], dtype=np.int32)
    before = np.concatenate([np.zeros(1, np.int32), np.cumsum(units, dtype=np.int32)])
    return TokenText(decoded.text, before[decoded.starts])


def _tiled(tokens: list[str]) -> TokenText:
    sizes = np.array([len(token) for token in tokens], dtype=np.int32)
    return TokenText("".join(tokens), (np.cumsum(sizes) - sizes).astype(np.int32))
