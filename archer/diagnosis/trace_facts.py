"""What the rules need out of the arrays of one traced step."""

from collections import Counter, defaultdict

import numpy as np
from numpy.typing import NDArray

from archer.diagnosis.answers import doubtful_rows
from archer.diagnosis.evidence import TraceFacts, ViewerPlace
from archer.diagnosis.thresholds import Thresholds
from archer.trace.schema import TraceStep
from archer.trace.vocab import Vocab

TAIL = 512  # tokens at a response's end in which loops are looked for: a loop lasts until the end
KEPT_TOKENS = 256  # kinds of token whose part of the entropy is kept


def trace_facts(
    step: int, arrays: TraceStep, vocab: Vocab | None, limits: Thresholds, *, whole: bool = True
) -> TraceFacts:
    """Read one step. whole: it holds all responses of the step, as an influence trace does not."""
    if not arrays.rows:
        return TraceFacts({}, {}, {})
    metrics, places = token_metrics(arrays), {}
    if whole:
        metrics |= row_metrics(arrays)

    def shows(name: str, share: float, rows: NDArray[np.int64] | list[int]) -> None:
        metrics[name] = share
        if len(rows):
            places[name] = place_of(step, arrays, int(rows[0]))

    loops = looping_rows(arrays.responses, arrays.lengths, limits.loop_tokens)
    shows("trace/looping", float(loops.mean()), np.flatnonzero(loops))
    copies = duplicated_groups(arrays)
    if copies is not None:
        shows("trace/duplicates", *copies)
    doubtful = doubtful_rows(arrays, vocab)
    if doubtful is not None and doubtful.told >= limits.doubtful_least:
        shows("trace/doubtful", len(doubtful.rows) / doubtful.told, doubtful.rows)
    same = degenerate_rows(arrays)
    if len(same):
        places["groups/degenerate_share"] = place_of(step, arrays, int(same[0]))
    if arrays.truncated is not None:
        rows = np.flatnonzero(arrays.truncated)
        if len(rows):
            places["response_length/clip_ratio"] = place_of(step, arrays, int(rows[0]))
    unjudged = np.flatnonzero(~arrays.judged)
    if len(unjudged):
        places["trace/unjudged"] = place_of(step, arrays, int(unjudged[0]))
    return TraceFacts(metrics, places, entropy_of_tokens(arrays, vocab))


def place_of(step: int, arrays: TraceStep, row: int) -> ViewerPlace:
    """Where the viewer shows a response."""
    group = None if arrays.group_id is None else int(arrays.group_id[row])
    return ViewerPlace(step, group, None if group is None else int(arrays.response_index[row]))


def token_metrics(arrays: TraceStep) -> dict[str, float]:
    """Means over the response tokens, in the names of `metrics.jsonl`."""
    mask, metrics = arrays.response_mask, {}

    def add(name: str, values: NDArray) -> None:
        finite = values[np.isfinite(values)]
        if finite.size:
            metrics[name] = float(finite.mean())

    add("actor/entropy", arrays.entropies[mask].astype(np.float64))
    if arrays.rollout_log_probs is not None and arrays.log_probs is not None:
        with np.errstate(over="ignore", invalid="ignore"):  # a stranger's values may be of any size
            difference = arrays.log_probs[mask].astype(np.float64) - arrays.rollout_log_probs[mask]
            add("rollout_corr/k3_kl", np.expm1(difference) - difference)
    if arrays.clipped is not None:
        add("actor/pg_clipfrac", (arrays.clipped[mask] != 0).astype(np.float64))
    if arrays.ratio is not None:
        ratio = arrays.ratio[mask].astype(np.float64)
        add("actor/ppo_kl", -np.log(ratio[ratio > 0]))
    return metrics


