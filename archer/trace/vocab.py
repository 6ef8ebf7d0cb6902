"""`vocab.npz`: token id -> bytes, so that a trace is readable with no tokenizer at hand.

Bytes, not text: one character may be spread over several tokens, and decoding those one at a time breaks
it. Text is made from the joined bytes, and each character belongs to the token that holds its first byte.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from archer.trace.files import VOCAB, regular_file_inside, replace_atomically
from archer.trace.npz import DamagedFileError, NpzReader, write_npz

MAX_VOCAB_BYTES = 2**30


@dataclass(frozen=True, eq=False)
class DecodedText:
    """The text of a token sequence; token i is `text[starts[i]:ends[i]]`, and the spans tile the text.

    A token that only continues a character begun by an earlier token has an empty span.
    """

    text: str
    starts: NDArray[np.int64]  # [T] in characters
    ends: NDArray[np.int64]  # [T]

    def tokens(self) -> list[str]:
        """The text of every token."""
        return [self.text[start:end] for start, end in zip(self.starts, self.ends, strict=True)]


@dataclass(frozen=True, eq=False)
class Vocab:
    """The bytes of every token: token i is `data[offsets[i]:offsets[i + 1]]`."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]  # [V + 1]

    @classmethod
    def from_tokens(cls, tokens: Sequence[bytes]) -> "Vocab":
        """Make the table from the bytes of tokens 0, 1, ..."""
        lengths = np.array([len(token) for token in tokens], dtype=np.int64)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return cls(np.frombuffer(b"".join(tokens), dtype=np.uint8), offsets)

    def __len__(self) -> int:
        return self.offsets.size - 1

    def token(self, token_id: int) -> bytes:
        """Bytes of a token; an id the tokenizer does not know (models pad their vocabulary) is written
        `<|id|>`.
        """
        if not 0 <= token_id < len(self):
            return f"<|{token_id}|>".encode()
        return self.data[self.offsets[token_id] : self.offsets[token_id + 1]].tobytes()

    def decode(self, token_ids: Iterable[int]) -> DecodedText:
        """Text of a sequence with the character span of every token."""
        return decode_bytes([self.token(int(token_id)) for token_id in token_ids])

    def equals(self, other: "Vocab") -> bool:
        """Whether both tables hold the same bytes for the same ids."""
        return np.array_equal(self.data, other.data) and np.array_equal(self.offsets, other.offsets)


def write_vocab(folder: Path, vocab: Vocab, *, fsync: bool) -> None:
    """Write the table into a trace folder."""
    arrays: dict[str, np.ndarray] = {"data": vocab.data, "offsets": vocab.offsets}
    replace_atomically(folder / VOCAB, lambda file: write_npz(file, arrays), fsync=fsync)


def read_vocab(folder: Path) -> Vocab | None:
    """The table of a trace folder, None where there is none; a damaged one raises `DamagedFileError`."""
    path = regular_file_inside(folder, VOCAB)
    if path is None:
        return None
    try:
        return _read_table(path)
    except DamagedFileError as error:
        raise DamagedFileError(f"{path}: {error}") from error


def _read_table(path: Path) -> Vocab:
    with NpzReader(path, only=("data", "offsets"), max_bytes=MAX_VOCAB_BYTES) as npz:
        if set(npz.headers) != {"data", "offsets"}:
            raise DamagedFileError(f"it holds {sorted(npz.headers)}, expected data and offsets")
        data, offsets = npz.read("data"), npz.read("offsets")
    sound = (data.dtype, offsets.dtype, data.ndim, offsets.ndim) == (
        np.uint8,
        np.int64,
        1,
        1,
    ) and offsets.size > 0
    if not sound or offsets[0] != 0 or offsets[-1] != data.size or (np.diff(offsets) < 0).any():
        raise DamagedFileError("offsets do not divide the bytes into tokens")
    return Vocab(data, offsets)


def decode_bytes(tokens: Sequence[bytes]) -> DecodedText:
    """Decode the joined bytes of tokens as UTF-8, bad bytes as U+FFFD, and find the characters of each token.

    A character belongs to the token that holds its first byte.
    """
    joined = b"".join(tokens)
    sizes = _char_sizes(joined)
    first_bytes = np.cumsum(sizes) - sizes
    edges = np.cumsum([0] + [len(token) for token in tokens])
    bounds = np.searchsorted(first_bytes, edges, side="left").astype(np.int64)
    return DecodedText(joined.decode("utf-8", "replace"), bounds[:-1], bounds[1:])


def _char_sizes(data: bytes) -> NDArray[np.int64]:
    """Bytes of every character of `data.decode("utf-8", "replace")`.

    Decoding with escaped bytes gives one code point per character or bad byte; the bad bytes that share one
    U+FFFD are then merged.
    """
    escaped = data.decode("utf-8", "surrogateescape").encode("utf-32-le", "surrogatepass")
    points = np.frombuffer(escaped, dtype="<u4")
    bad = (points >= 0xDC80) & (points <= 0xDCFF)
    sizes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    sizes[bad] = 1
    first_bytes = np.cumsum(sizes) - sizes
    kept = np.ones(points.size, dtype=np.bool_)
    merged_until = 0
    for index in np.flatnonzero(bad):
        if index < merged_until:
            kept[index] = False
        else:
            start = int(first_bytes[index])
            sizes[index] = _broken_size(data[start : start + 4])
            merged_until = index + sizes[index]
    return sizes[kept]


def _broken_size(window: bytes) -> int:
    """How many bytes at the start of `window`, which starts with bad UTF-8, become one U+FFFD."""
    try:
        window.decode()
    except UnicodeDecodeError as error:
        return error.end
    raise AssertionError(f"{window!r} is valid UTF-8")
