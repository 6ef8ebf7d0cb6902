"""Policy losses by the names of verl's `actor_rollout_ref.actor.policy_loss.loss_mode`.

`aspo` and `dual_token` are Archer's own; verl has the others under the same names.
"""

from collections.abc import Callable
from functools import partial

from archer.algorithms.lookup import choose
from archer.algorithms.policy_losses.aspo import aspo
from archer.algorithms.policy_losses.base import (
    ClipConfig,
    LossInputs,
    LossOutputs,
    PolicyLoss,
    PolicyLossConfig,
    TokenClassConfig,
)
from archer.algorithms.policy_losses.cispo import cispo
from archer.algorithms.policy_losses.dual_token import dual_token
from archer.algorithms.policy_losses.gspo import gspo
from archer.algorithms.policy_losses.marks import Mark, class_masks, loss_marks
from archer.algorithms.policy_losses.ppo_clip import ppo_clip

__all__ = [
    "POLICY_LOSSES",
    "ClipConfig",
    "LossInputs",
    "LossOutputs",
    "Mark",
    "PolicyLoss",
    "PolicyLossConfig",
    "TokenClassConfig",
    "class_masks",
    "loss_marks",
    "policy_loss",
]

POLICY_LOSSES: dict[str, Callable[[PolicyLossConfig], PolicyLoss]] = {
    "vanilla": lambda config: partial(ppo_clip, clip=config.clip),
    "gspo": lambda config: partial(gspo, clip=config.clip),
    "cispo": lambda config: partial(cispo, clip=config.clip),
    "aspo": lambda config: partial(aspo, clip=config.clip),
    "dual_token": lambda config: partial(dual_token, clip=config.clip, classes=config.classes),
}
"""How each loss is made from the configuration: its function with its own settings bound."""


def policy_loss(config: PolicyLossConfig) -> PolicyLoss:
    """Return the policy loss that the configuration names, with its settings bound.

    Where the inputs carry `rollout_is_weights`, the loss of every token is multiplied by its weight.
    """
    loss = choose(POLICY_LOSSES, config.loss_mode, "actor_rollout_ref.actor.policy_loss.loss_mode")(config)

    def weighted(inputs: LossInputs) -> LossOutputs:
        outputs = loss(inputs)
        weights = inputs.rollout_is_weights
        return outputs if weights is None else outputs.weighted(weights, inputs.mask)

    return weighted
