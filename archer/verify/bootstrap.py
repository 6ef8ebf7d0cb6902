"""Where a token stands within its response, and how sure a mean over responses is."""

from __future__ import annotations

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


def interval(values: Tensor, seed: int, resamples: int = RESAMPLES) -> Interval:
    """Mean of [n] values, one a response, with the percentile bootstrap's bounds; NaN where there are none.

    Responses are drawn with replacement, n at a time; the bounds are the 2.5 % and 97.5 % quantiles of the
    means of all draws.
    """
    if len(values) == 0:
        return Interval(float("nan"), float("nan"), float("nan"))
    values = values.double()
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(values), (resamples, len(values)), generator=generator)
    means = values[drawn].mean(1)
    tail = (1 - LEVEL) / 2
    low, high = torch.quantile(means, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return Interval(float(values.mean()), low, high)
