"""Statistics of a traced step that the rules need."""

import re
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from archer.diagnosis.evidence import TraceFacts, ViewerPlace
from archer.diagnosis.thresholds import Thresholds
from archer.trace.schema import TraceStep
from archer.trace.vocab import Vocab

_WHOLE = re.compile(r"-?[0-9]{1,15}")
_NUMBER = re.compile(r"[0-9]+")
TAIL = 512  # tokens at a response's end in which loops are looked for: a loop lasts until the end
LONGEST_PERIOD = 64


def trace_facts(step: int, arrays: TraceStep, vocab: Vocab | None, limits: Thresholds) -> TraceFacts:
    """Read what the rules need out of one step's arrays."""
    accepted = arrays.judged & arrays.accepted if arrays.accepted is not None else np.zeros(arrays.rows, bool)
    loops = looping_rows(arrays.responses, arrays.lengths, limits.loop_tokens)
    doubtful = doubtful_rows(arrays, accepted, vocab)
    copies = duplicated_groups(arrays)

    def first(rows: NDArray[np.int64] | list[int]) -> ViewerPlace | None:
        return None if not len(rows) else _place(step, arrays, int(rows[0]))

    return TraceFacts(
        rows=arrays.rows,
        unjudged=int((~arrays.judged).sum()),
        accepted=int(accepted.sum()),
        doubtful=None if doubtful is None else len(doubtful),
        doubtful_place=None if doubtful is None else first(doubtful),
        duplicated=None if copies is None else copies[0],
        duplicated_place=None if copies is None else first(copies[1]),
        looping=float(loops.mean()) if arrays.rows else 0.0,
        looping_place=first(np.flatnonzero(loops)),
        entropy_tokens=entropy_tokens(arrays, vocab),
    )


def _place(step: int, arrays: TraceStep, row: int) -> ViewerPlace:
    group = None if arrays.group_id is None else int(arrays.group_id[row])
    return ViewerPlace(step, group, None if group is None else int(arrays.response_index[row]))


def looping_rows(
    responses: NDArray[np.int32],  # [N, L]
    lengths: NDArray[np.int64],  # [N]
    least: int,
) -> NDArray[np.bool_]:  # [N]
    """Which responses end in a text repeated at least three times over at least `least` tokens.

    The last token is not looked at: it may be the one that ends the response.
    """
    found = np.zeros(len(responses), dtype=bool)
    for row, length in enumerate(lengths):
        tail = responses[row, max(0, int(length) - 1 - TAIL) : max(0, int(length) - 1)][::-1]
        for period in range(1, min(LONGEST_PERIOD, len(tail) // 3) + 1):
            differs = np.flatnonzero(tail[period:] != tail[:-period])
            matched = int(differs[0]) if len(differs) else len(tail) - period
            if matched + period >= max(least, 3 * period):
                found[row] = True
                break
    return found


def doubtful_rows(arrays: TraceStep, accepted: NDArray[np.bool_], vocab: Vocab | None) -> list[int] | None:
    """Accepted responses in whose text the expected whole number stands nowhere; None: it cannot be told.

    Ground truths that are no whole numbers can be written in many ways and are left out.
    """
    if arrays.ground_truth is None or vocab is None:
        return None
    found, told = [], False
    for row in np.flatnonzero(accepted):
        truth = str(arrays.ground_truth[row]).strip().replace(",", "")
        if not _WHOLE.fullmatch(truth):
            continue
        told = True
        text = vocab.decode(arrays.responses[row, : int(arrays.lengths[row])].tolist()).text.replace(",", "")
        if str(abs(int(truth))) not in {number.lstrip("0") or "0" for number in _NUMBER.findall(text)}:
            found.append(int(row))
    return found if told or not accepted.any() else None


def duplicated_groups(arrays: TraceStep) -> tuple[float, list[int]] | None:
    """The share of groups whose prompt another group has too, and a row of each; None without prompts."""
    if arrays.group_id is None or arrays.prompt(0 if arrays.rows else -1) is None:
        return None
    _, rows = np.unique(arrays.group_id, return_index=True)
    prompts = [prompt.tobytes() for row in rows if (prompt := arrays.prompt(int(row))) is not None]
    counts = Counter(prompts)
    copies = [int(row) for row, prompt in zip(rows, prompts, strict=True) if counts[prompt] > 1]
    return len(copies) / max(1, len(prompts)), copies


def entropy_tokens(arrays: TraceStep, vocab: Vocab | None, most: int = 3) -> tuple[tuple[str, float], ...]:
    """The tokens with the largest share of the step's entropy."""
    values = np.nan_to_num(arrays.entropies[arrays.response_mask].astype(np.float64))
    tokens = arrays.responses[arrays.response_mask]
    total = values.sum()
    if not total > 0:
        return ()
    kinds, inverse = np.unique(tokens, return_inverse=True)
    shares = np.bincount(inverse, weights=values) / total
    order = np.argsort(-shares)[:most]
    names = [str(kinds[i]) if vocab is None else vocab.decode([int(kinds[i])]).text for i in order]
    return tuple((name, float(shares[i])) for name, i in zip(names, order, strict=True))
