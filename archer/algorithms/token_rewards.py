"""Rewards per token: where a response's score goes, and KL in the reward."""

import torch
from torch import Tensor


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
