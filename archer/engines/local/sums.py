"""Means over all tokens of a step, gathered micro-batch by micro-batch."""

import torch
from torch import Tensor


class TokenSums:
    """Adds per-token values over micro-batches; the mean is over every token seen, not over micro-batches.

    Sums stay on the device until they are asked for: reading each would make the host wait for it.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}  # [2] float64: sum of values, number of tokens

    @torch.no_grad()
    def add(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Add an [n, L] tensor at the True positions of its mask."""
        added = torch.stack((torch.where(mask, values, 0).double().sum(), mask.sum().double()))
        self._sums[name] = self._sums[name] + added if name in self._sums else added

    def means(self) -> dict[str, float]:
        """Return name -> mean over all tokens added; a name without any token is left out."""
        read = {name: sums.tolist() for name, sums in self._sums.items()}
        return {name: total / tokens for name, (total, tokens) in read.items() if tokens}