def row_metrics(arrays: TraceStep) -> dict[str, float]:
    """Verdicts, groups and lengths of a whole step, in the names of `metrics.jsonl`."""
    lengths, judged = arrays.lengths, arrays.judged
    metrics = {
        "response_length/mean": float(lengths.mean()),
        "trace/unjudged": float((~judged).mean()),
    }
    if arrays.truncated is not None:
        metrics["response_length/clip_ratio"] = float(arrays.truncated.mean())
    if arrays.accepted is None or not judged.any():
        return metrics
    accepted = arrays.accepted & judged
    metrics["reward/accuracy"] = float(accepted.sum() / judged.sum())
    if arrays.reward is not None:
        for name, rows in (("correct", accepted), ("wrong", judged & ~accepted)):
            if rows.any():
                metrics[f"critic/rewards/{name}/mean"] = float(arrays.reward[rows].mean())
    if arrays.group_id is not None and len(np.unique(arrays.group_id)) < arrays.rows:
        _, group = np.unique(arrays.group_id[judged], return_inverse=True)
        share = np.bincount(group, weights=accepted[judged]) / np.bincount(group)
        metrics["groups/all_correct"] = float((share == 1).sum())
        metrics["groups/all_wrong"] = float((share == 0).sum())
        metrics["groups/mixed"] = float(((share > 0) & (share < 1)).sum())
        metrics["groups/degenerate_share"] = float(((share == 0) | (share == 1)).mean())
    return metrics


def degenerate_rows(arrays: TraceStep) -> NDArray[np.int64]:
    """The judged responses whose group is all right or all wrong; those of groups all wrong first."""
    if arrays.accepted is None or arrays.group_id is None:
        return np.empty(0, np.int64)
    rows = np.flatnonzero(arrays.judged)
    _, group = np.unique(arrays.group_id[rows], return_inverse=True)
    if not rows.size:
        return rows
    share = (np.bincount(group, weights=arrays.accepted[rows]) / np.bincount(group))[group]
    return np.concatenate([rows[share == 0], rows[share == 1]])


def looping_rows(
    responses: NDArray[np.int32],  # [N, L]
    lengths: NDArray[np.int64],  # [N]
    least: int,
) -> NDArray[np.bool_]:  # [N]
    """Which responses end in a text repeated at least three times over at least `least` tokens.

    The last token is not looked at: it may be the one that ends the response.
    """
    ends = np.maximum(lengths - 1, 0)
    width = int(min(TAIL, ends.max(initial=0)))
    found = np.zeros(len(responses), dtype=bool)
    if width < least:
        return found
    back = ends[:, None] - 1 - np.arange(width)  # [N, width] places from the end backwards
    tails = np.take_along_axis(responses, np.maximum(back, 0), axis=1)
    tails = np.where(back >= 0, tails, -1 - np.arange(width, dtype=np.int32))  # before the start none agree
    for period in range(1, width // 3 + 1):
        agrees = tails[:, period:] == tails[:, :-period]
        matched = np.where(agrees.all(axis=1), agrees.shape[1], np.argmin(agrees, axis=1))
        found |= matched + period >= max(least, 3 * period)
    return found


def duplicated_groups(arrays: TraceStep) -> tuple[float, list[int]] | None:
    """The share of groups whose prompt another group has too, and a row of each; None without prompts."""
    if arrays.group_id is None or arrays.prompt(0) is None:
        return None
    _, rows = np.unique(arrays.group_id, return_index=True)
    prompts = [prompt.tobytes() for row in rows if (prompt := arrays.prompt(int(row))) is not None]
    counts = Counter(prompts)
    copies = [int(row) for row, prompt in zip(rows, prompts, strict=True) if counts[prompt] > 1]
    return len(copies) / max(1, len(prompts)), copies


def entropy_of_tokens(arrays: TraceStep, vocab: Vocab | None) -> dict[str, float]:
    """Token -> the sum of its entropies over the number of all tokens: the parts add up to the mean."""
    values = arrays.entropies[arrays.response_mask].astype(np.float64)
    values = np.where(np.isfinite(values), values, 0.0)
    if not values.size:
        return {}
    kinds, inverse = np.unique(arrays.responses[arrays.response_mask], return_inverse=True)
    parts = np.bincount(inverse, weights=values) / values.size
    chosen = np.argsort(-parts)[:KEPT_TOKENS]
    found: dict[str, float] = defaultdict(float)
    for index in chosen:
        token = int(kinds[index])
        name = f"token {token}" if vocab is None else vocab.token(token).decode("utf-8", "replace")
        found[name] += float(parts[index])
    return dict(found)
