"""Policy losses by the names of verl's `actor_rollout_ref.actor.policy_loss.loss_mode`."""

from collections.abc import Callable
from functools import partial

from archer.algorithms.lookup import choose
from archer.algorithms.policy_losses.base import (
    ClipConfig,
    LossInputs,
    LossOutputs,
    PolicyLoss,
    PolicyLossConfig,
)
from archer.algorithms.policy_losses.ppo_clip import ppo_clip

__all__ = [
    "POLICY_LOSSES",
    "ClipConfig",
    "LossInputs",
    "LossOutputs",
    "PolicyLoss",
    "PolicyLossConfig",
    "policy_loss",
]

POLICY_LOSSES: dict[str, Callable[[PolicyLossConfig], PolicyLoss]] = {
    "vanilla": lambda config: partial(ppo_clip, clip=config.clip),
}
"""How each loss is made from the configuration: its function with its own settings bound."""


def policy_loss(config: PolicyLossConfig) -> PolicyLoss:
    """Return the policy loss that the configuration names, with its settings bound."""
    return choose(POLICY_LOSSES, config.loss_mode, "actor_rollout_ref.actor.policy_loss.loss_mode")(config)
