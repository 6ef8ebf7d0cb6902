"""SAPO, soft adaptive policy optimisation: a smooth gate in place of the clip (arXiv 2511.20347, Qwen).

A clip takes a token's gradient away at once. SAPO fades it out with the distance of the ratio from 1, faster
where the advantage is negative: those updates raise the logits of all the tokens that were not sampled, which
is what makes training unstable.
"""

from dataclasses import dataclass

import torch

from archer.algorithms.policy_losses.base import POLICY_LOSSES, LossInputs, LossOutputs
from archer.settings import Section, knob


@dataclass(frozen=True)
class SapoSettings(Section):
    """How fast the gate closes, in verl's names."""

    tau_pos: float = knob(1.0, "sapo: temperature of the gate where the advantage is positive", above=0)
    tau_neg: float = knob(
        1.05,
        "sapo: temperature of the gate where it is not; larger closes faster",
        above=0,
    )


@POLICY_LOSSES.register("sapo", settings=SapoSettings)
def sapo(inputs: LossInputs, settings: SapoSettings) -> LossOutputs:
    """Loss -A·f(r) of each token, with r = π / π_old and σ the logistic function:

        f(r) = 4/τ · σ(τ (r - 1)),   τ = tau_pos where A > 0, tau_neg elsewhere

    The gradient is -A·w·∇log π with w = r·4σ(1 - σ): r at r = 1, as in PPO, and fading on both sides of it.
    Nothing is stopped or held, so all clip fractions are 0. The paper aggregates by seq-mean-token-mean.
    """
    valid, advantages = inputs.mask.bool(), inputs.advantages
    ratio = inputs.log_ratio.exp()
    tau = torch.where(
        advantages > 0, advantages.new_full((), settings.tau_pos), advantages.new_full((), settings.tau_neg)
    )
    gate = torch.sigmoid(tau * (ratio - 1)) * (4 / tau)
    nowhere = torch.zeros_like(valid)
    return LossOutputs(
        per_token=torch.where(valid, -advantages * gate, 0), up=nowhere, down=nowhere, dual=nowhere
    )
