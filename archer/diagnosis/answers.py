"""Accepted responses whose answer is not the expected one."""

import re
from dataclasses import dataclass

import numpy as np

from archer.trace.schema import TraceStep
from archer.trace.vocab import Vocab

_WHOLE = re.compile(r"-?[0-9]{1,15}(?:\.0{1,4})?")
_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True)
class Doubtful:
    """The rows in doubt, and how many accepted responses could be checked."""

    rows: list[int]
    told: int


def doubtful_rows(arrays: TraceStep, vocab: Vocab | None) -> Doubtful | None:
    """Accepted responses without the expected number; None: the trace cannot tell.

    A response is in doubt where the verifier took another whole number out of it than the expected one, or
    where the expected number stands nowhere in its text. Ground truths that are no whole numbers can be
    written in many ways: their responses are not counted.
    """
    if arrays.ground_truth is None or arrays.accepted is None:
        return None
    rows, told = [], 0
    for row in np.flatnonzero(arrays.judged & arrays.accepted):
        truth = _whole(str(arrays.ground_truth[row]))
        if truth is None:
            continue
        said = "" if arrays.extracted_answer is None else str(arrays.extracted_answer[row])
        answer = _whole(said)
        if answer is None and vocab is None and not said:
            continue
        told += 1
        if answer is not None:
            agrees = answer == truth
        else:
            agrees = str(abs(truth)) in _numbers(said) or _stands_in(arrays, int(row), truth, vocab)
        if not agrees:
            rows.append(int(row))
    return Doubtful(rows, told)


def _whole(text: str) -> int | None:
    """The whole number that a text is, written as people write it."""
    clean = text.strip().strip("$").replace(",", "").rstrip(".")
    return int(clean.split(".")[0]) if _WHOLE.fullmatch(clean) else None


def _numbers(text: str) -> set[str]:
    return {number.lstrip("0") or "0" for number in _NUMBER.findall(text.replace(",", ""))}


def _stands_in(arrays: TraceStep, row: int, truth: int, vocab: Vocab | None) -> bool:
    if vocab is None:
        return True  # nothing can be said against it
    tokens = arrays.responses[row][arrays.response_mask[row]].tolist()
    text = b"".join(vocab.token(token) for token in tokens).decode("utf-8", "replace")
    return str(abs(truth)) in _numbers(text)
