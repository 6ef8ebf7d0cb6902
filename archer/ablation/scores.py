"""The influence scores of cases: how they are spread, and how alike two cases order the same tokens.

Cases of a grid share their seeds. As long as an override changes no sampled token, two cases score the same
responses, and their scores can be compared token by token. That is checked, never assumed: rows are paired by
their place in the rollout batch and must agree in prompt and response, token for token.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from archer.trace.reader import TraceReader
from archer.trace.schema import TraceStep

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


@dataclass(frozen=True, eq=False)
class ScoredResponse:
    """The scores of one response."""

    tokens: bytes
    """Digest of its prompt and response tokens."""
    group: int
    """Number of its prompt."""
    scores: NDArray[np.float32]  # [T] of its valid tokens, NaN where nothing was computed


ScoredStep = dict[int, ScoredResponse]
"""The responses of a step by their place in the rollout batch, ascending."""


def scored_step(step: TraceStep) -> ScoredStep:
    """Take what is compared out of a trace."""
    assert step.influence is not None and step.group_id is not None
    found = {}
    for row in np.argsort(step.response_index, kind="stable").tolist():
        mask, prompt = step.response_mask[row], step.prompt(row)
        digest = blake2b(b"" if prompt is None else prompt.tobytes(), digest_size=16)
        digest.update(b"|" + step.responses[row][mask].tobytes())
        group, scores = int(step.group_id[row]), step.influence[row][mask]
        found[int(step.response_index[row])] = ScoredResponse(digest.digest(), group, scores)
    return found


def scored_steps(traces: Mapping[str, TraceReader]) -> Iterator[dict[str, ScoredStep]]:
    """What each case scored, step by step; one step is in memory at a time."""
    sound = {name: sound_steps(trace) for name, trace in traces.items()}
    for step in sorted({step for steps in sound.values() for step in steps}):
        present = (name for name in traces if step in sound[name])
        yield {name: scored_step(traces[name].read(step).arrays) for name in present}


def sound_steps(trace: TraceReader) -> list[int]:
    """The steps of a trace without known damage."""
    return [entry.step for entry in trace.entries if entry.problem is None]


def trace_statistics(trace: TraceReader) -> dict[str, float]:
    """The spread of the scores of all steps, read without anything else."""
    found = [np.empty(0, np.float32)]
    for step in sound_steps(trace):
        arrays = trace.read_arrays(step, ("influence", "response_mask"))
        found.append(arrays["influence"][arrays["response_mask"]])
    return score_statistics(np.concatenate(found))


def score_statistics(values: NDArray[np.floating]) -> dict[str, float]:
    """The spread of [n] scores by column of `cases.csv`, NaN left out; empty where there is none.

    The standard deviation is sqrt(Σ (x - mean)² / n); quantiles are linear between neighbours.
    """
    finite = values[np.isfinite(values)].astype(np.float64)
    if not finite.size:
        return {}
    quantiles = zip(QUANTILES, np.quantile(finite, QUANTILES), strict=True)
    return {
        "tokens_scored": finite.size,
        "score_mean": float(finite.mean()),
        "score_std": float(finite.std()),
        **{f"score_q{q * 100:02.0f}": float(value) for q, value in quantiles},
        "score_share_positive": float((finite > 0).mean()),
    }


@dataclass(frozen=True)
class Agreement:
    """Spearman's rank correlation of the scores that two cases gave the same tokens: `correlations.csv`."""

    case: str
    other: str
    spearman_per_step: float | None
    """Over all tokens of a step; the mean over steps. None where nothing could be compared."""
    spearman_per_step_min: float | None
    spearman_per_step_max: float | None
    spearman_per_prompt: float | None
    """Over the tokens of one prompt's responses; the mean over the prompts of all steps."""
    steps: int
    """Steps whose rollouts are the same, token for token."""
    tokens: int
    prompts: int
    steps_with_different_rollouts: int
    """Steps that both wrote, but over different tokens: not compared."""


@dataclass(frozen=True, eq=False)
class SharedTokens:
    """Tokens that two cases scored, in the same order."""

    selection: bytes
    """Digest of which tokens these are: where it is equal, the same ranks serve several pairs."""
    scores: tuple[NDArray[np.float32], NDArray[np.float32]]  # [n] each, finite
    group: NDArray[np.int64]  # [n]


