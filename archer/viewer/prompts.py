"""What tells the prompts of a step apart: without chat markup and what all share at begin and end."""

import hashlib
import re

import numpy as np
from numpy.typing import NDArray

from archer.trace.vocab import Vocab
from archer.viewer.encoding import token_bytes, token_text
from archer.viewer.steps import StepData

MAX_TOLD = 400
"""Characters of a preview."""
MIN_TOLD = 40
"""A preview shorter than this gets back words that the prompts share, so that it can be read."""
MAX_TEXT = 4_000_000
"""Characters of all prompts of one step; beyond it each is cut."""

_ROLES = r"(?:system|user|assistant|human|model|tool)"
_MARKUP = re.compile(
    rf"<\|start_header_id\|>\s*{_ROLES}?\s*<\|end_header_id\|>"
    rf"|<\|im_start\|>\s*{_ROLES}?[ \t]*\n?"
    rf"|<start_of_turn>\s*{_ROLES}?[ \t]*\n?"
    rf"|<[|\uff5c](?:User|Assistant|System|user|assistant|system)[|\uff5c]>"
    r"|<[|\uff5c][^<>|\uff5c\n]{1,40}[|\uff5c]>|<end_of_turn>|</?s>|<bos>|<eos>|\[/?INST\]|<</?SYS>>"
)


def without_markup(text: str) -> str:
    """A prompt without the marks and role names of chat templates; blanks and lines become single blanks."""
    return " ".join(_MARKUP.sub(" ", text).split())


def told_apart(texts: list[str]) -> list[str]:
    """For each prompt what distinguishes it: no markup, no words that all prompts begin or end with.

    Equal prompts stay equal. A step of one prompt has nothing to compare with and keeps its words.
    """
    plain = [without_markup(text) for text in texts]
    distinct = list(dict.fromkeys(plain))
    begin = _shared_words(distinct)
    end = _shared_words([text[begin:][::-1] for text in distinct])
    longest = max((len(text) - begin - end for text in distinct), default=0)
    while begin and longest < MIN_TOLD:  # give words back, the nearest first
        before = max(plain[0].rfind(" ", 0, begin - 1) + 1, 0)
        longest += begin - before
        begin = before
    return [_shown(text, begin, end) for text in plain]


def _shared_words(texts: list[str]) -> int:
    """Characters of the whole words that all texts begin with; none where there is one text only."""
    if len(texts) < 2:
        return 0
    low, high = min(texts), max(texts)  # what these two share all between them share
    differ = (place for place, (a, b) in enumerate(zip(low, high, strict=False)) if a != b)
    shared = low[: next(differ, len(low))]
    # a text that is itself the beginning of all others ends between two words
    whole = all(len(text) == len(shared) or text[len(shared)] == " " for text in texts)
    return len(shared) if whole else shared.rfind(" ") + 1


def _shown(text: str, begin: int, end: int) -> str:
    kept = text[begin : len(text) - end].strip() or text
    if len(kept) > MAX_TOLD:
        return f"{'… ' if begin else ''}{kept[: MAX_TOLD - 1]}…"
    marks = ("… " if begin and kept != text else "", " …" if end and kept != text else "")
    return f"{marks[0]}{kept}{marks[1]}"


def prompt_key(vocab: Vocab | None, ids: NDArray[np.int32]) -> str:
    """The same for the same prompt in any step of any run: a digest of its text, or else of its ids."""
    content = ids.tobytes() if vocab is None else token_bytes(vocab, ids)
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def prompt_id(data: StepData, row: int, key: str | None) -> str | None:
    """What a prompt is found by in other steps: its `sample_index`, else the digest of its text."""
    if data.arrays.sample_index is not None and data.arrays.sample_index[row] >= 0:
        return f"sample:{int(data.arrays.sample_index[row])}"
    return None if key is None else f"text:{key}"


def prompt_texts(data: StepData, rows: list[int], vocab: Vocab | None) -> list[str | None]:
    """Whole prompts of some rows, cut alike where a step's prompts together are too much for one answer."""
    most = max(MAX_TEXT // max(len(rows), 1), 1000)
    held = [data.arrays.prompt(row) for row in rows]
    return [None if prompt is None else token_text(vocab, prompt).text[:most] for prompt in held]
