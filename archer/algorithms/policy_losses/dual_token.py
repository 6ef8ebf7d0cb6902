"""Archer's dual-token constraints: PPO-clip whose bounds depend on the kind of token (arXiv 2507.15778).

Reasoning tokens, those of high entropy within their response, may move far; knowledge tokens are held close
to the policy that sampled them. The KL loss, where there is one, has a coefficient for each kind too.
"""

from dataclasses import dataclass

from torch import Tensor

from archer.algorithms.policy_losses.base import POLICY_LOSSES, DualClip, LossInputs, LossOutputs
from archer.algorithms.policy_losses.ppo_clip import clipped
from archer.algorithms.token_classes import by_class
from archer.settings import knob


@dataclass(frozen=True)
class DualTokenSettings(DualClip):
    """The bounds of each kind of token, in the names of the Archer scripts."""

    low_entropy_clip_ratio_low: float = knob(
        0.2, "dual_token: lower clip range of knowledge tokens", at_least=0, idle="refuse"
    )
    low_entropy_clip_ratio_high: float = knob(
        0.2, "dual_token: upper clip range of knowledge tokens", at_least=0, idle="refuse"
    )
    high_entropy_clip_ratio_low: float = knob(
        0.4, "dual_token: lower clip range of reasoning tokens", at_least=0, idle="refuse"
    )
    high_entropy_clip_ratio_high: float = knob(
        0.4, "dual_token: upper clip range of reasoning tokens", at_least=0, idle="refuse"
    )
    high_entropy_kl_loss_scale_coef: float = knob(
        0.0,
        "dual_token: weight of the KL loss at reasoning tokens",
        at_least=0,
        needs="use_kl_loss",
        idle="refuse",
    )


def kl_coefficient(
    settings: DualTokenSettings,
    kl_loss_coef: float,
    reasoning: Tensor,  # [n, L] bool
    kl: Tensor,  # [n, L]
) -> Tensor:  # [n, L]
    """`high_entropy_kl_loss_scale_coef` at reasoning tokens, `kl_loss_coef` at knowledge tokens."""
    return by_class(reasoning, settings.high_entropy_kl_loss_scale_coef, kl_loss_coef, kl)


@POLICY_LOSSES.register("dual_token", settings=DualTokenSettings, kl_coefficient=kl_coefficient)
def dual_token(inputs: LossInputs, settings: DualTokenSettings) -> LossOutputs:
    """PPO-clip, its bounds chosen token by token:

        low, high = high_entropy_clip_ratio_low, high_entropy_clip_ratio_high  at reasoning tokens
        low, high = low_entropy_clip_ratio_low, low_entropy_clip_ratio_high    at knowledge tokens

    `inputs.reasoning` says which token is which.
    """
    if inputs.reasoning is None:
        raise ValueError("the dual-token loss needs LossInputs.reasoning")
    reasoning, like = inputs.reasoning, inputs.advantages
    low = by_class(reasoning, settings.high_entropy_clip_ratio_low, settings.low_entropy_clip_ratio_low, like)
    high = by_class(
        reasoning, settings.high_entropy_clip_ratio_high, settings.low_entropy_clip_ratio_high, like
    )
    return clipped(inputs, low, high, settings.clip_ratio_c)
