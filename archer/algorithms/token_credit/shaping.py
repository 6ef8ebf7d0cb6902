"""From a mode's weights to those that the loss multiplies advantages by: sum, strength, range, side, control.

Pure functions; the order in which they are applied is that of `shaped`.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


def strength_at(step: int, strength: float, anneal_steps: int) -> float:
    """s max(0, 1 - (k - 1) / N) at step k = 1, 2, ...: s at first, none after step N; N = 0: always s."""
    if anneal_steps <= 0:
        return strength
    return strength * max(0.0, 1.0 - (step - 1) / anneal_steps)


def shaped(
    raw: Tensor,  # [n, L] the mode's weights
    mask: Tensor,  # [n, L] bool
    rows: Tensor,  # [n] bool: responses that the credit acts on
    strength: float,
    keep_sum: bool,
    low: float,
    high: float,
) -> Tensor:  # [n, L], zero outside the mask
    """Return the weights.

    1. keep_sum:    w is divided by its mean over the response, unless that is 0
    2. strength s:  w becomes 1 + s (w - 1), which leaves a mean of 1 as it is
    3. range:       w is held in [low, high], which may change the sum again
    4. responses that the credit does not act on: w = 1
    """
    weights = with_mean_one(raw, mask) if keep_sum else raw
    weights = 1 + strength * (weights - 1)
    weights = torch.where(rows[:, None], weights.clamp(low, high), 1.0)
    return torch.where(mask, weights, 0.0)


def with_mean_one(weights: Tensor, mask: Tensor) -> Tensor:
    """w_t n / Σ_t w_t over each response of n tokens; a response of zeros stays as it was before: ones."""
    valid = mask.to(weights.dtype)
    total = (weights * valid).sum(-1, keepdim=True)
    scaled = weights * valid.sum(-1, keepdim=True) / total.clamp(min=torch.finfo(weights.dtype).tiny)
    return torch.where(total > 0, scaled, 1.0)


def permuted(
    weights: Tensor,  # [n, L]
    entropy: Tensor,  # [n, L]
    mask: Tensor,  # [n, L] bool
    cut: float,
    generators: Iterable[torch.Generator],  # one for each response, on the CPU
) -> Tensor:  # [n, L]
    """Shuffle the weights within each response, separately among unsure (entropy > cut) and sure tokens.

    The control of every mode: as many tokens of both kinds are paid as much as before, but others. What a
    mode gains over it, it owes to the choice of the tokens.
    """
    result = weights.clone()
    unsure, sure = mask & (entropy > cut), mask & (entropy <= cut)
    for row, generator in enumerate(generators):
        for kind in (unsure, sure):
            places = kind[row].nonzero().squeeze(1)
            order = torch.randperm(len(places), generator=generator).to(places.device)
            result[row, places] = weights[row, places[order]]
    return result
