"""The few statistics that verification reports: AUC with ties, Spearman, Pearson. Float64 throughout."""

from __future__ import annotations

import torch
from torch import Tensor


def ranks(values: Tensor) -> Tensor:
    """Rank of each of [n] values from 1; equal values share the mean of their ranks."""
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - (counts - 1) / 2)[inverse]


def auc(positive: Tensor, negative: Tensor) -> float:
    """P(positive > negative) + P(equal) / 2 over all pairs; NaN where a side is empty.

    By ranks: (sum of the positives' ranks - n(n + 1)/2) / (n m) with n positives and m negatives.
    """
    n, m = len(positive), len(negative)
    if n == 0 or m == 0:
        return float("nan")
    total = ranks(torch.cat([positive.double(), negative.double()]))[:n].sum()
    return float((total - n * (n + 1) / 2) / (n * m))


def pearson(x: Tensor, y: Tensor) -> float:
    """cov(x, y) / (std(x) std(y)) of two [n] vectors; NaN where one of them is constant."""
    x, y = x.detach().double(), y.detach().double()
    x, y = x - x.mean(), y - y.mean()
    scale = x.norm() * y.norm()
    return float(x @ y / scale) if scale > 0 else float("nan")


def spearman(x: Tensor, y: Tensor) -> float:
    """Pearson's correlation of the ranks."""
    return pearson(ranks(x), ranks(y))


def relative_error(found: Tensor, expected: Tensor) -> float:
    """max |found - expected| / max |expected|; infinite where nothing is expected but something is found."""
    largest = float(expected.detach().double().abs().max())
    deviation = float((found.detach().double() - expected.detach().double()).abs().max())
    if largest == 0:
        return 0.0 if deviation == 0 else float("inf")
    return deviation / largest
