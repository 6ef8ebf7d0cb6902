"""Sums, means and whitening over the valid tokens of a padded batch.

Masks are 0/1, as bool or numbers. Padding may hold anything, NaN included: it is selected away, never
multiplied by zero.
"""

import torch
from torch import Tensor

WHITEN_EPSILON = 1e-8


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Σ values where mask. `values` and `mask` [...]; reduced over `dim`, or over everything."""
    return torch.where(mask.bool(), values, 0).sum(dim=dim)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Σ values where mask / Σ mask; 0 where nothing is valid.

    Of a part of a batch this is the mean of that part only. What has to add up over micro-batches goes
    through `archer.algorithms.aggregation`.
    """
    count = mask.bool().sum(dim=dim).clamp(min=1)
    return masked_sum(values, mask, dim) / count


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """(v - mean) / √(var + 1e-8) over all valid entries, with the unbiased variance; zero elsewhere.

    Statistics are taken in float64, from values shifted by their minimum, so that equal values become exactly
    zero and not rounding noise divided by a tiny deviation. A single valid entry has no spread: it becomes
    zero.

    values: [N, L]
    mask:   [N, L]
    """
    valid_at = mask.bool()
    whitened = torch.zeros_like(values)
    valid = values[valid_at].double()
    if valid.numel() < 2:
        return whitened
    valid = valid - valid.min()
    valid = (valid - valid.mean()) * torch.rsqrt(valid.var(correction=1) + WHITEN_EPSILON)
    whitened[valid_at] = valid.to(values.dtype)
    return whitened


def place_scores(scores: Tensor, mask: Tensor) -> Tensor:
    """Put the score of each response at its last valid token, zero elsewhere.

    A response without a valid token has no place for a score: its row is all zero.

    scores: [N]
    mask:   [N, L]
    Returns [N, L] in the dtype of the scores.
    """
    valid = mask.bool()
    following = valid.flip(-1).cumsum(-1).flip(-1)  # valid tokens from this one on, so 1 at the last
    return torch.where(valid & (following == 1), scores.unsqueeze(-1), 0)


def penalised_rewards(token_rewards: Tensor, kl: Tensor, mask: Tensor, kl_coef: float) -> Tensor:
    """KL in the reward: r_t - β KL_t at valid tokens, zero elsewhere (`algorithm.use_kl_in_reward`).

    token_rewards: [N, L]
    kl:            [N, L] estimate of each token, of the policy that sampled it against the reference
    mask:          [N, L]
    kl_coef:       β, from a `KLController`
    Returns [N, L].
    """
    return torch.where(mask.bool(), token_rewards - kl_coef * kl, 0)
