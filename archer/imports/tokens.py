"""Texts to token ids: with the model's tokenizer, or by words where there is none.

Words are no tokens of a model. They make a text readable in the viewer, with places to point at, and no more.
"""

import re
from collections.abc import Sequence
from typing import Any, Protocol

from archer.errors import ArcherError
from archer.imports.trl import as_text
from archer.trace.vocab import Vocab, vocab_from_tokenizer

MAX_WORDS = 2**21
_WORD = re.compile(r"[^\S\n]?\w{1,40}|[^\S\n]?[^\w\s]|\s")


class TextTokenizer(Protocol):
    """Texts in, token ids and their table out."""

    name: str

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        ...

    def prompt(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The tokens of a chat."""
        ...

    def vocab(self) -> Vocab | None:
        """The table of all tokens met so far; None: there is none."""
        ...


class WordTokenizer:
    """Words with the blank before them, single signs, single white space; their bytes where words run out.

    Tokens 0 to 255 are the bytes, so that any text can be written however many words it has.
    """

    name = "words"

    def __init__(self, max_words: int = MAX_WORDS) -> None:
        self._max = max_words
        self._ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; joined, they are the text."""
        ids: list[int] = []
        for word in _WORD.findall(text):
            number = self._ids.get(word)
            if number is None and len(self._ids) < self._max:
                number = self._ids[word] = 256 + len(self._ids)
            ids += word.encode() if number is None else [number]
        return ids

    def prompt(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The tokens of a chat as plain text."""
        return self.encode(as_text(messages))

    def vocab(self) -> Vocab:
        """Bytes, then the words in the order they were met."""
        return Vocab.from_tokens(
            [bytes([byte]) for byte in range(256)] + [word.encode() for word in self._ids]
        )


class ModelTokenizer:
    """The tokenizer of a model, as `transformers` loads it."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        self.name = name
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, no special ones added."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def prompt(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The tokens of a chat, by the chat template where there is one that takes it."""
        if getattr(self._tokenizer, "chat_template", None):
            try:
                text = self._tokenizer.apply_chat_template(
                    list(messages), tokenize=False, add_generation_prompt=True
                )
                return self.encode(text)
            except Exception:  # a template is a program, and refuses what it likes
                return self.encode(as_text(messages))
        return self.encode(as_text(messages))

    def vocab(self) -> Vocab:
        """The model's whole table."""
        return vocab_from_tokenizer(self._tokenizer)


class NoTokenizer:
    """For sources that hold token ids: nothing is known of the texts."""

    name = "none"

    def encode(self, text: str) -> list[int]:
        """There is no text in such a source."""
        raise ArcherError("this source holds token ids; a text was not expected.")

    def prompt(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Nor a chat."""
        raise ArcherError("this source holds token ids; a chat was not expected.")

    def vocab(self) -> None:
        """Tokens can only be shown by their ids."""
