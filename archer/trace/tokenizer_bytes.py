"""The exact bytes of every token of a Hugging Face tokenizer.

A tokenizer's vocabulary writes tokens in its own spelling: `Ġthe`, `▁the`, `##ing`, `<0x0A>`. How the
spelling turns into text is said by its decoder, and those steps are applied here token by token. Steps that
look at the whole sequence (fusing, stripping the blank at the very start) have no meaning for one token and
are left out: a token is what it adds in the middle of a text.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from archer.errors import ArcherError
from archer.trace.vocab import Vocab

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
