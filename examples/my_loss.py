"""A custom policy loss: SPO, simple policy optimisation (arXiv 2401.16025), as Archer can use it.

    archer train actor_rollout_ref.actor.policy_loss.loss_mode=examples/my_loss.py:spo \\
        actor_rollout_ref.actor.spo_epsilon=0.3 actor_rollout_ref.actor.ppo_epochs=2

A loss is a function (inputs, settings) -> LossOutputs. `@reads` names the dataclass of its settings; they are
then settings of `actor_rollout_ref.actor`, checked and shown as all others. Aggregation, KL, entropy bonus
and rollout correction are added by Archer.
"""

from dataclasses import dataclass

import torch

from archer.algorithms.policy_losses.base import LossInputs, LossOutputs
from archer.plugins import reads
from archer.settings import Section, knob


@dataclass(frozen=True)
class SpoSettings(Section):
    """How far a ratio may go."""

    spo_epsilon: float = knob(0.2, "distance of the ratio from 1 at which a token stops pulling", above=0)


@reads(SpoSettings)
def spo(inputs: LossInputs, settings: SpoSettings) -> LossOutputs:
    """Loss -(A r - |A| (r - 1)² / 2ε) of each token, with r = π / π_old.

    Where PPO drops the gradient of a token outside its bounds, SPO turns it round: the best ratio is 1 + ε
    where A > 0 and 1 - ε where A < 0, and a token beyond it is pulled back.
    """
    valid, advantages, epsilon = inputs.mask.bool(), inputs.advantages, settings.spo_epsilon
    ratio = inputs.log_ratio.exp()  # [n, L]; 1 outside the mask
    objective = advantages * ratio - advantages.abs() * (ratio - 1).square() / (2 * epsilon)
    return LossOutputs(
        per_token=torch.where(valid, -objective, 0),
        up=valid & (advantages > 0) & (ratio > 1 + epsilon),  # these three are measured as clip fractions
        down=valid & (advantages < 0) & (ratio < 1 - epsilon),
        dual=torch.zeros_like(valid),
    )