def shared_tokens(one: ScoredStep, other: ScoredStep) -> SharedTokens | None:
    """The tokens that both cases scored; None where their rollouts differ or no response is in both."""
    rows = [row for row in one if row in other]
    if not rows or any(one[row].tokens != other[row].tokens for row in rows):
        return None
    x, y = (np.concatenate([step[row].scores for row in rows]) for step in (one, other))
    group = np.concatenate([np.full(len(one[row].scores), one[row].group) for row in rows])
    finite = np.isfinite(x) & np.isfinite(y)
    selection = blake2b(np.array(rows).tobytes() + finite.tobytes(), digest_size=16).digest()
    return SharedTokens(selection, (x[finite], y[finite]), group[finite])


def agreements(cases: Sequence[str], steps: Iterable[Mapping[str, ScoredStep]]) -> list[Agreement]:
    """Compare every pair of cases on the steps that both hold; `steps` are name -> scores of all cases."""
    pairs = list(combinations(cases, 2))
    different, tokens = dict.fromkeys(pairs, 0), dict.fromkeys(pairs, 0)
    of_steps: dict[tuple[str, str], list[float]] = {pair: [] for pair in pairs}
    of_prompts: dict[tuple[str, str], list[float]] = {pair: [] for pair in pairs}
    for present in steps:
        ranks: dict[tuple[str, bytes, bool], NDArray[np.float64]] = {}  # each case is sorted once
        for pair in combinations(present, 2):
            shared = shared_tokens(present[pair[0]], present[pair[1]])
            if shared is None:
                different[pair] += 1
                continue
            tokens[pair] += len(shared.group)
            for by_prompt, found in ((False, of_steps[pair]), (True, of_prompts[pair])):
                group = shared.group if by_prompt else np.zeros_like(shared.group)
                keys = [(name, shared.selection, by_prompt) for name in pair]
                for key, scores in zip(keys, shared.scores, strict=True):
                    if key not in ranks:
                        ranks[key] = centred_ranks(scores, group)
                found += rank_correlations(ranks[keys[0]], ranks[keys[1]], group).tolist()
    return [
        Agreement(
            case=pair[0],
            other=pair[1],
            spearman_per_step=_mean(of_steps[pair]),
            spearman_per_step_min=min(of_steps[pair], default=None),
            spearman_per_step_max=max(of_steps[pair], default=None),
            spearman_per_prompt=_mean(of_prompts[pair]),
            steps=len(of_steps[pair]),
            tokens=tokens[pair],
            prompts=len(of_prompts[pair]),
            steps_with_different_rollouts=different[pair],
        )
        for pair in pairs
    ]


def centred_ranks(values: NDArray[np.floating], groups: NDArray[np.integer]) -> NDArray[np.float64]:
    """Rank of each of [n] values within its group, less the group's mean rank; equal values share their mean.

    groups: [n] numbers of the groups, in any order.
    """
    order = np.lexsort((values, groups))
    sorted_values, sorted_groups = values[order], groups[order]
    new_group = np.r_[True, sorted_groups[1:] != sorted_groups[:-1]][: len(order)]
    new_value = new_group | np.r_[True, sorted_values[1:] != sorted_values[:-1]][: len(order)]
    positions = np.arange(len(order), dtype=np.float64)
    ranks = np.empty(len(order))
    ranks[order] = _mean_of_runs(positions, new_value) - _mean_of_runs(positions, new_group)
    return ranks


def rank_correlations(
    x: NDArray[np.float64],  # [n] centred ranks
    y: NDArray[np.float64],  # [n] centred ranks within the same groups
    groups: NDArray[np.integer],  # [n]
) -> NDArray[np.float64]:
    """Spearman's ρ = Σ x y / sqrt(Σ x² Σ y²) of each group; one where x or y is constant is left out."""
    _, number = np.unique(groups, return_inverse=True)
    xy, xx, yy = (np.bincount(number, weights=product) for product in (x * y, x * x, y * y))
    ordered = (xx > 0) & (yy > 0)
    return xy[ordered] / np.sqrt(xx[ordered] * yy[ordered])


def _mean_of_runs(positions: NDArray[np.float64], begins: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Replace each position by the mean of its run; a run begins where `begins` is set."""
    run = np.cumsum(begins) - 1
    return (np.bincount(run, weights=positions) / np.bincount(run))[run] if len(run) else positions


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None
