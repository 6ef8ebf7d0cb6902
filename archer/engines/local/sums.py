"""Means over all tokens of a step, gathered micro-batch by micro-batch."""

from collections import defaultdict

import torch
from torch import Tensor


class TokenSums:
    """Adds per-token values over micro-batches; the mean is over every token seen, not over micro-batches."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._tokens: dict[str, int] = defaultdict(int)

    @torch.no_grad()
    def add(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Add an [n, L] tensor at the True positions of its mask."""
        self._sums[name] += float(values[mask].double().sum())
        self._tokens[name] += int(mask.sum())

    def means(self) -> dict[str, float]:
        """Return name -> mean over all tokens added."""
        return {name: total / max(1, self._tokens[name]) for name, total in self._sums.items()}
