"""What every policy loss is given and gives back, and the clip ranges they share."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from archer.errors import ArcherError

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

    def weighted(self, weights: Tensor, mask: Tensor) -> "LossOutputs":
        """Multiply the loss of every valid token by a constant. weights, mask: [n, L]."""
        return replace(self, per_token=self.per_token * torch.where(mask.bool(), weights, 0))


@dataclass(frozen=True)
class ClipConfig:
    """Bounds on the probability ratio, in the names of verl's `actor_rollout_ref.actor`."""

    clip_ratio_low: float = 0.2  # ratios below 1 - clip_ratio_low are clipped
    clip_ratio_high: float = 0.2  # ratios above 1 + clip_ratio_high are clipped; DAPO's clip-higher is 0.28
    clip_ratio_c: float = 3.0  # dual clip: largest weight of a token with negative advantage

    def __post_init__(self) -> None:
        for name, value in (
            ("clip_ratio_low", self.clip_ratio_low),
            ("clip_ratio_high", self.clip_ratio_high),
        ):
            if not value >= 0:
                raise ArcherError(
                    f"actor_rollout_ref.actor.{name}={value} is negative. Set it to 0 or more, such as 0.2."
                )
        if not self.clip_ratio_c > 1:
            raise ArcherError(
                f"actor_rollout_ref.actor.clip_ratio_c={self.clip_ratio_c} would clip tokens that have not "
                "moved. Set it above 1, such as 3.0."
            )


@dataclass(frozen=True)
class TokenClassConfig:
    """How reasoning and knowledge tokens are told apart, and the bounds of each (Archer's dual-token loss).

    Reasoning tokens are those of high entropy in their response. The names are those of the Archer scripts.
    """

    token_entropy_quantile: float = 0.8  # tokens of a response above this quantile are reasoning tokens
    low_entropy_clip_ratio_low: float = 0.2
    low_entropy_clip_ratio_high: float = 0.2
    high_entropy_clip_ratio_low: float = 0.4
    high_entropy_clip_ratio_high: float = 0.4

    def __post_init__(self) -> None:
        prefix = "actor_rollout_ref.actor"
        if not 0 <= self.token_entropy_quantile <= 1:
            raise ArcherError(
                f"{prefix}.token_entropy_quantile={self.token_entropy_quantile} is no quantile. "
                "Set it between 0 and 1, such as 0.8."
            )
        for name, value in vars(self).items():
            if not value >= 0:
                raise ArcherError(f"{prefix}.{name}={value} is negative. Set it to 0 or more, such as 0.2.")


@dataclass(frozen=True)
class PolicyLossConfig:
    """Which policy loss, and the settings of each; a loss sees only the part that is its own."""

    loss_mode: str = "vanilla"  # verl's `actor_rollout_ref.actor.policy_loss.loss_mode`
    clip: ClipConfig = field(default_factory=ClipConfig)
    classes: TokenClassConfig = field(default_factory=TokenClassConfig)


PolicyLoss = Callable[[LossInputs], LossOutputs]
"""A policy loss with its settings bound."""
