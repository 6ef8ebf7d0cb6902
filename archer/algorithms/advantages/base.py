"""What every advantage estimator is given and gives back."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archer.plugins import PluginTable


@dataclass(frozen=True)
class AdvantageInputs:
    """Rewards of N responses, the longest L tokens long.

    `mask` is the mask of the response, not of the loss: a response whose loss is masked (overlong, say) still
    counts in the statistics of its group.
    """

    token_rewards: Tensor  # [N, L] float, zero outside the response
    mask: Tensor  # [N, L] bool or 0/1
    groups: Tensor  # [N] int64: responses to the same prompt share an id

    def __post_init__(self) -> None:
        if self.token_rewards.shape != self.mask.shape or self.groups.shape != self.mask.shape[:1]:
            shapes = [tuple(x.shape) for x in (self.token_rewards, self.mask, self.groups)]
            raise ValueError(f"expected token_rewards [N, L], mask [N, L], groups [N]; got {shapes}")

    @property
    def scores(self) -> Tensor:
        """Outcome of each response, Σ_t token_rewards: [N], in float64 because statistics are made of it."""
        return self.token_rewards.sum(dim=-1, dtype=torch.float64)

    def over_tokens(self, advantages: Tensor) -> Tensor:
        """Give every valid token the advantage of its response. advantages: [N]; returns [N, L]."""
        return torch.where(self.mask.bool(), advantages.to(self.token_rewards.dtype).unsqueeze(-1), 0)


AdvantageEstimator = Callable[[AdvantageInputs, Any], Tensor]
"""(inputs, the settings it declares) -> advantages [N, L] in the rewards' dtype, zero outside the mask."""

ADVANTAGES = PluginTable[AdvantageEstimator](
    "algorithm.adv_estimator", package="archer.algorithms.advantages"
)
"""All estimators by name. What one says of itself: `compares_group`, it compares the responses to a prompt
with each other, so that one alone has advantage 0; `needs_critic`, a value function is trained beside the
policy."""


def bound_advantage(name: str, algorithm: Any) -> Callable[[AdvantageInputs], Tensor]:
    """Return the estimator of a name with its settings, read from the section `algorithm`."""
    plugin = ADVANTAGES.find(name)
    settings = plugin.settings_from(algorithm)
    return lambda inputs: plugin.function(inputs, settings)


def judged_advantages(
    estimator: Callable[[AdvantageInputs], Tensor],
    inputs: AdvantageInputs,
    judged: Tensor,  # [N] bool
) -> Tensor:
    """Return the advantages of the judged responses, zero elsewhere: [N, L].

    The others have no reward. No statistic sees them: a group's baseline is that of its judged responses.
    """
    advantages = torch.zeros_like(inputs.token_rewards)
    part = AdvantageInputs(inputs.token_rewards[judged], inputs.mask[judged], inputs.groups[judged])
    advantages[judged] = estimator(part)
    return advantages
