"""Advantages by returns: REINFORCE++ and its baseline variant (arXiv 2501.03262), and GAE."""

from dataclasses import dataclass

import torch
from torch import Tensor

from archer.algorithms.advantages.base import ADVANTAGES, AdvantageInputs
from archer.algorithms.groups import Grouping
from archer.algorithms.masked import whiten
from archer.errors import ArcherError
from archer.settings import Section, knob


@dataclass(frozen=True)
class DiscountSettings(Section):
    """How far a reward reaches back."""

    gamma: float = knob(1.0, "discount per token, for reinforce_plus_plus and gae", at_least=0, at_most=1)


@ADVANTAGES.register("reinforce_plus_plus", settings=DiscountSettings)
def reinforce_plus_plus(inputs: AdvantageInputs, settings: DiscountSettings) -> Tensor:
    """Discounted token returns, whitened over the batch.

        A = whiten(R) over all valid tokens, R_t = r_t + γ R_{t'} with t' the next valid token

    Groups play no part. Tokens outside the mask (tool output in a multi-turn response) are stepped over: they
    neither receive a return nor discount it.

    Returns [N, L].
    """
    returns = discounted_returns(inputs.token_rewards, inputs.mask, settings.gamma)
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


@ADVANTAGES.register("reinforce_plus_plus_baseline", compares_group=True)
def reinforce_plus_plus_baseline(inputs: AdvantageInputs, settings: Section) -> Tensor:
    """The group's mean as baseline, whitened over the batch: A = whiten(r_i - mean_g) over all valid tokens.

    Every token counts once in the whitening, so long responses weigh more in its mean and deviation than
    short ones. A group of one enters the whitening with 0 (verl: with its bare score, as if its baseline were
    0).

    Returns [N, L].
    """
    deviations = Grouping.of(inputs.groups).deviations(inputs.scores)
    valid_at = inputs.mask.bool()
    return whiten(deviations.unsqueeze(-1).expand(valid_at.shape), valid_at).to(inputs.token_rewards.dtype)


@ADVANTAGES.register("gae", settings=DiscountSettings, needs_critic=True)
def gae(inputs: AdvantageInputs, settings: DiscountSettings) -> Tensor:
    """Generalised advantage estimation (arXiv 1506.02438) with a critic, which engine=verl trains."""
    others = ", ".join(name for name in ADVANTAGES.names() if name != "gae")
    raise ArcherError(
        "algorithm.adv_estimator=gae needs a critic, which only engine=verl trains. Run with engine=verl, or "
        f"choose one without a critic: {others}."
    )
