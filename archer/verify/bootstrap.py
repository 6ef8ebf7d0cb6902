"""Where a token stands within its response, and how sure a mean over responses is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over responses and the bounds that hold it at `LEVEL`."""

    mean: float
    low: float
    high: float


def place_of(values: Tensor, chosen: int) -> float:
    """AUC of one token among the others of [n]: the share of them below it, ties half; NaN where it is alone.

    This is P(chosen > other) + P(chosen = other) / 2.
    """
    if len(values) < 2:
        return float("nan")
    mine = values[chosen]
    below, equal = int((values < mine).sum()), int((values == mine).sum()) - 1
    return (below + equal / 2) / (len(values) - 1)


def is_first(values: Tensor, chosen: int) -> float:
    """1 where the token has the highest of [n] values, 1/k where it shares it with k - 1 others, else 0."""
    highest = values == values.max()
    return float(highest[chosen]) / int(highest.sum())


def interval(
    values: Tensor, seed: int, prompts: Sequence[str] | None = None, resamples: int = RESAMPLES
) -> Interval:
    """Mean of [n] values, one a response, with the percentile bootstrap's bounds; NaN where there are none.

    Prompts are drawn with replacement, as many as there are, each with all its responses: those were compared
    with the same others, so that they err together. The bounds are the 2.5 % and 97.5 % quantiles of the
    means of all draws.

    prompts: the prompt of each value; absent: each has its own
    """
    if len(values) == 0:
        return Interval(float("nan"), float("nan"), float("nan"))
    values = values.double()
    names = range(len(values)) if prompts is None else prompts
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    owner = torch.tensor([numbers[name] for name in names])
    counts = torch.bincount(owner).double()
    sums = torch.zeros(len(counts), dtype=torch.float64).index_add_(0, owner, values)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(counts), (resamples, len(counts)), generator=generator)
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    tail = (1 - LEVEL) / 2
    low, high = torch.quantile(means, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return Interval(float(values.mean()), low, high)
