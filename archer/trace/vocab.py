"""`vocab.npz`: token id -> bytes, so that a trace is readable with no tokenizer at hand.

Bytes, not text: one character may be spread over several tokens, and decoding those one at a time breaks
it. Text is made from the joined bytes, and each character belongs to the token that holds its first byte.

A tokenizer's vocabulary writes tokens in its own spelling: `Ġthe`, `▁the`, `##ing`, `<0x0A>`. How the
spelling turns into text is said by its decoder, and those steps are applied token by token. Steps that look
at the whole sequence (fusing, stripping the blank at the very start) have no meaning for one token and are
left out: a token is what it adds in the middle of a text.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archer.errors import ArcherError
from archer.files import replace_atomically
from archer.trace.files import VOCAB, regular_file_inside
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
    plain = (data.dtype, offsets.dtype) == (np.uint8, np.int64) and data.ndim == offsets.ndim == 1
    if (
        not plain
        or not offsets.size
        or offsets[0] != 0
        or offsets[-1] != data.size
        or (np.diff(offsets) < 0).any()
    ):
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


SpellingStep = Callable[[bytes], bytes]
_BYTE_TOKEN = re.compile(rb"<0x([0-9A-Fa-f]{2})>")


def vocab_from_tokenizer(tokenizer: Any) -> Vocab:
    """Make the byte table of a `transformers` tokenizer (or of a bare `tokenizers.Tokenizer`).

    Added and special tokens stand for their own text. Ids without a token get the placeholder `<|id|>`.
    """
    spellings = {index: token for token, index in tokenizer.get_vocab().items()}
    added = _added_tokens(tokenizer)
    spellings.update(added)
    if not spellings:
        raise ArcherError("the tokenizer has an empty vocabulary; expected a trained one.")
    to_bytes = _speller(tokenizer, [token for index, token in spellings.items() if index not in added])
    table = [f"<|{index}|>".encode() for index in range(max(spellings) + 1)]
    for index, spelling in spellings.items():
        table[index] = spelling.encode() if index in added else to_bytes(spelling)
    return Vocab.from_tokens(table)


def _added_tokens(tokenizer: Any) -> dict[int, str]:
    if hasattr(tokenizer, "added_tokens_decoder"):  # transformers
        return {index: str(token) for index, token in tokenizer.added_tokens_decoder.items()}
    return {index: token.content for index, token in tokenizer.get_added_tokens_decoder().items()}


def _speller(tokenizer: Any, ordinary: list[str]) -> Callable[[str], bytes]:
    backend = tokenizer.backend_tokenizer if hasattr(tokenizer, "backend_tokenizer") else tokenizer
    if hasattr(tokenizer, "sp_model"):  # sentencepiece without a `tokenizers` twin
        return lambda token: _from_byte_fallback(token.replace("▁", " ").encode())
    if not hasattr(backend, "to_str"):  # a tokenizer written in Python says what a token is by converting it
        return lambda token: tokenizer.convert_tokens_to_string([token]).encode()
    decoder = json.loads(backend.to_str())["decoder"]
    if decoder is None:
        # `tokenizers` then joins by blanks. A vocabulary with a blank in it (characters) does not want that.
        separator = b"" if any(" " in token for token in ordinary) else b" "
        return lambda token: separator + token.encode()
    steps = _steps(decoder)

    def spell(token: str) -> bytes:
        data = token.encode()
        for step in steps:
            data = step(data)
        return data

    return spell


def _steps(decoder: dict[str, Any]) -> list[SpellingStep]:
    kind = decoder["type"]
    if kind == "Sequence":
        return [step for part in decoder["decoders"] for step in _steps(part)]
    if kind in ("Fuse", "Strip"):
        return []
    if kind == "ByteLevel":
        return [_from_byte_level]
    if kind == "ByteFallback":
        return [_from_byte_fallback]
    if kind == "Metaspace":
        return [_replacing(decoder["replacement"], " ")]
    if kind == "Replace":
        if "String" not in decoder["pattern"]:
            raise ArcherError(
                f"the tokenizer's decoder replaces by {decoder['pattern']}; only plain strings are known."
            )
        return [_replacing(decoder["pattern"]["String"], decoder["content"])]
    if kind == "WordPiece":
        prefix = decoder["prefix"].encode()
        return [lambda data: data.removeprefix(prefix) if data.startswith(prefix) else b" " + data]
    if kind == "BPEDecoder":
        return [_replacing(decoder["suffix"], " ")]
    raise ArcherError(
        f"the tokenizer's decoder has a step {kind!r} whose bytes per token are not known; "
        "expected ByteLevel, ByteFallback, Metaspace, Replace, WordPiece, BPEDecoder, Fuse or Strip."
    )


def _replacing(old: str, new: str) -> SpellingStep:
    return lambda data: data.replace(old.encode(), new.encode())


def _from_byte_fallback(data: bytes) -> bytes:
    match = _BYTE_TOKEN.fullmatch(data)
    return bytes([int(match[1], 16)]) if match else data


def _byte_level_alphabet() -> dict[str, int]:
    """Byte-level BPE writes printable bytes of Latin-1 as themselves and the other 68 as U+0100, U+0101,
    ... in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_level_alphabet()


def _from_byte_level(data: bytes) -> bytes:
    """Characters outside the alphabet can only come from a token that was added as plain text."""
    token = data.decode()
    if all(char in _BYTE_OF_CHAR for char in token):
        return bytes(_BYTE_OF_CHAR[char] for char in token)
    return data
