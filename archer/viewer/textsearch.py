"""Search over the responses of a run, step by step: where something is said, and what the metrics are there.

Four ways to ask: `word` (whole words, in upper or lower case), `text` (anywhere), `token` (one token: its
text, or its id after #) and `regex`. A match is the tokens that its characters touch. The means are over the
touched tokens inside the mask that have a finite value; influence keeps its sign.
"""

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from archer.errors import ArcherError
from archer.trace.vocab import Vocab
from archer.viewer.encoding import token_text
from archer.viewer.matcher import spans
from archer.viewer.regexprocess import RegexProcess
from archer.viewer.runs import TracedRun
from archer.viewer.steps import StepData
from archer.viewer.tokens import token_json

MAX_QUERY = 500  # characters
MAX_PER_RESPONSE = 10_000
MAX_EXAMPLES = 40
"""Matches of a step that are listed with their context; all are counted."""
MAX_SPELLINGS = 12
MEANS = ("entropy", "influence")

Mode = Literal["word", "text", "token", "regex"]
MODES: tuple[Mode, ...] = ("word", "text", "token", "regex")


@dataclass(frozen=True)
class Query:
    """What is looked for; checked."""

    text: str
    mode: Mode = "word"
    case: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ArcherError(f"mode is {self.mode[:40]!r}, expected {', '.join(MODES)}.")
        if not 0 < len(self.text) <= MAX_QUERY:
            raise ArcherError(f"the query has {len(self.text)} characters, expected 1 to {MAX_QUERY}.")


@dataclass(frozen=True)
class Match:
    """Tokens `first` to `end` - 1 of a response, and the characters that were found."""

    row: int
    first: int
    end: int
    said: str


def matches_of(query: Query, data: StepData, vocab: Vocab | None, regexes: RegexProcess) -> list[Match]:
    """All matches of a step in reading order; at most MAX_PER_RESPONSE in one response."""
    if query.mode == "token":
        return _token_matches(query, data, vocab)
    texts, starts = _texts(data, vocab)
    if query.mode == "regex":
        found = regexes.find(query.text, texts, ignore_case=not query.case, most=MAX_PER_RESPONSE)
    else:
        pattern = _literal(query)
        found = [spans(pattern, text, MAX_PER_RESPONSE) for text in texts]
    matches = []
    for row, (text, first_chars, edges) in enumerate(zip(texts, starts, found, strict=True)):
        begins, ends = np.array(edges[::2], np.int64), np.array(edges[1::2], np.int64)
        # The token of a character is the last that starts at or before it. Tokens without a character of
        # their own start where the next character does; they continue the one before and are of its match.
        first = np.searchsorted(first_chars, begins, side="right") - 1
        edge = np.append(first_chars, len(text))
        next_token, beyond = (np.searchsorted(edge, ends, side=side) for side in ("left", "right"))
        last = np.where(beyond > next_token, beyond - 1, next_token)
        for begin, end, token, after in zip(begins, ends, first, last, strict=True):
            matches.append(Match(row, int(token), int(after), text[begin:end]))
    return matches


def step_result(query: Query, run: TracedRun, data: StepData, regexes: RegexProcess) -> dict[str, Any]:
    """What a step says to a query: counts, means of the matched tokens, spellings, the first matches."""
    vocab, _ = run.vocab()
    matches = matches_of(query, data, vocab, regexes)
    touched = np.zeros(data.arrays.response_mask.shape, dtype=np.bool_)
    for match in matches:
        touched[match.row, match.first : match.end] = True
    touched &= data.arrays.response_mask
    spellings = Counter(match.said for match in matches)
    result = {
        "step": data.step,
        "matches": len(matches),
        "responses": len({match.row for match in matches}),
        "of_responses": data.arrays.rows,
        "tokens": int(touched.sum()),
        "of_tokens": int(data.arrays.response_mask.sum()),
        "spellings": dict(spellings.most_common(MAX_SPELLINGS)),
        "examples": [
            token_json(data, vocab, match.row, match.first, match.end) | {"step": data.step}
            for match in _spread_out(matches)
        ],
    }
    for name in MEANS:
        values = data.metrics[name][touched].astype(np.float64) if name in data.metrics else np.empty(0)
        finite = values[np.isfinite(values)]
        result[name] = float(finite.mean()) if finite.size else None
        result[f"{name}_tokens"] = int(finite.size)
    return result


def _spread_out(matches: list[Match]) -> list[Match]:
    """The first matches to list: one of every response before a second of any."""
    turn: Counter[int] = Counter()
    ranked = []
    for place, match in enumerate(matches):
        ranked.append((turn[match.row], place, match))
        turn[match.row] += 1
    ranked.sort(key=lambda entry: entry[:2])
    return [match for _, _, match in ranked[:MAX_EXAMPLES]]


def _literal(query: Query) -> re.Pattern[str]:
    """Plain text as an expression that cannot run away: a literal between two looks at one character."""
    words = re.escape(query.text.strip() if query.mode == "word" else query.text)
    whole = rf"(?<!\w){words}(?!\w)" if query.mode == "word" else words
    return re.compile(whole, 0 if query.case else re.IGNORECASE)


def _texts(data: StepData, vocab: Vocab | None) -> tuple[list[str], list[NDArray[np.int64]]]:
    """Text of every response and where its tokens start, in characters."""
    texts, starts = [], []
    for row, span in enumerate(data.spans.tolist()):
        decoded = token_text(vocab, data.arrays.responses[row, :span])
        texts.append(decoded.text)
        points = np.frombuffer(decoded.text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        wide = np.concatenate([[0], np.cumsum(1 + (points > 0xFFFF))])  # UTF-16 units before each character
        starts.append(np.searchsorted(wide, decoded.starts))
    return texts, starts


def _token_matches(query: Query, data: StepData, vocab: Vocab | None) -> list[Match]:
    ids = token_ids(query, vocab)
    inside = np.arange(data.arrays.responses.shape[1]) < data.spans[:, None]
    rows, positions = np.nonzero(np.isin(data.arrays.responses, ids) & inside)
    found = []
    for row, position in zip(rows.tolist(), positions.tolist(), strict=True):
        token = int(data.arrays.responses[row, position])
        said = f"⟨{token}⟩" if vocab is None else vocab.token(token).decode("utf-8", "replace")
        found.append(Match(row, position, position + 1, said))
    return found


def token_ids(query: Query, vocab: Vocab | None) -> list[int]:
    """The tokens a query names: `#id`, or all whose text is it; without case also blanks and case aside."""
    if re.fullmatch(r"#\d{1,9}", query.text):
        return [int(query.text[1:])]
    if vocab is None:
        raise ArcherError("this trace has no vocabulary to look a token up in; ask for its id, as in #1234.")
    exact, folded = _spelled(vocab)
    return exact.get(query.text, []) if query.case else folded.get(query.text.strip().casefold(), [])


@lru_cache(maxsize=4)
def _spelled(vocab: Vocab) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    exact: dict[str, list[int]] = {}
    folded: dict[str, list[int]] = {}
    for token in range(len(vocab)):
        text = vocab.token(token).decode("utf-8", "replace")
        exact.setdefault(text, []).append(token)
        folded.setdefault(text.strip().casefold(), []).append(token)
    return exact, folded
