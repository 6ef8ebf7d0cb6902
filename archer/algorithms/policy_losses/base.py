"""What every policy loss is given and gives back, and the settings that several share."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from archer.plugins import PluginTable
from archer.settings import Section, knob

MAX_LOG_RATIO = 20.0
"""Bound on |log π - log π_old|, as in verl: far outside any clip range, with an exponential still finite."""


@dataclass(frozen=True)
class LossInputs:
    """Tokens of one micro-batch of n responses, the longest L tokens long."""

    log_probs: Tensor  # [n, L] log π of the sampled tokens, with gradient
    old_log_probs: Tensor  # [n, L] the same at the start of the step
    advantages: Tensor  # [n, L]
    mask: Tensor  # [n, L] bool or 0/1: tokens that take part in the loss
    reasoning: Tensor | None = None  # [n, L] bool: the reasoning tokens, by `token_classes.reasoning_tokens`
    rollout_is_weights: Tensor | None = None  # [n, L] constant factors, by `rollout_correction`

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len({tuple(value.shape) for value in given.values()}) != 1:
            shapes = {name: tuple(value.shape) for name, value in given.items()}
            raise ValueError(f"expected tensors that are all [n, L]; got {shapes}")

    @property
    def log_ratio(self) -> Tensor:
        """log π - log π_old in [-20, 20]; 0 outside the mask, so that padding has no gradient: [n, L]."""
        difference = torch.where(self.mask.bool(), self.log_probs - self.old_log_probs, 0)
        return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    @property
    def one(self) -> Tensor:
        """π / [π], where [] holds a value constant: 1, with gradient ∇log π at valid tokens: [n, L]."""
        return torch.where(self.mask.bool(), self.log_probs - self.log_probs.detach(), 0).exp()


@dataclass(frozen=True)
class LossOutputs:
    """The loss of every token, not yet aggregated, and where a bound on its weight took effect."""

    per_token: Tensor  # [n, L], zero outside the mask
    up: Tensor  # [n, L] bool: stopped at the upper bound
    down: Tensor  # [n, L] bool: stopped at the lower bound
    dual: Tensor  # [n, L] bool: held by the dual clip
    ratio: Tensor | None = None  # [n, L] what the bounds are for, where it is not the token's own π / π_old

    def weighted(self, weights: Tensor, mask: Tensor) -> "LossOutputs":
        """Multiply the loss of every valid token by a constant. weights, mask: [n, L]."""
        return replace(self, per_token=self.per_token * torch.where(mask.bool(), weights, 0))


@dataclass(frozen=True)
class RatioBounds(Section):
    """Bounds of the probability ratio, in verl's names."""

    clip_ratio_low: float | None = knob(
        None, "lower clip range; default: clip_ratio; for gspo 3e-4", above=0, idle="refuse"
    )
    clip_ratio_high: float | None = knob(
        None,
        "upper clip range (DAPO's clip-higher); default: clip_ratio; for gspo 4e-4",
        above=0,
        idle="refuse",
    )


@dataclass(frozen=True)
class ClipBounds(RatioBounds):
    """The same, with one range for both sides where they are not given."""

    clip_ratio: float = knob(0.2, "PPO clip range, both sides", at_least=0, idle="refuse")

    @property
    def low(self) -> float:
        """Ratios below 1 - low are clipped."""
        return self.clip_ratio if self.clip_ratio_low is None else self.clip_ratio_low

    @property
    def high(self) -> float:
        """Ratios above 1 + high are clipped; DAPO's clip-higher is 0.28."""
        return self.clip_ratio if self.clip_ratio_high is None else self.clip_ratio_high


@dataclass(frozen=True)
class DualClip(Section):
    """The bound on the weight of a token whose advantage is negative."""

    clip_ratio_c: float = knob(
        3.0,
        "dual clip: bound on the weight where the advantage is negative, for aspo at either sign",
        above=1,
    )


@dataclass(frozen=True)
class ClipSettings(ClipBounds, DualClip):
    """Of PPO-clip and its relatives."""


PolicyLoss = Callable[[LossInputs, Any], LossOutputs]
"""(inputs, the settings that the loss declares) -> the loss of every token."""

POLICY_LOSSES = PluginTable[PolicyLoss](
    "actor_rollout_ref.actor.policy_loss.loss_mode", package="archer.algorithms.policy_losses"
)
"""All losses by name. A file of this folder registers its own; one that gives the KL loss a coefficient for
each token says so with `kl_coefficient`, a function (settings, kl_loss_coef, reasoning, kl) ->
coefficients."""


def bound_loss(name: str, actor: Any) -> Callable[[LossInputs], LossOutputs]:
    """Return the policy loss of a name with its settings, read from the section `actor`.

    Where the inputs carry `rollout_is_weights`, the loss of every token is multiplied by its weight.
    """
    plugin = POLICY_LOSSES.find(name)
    settings = plugin.settings_from(actor)

    def loss(inputs: LossInputs) -> LossOutputs:
        outputs = plugin.function(inputs, settings)
        weights = inputs.rollout_is_weights
        return outputs if weights is None else outputs.weighted(weights, inputs.mask)

    return loss
