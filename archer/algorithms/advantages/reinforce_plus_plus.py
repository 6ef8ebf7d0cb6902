"""REINFORCE++: discounted token returns, whitened over the batch (arXiv 2501.03262)."""

import torch
from torch import Tensor

from archer.algorithms.advantages.base import AdvantageInputs
from archer.algorithms.masked import whiten


def reinforce_plus_plus(inputs: AdvantageInputs) -> Tensor:
    """A = whiten(R) over all valid tokens of the batch, R_t = r_t + γ R_{t'} with t' the next valid token.

    Groups play no part. Tokens outside the mask (tool output in a multi-turn response) are stepped over: they
    neither receive a return nor discount it.

    Returns [N, L].
    """
    returns = discounted_returns(inputs.token_rewards, inputs.mask, inputs.gamma)
    return whiten(returns, inputs.mask).to(inputs.token_rewards.dtype)


def discounted_returns(token_rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """R_t = r_t + γ R_{t'}, t' the next valid token; zero outside the mask.

    token_rewards: [N, L]
    mask:          [N, L]
    Returns [N, L] in float64.
    """
    valid_at = mask.bool()
    returns = torch.zeros_like(token_rewards, dtype=torch.float64)
    running = returns.new_zeros(returns.shape[0])
    for t in reversed(range(returns.shape[1])):
        running = torch.where(valid_at[:, t], token_rewards[:, t] + gamma * running, running)
        returns[:, t] = torch.where(valid_at[:, t], running, 0)
    return returns
