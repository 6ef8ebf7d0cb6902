"""What every policy loss is given and gives back, and the clip ranges they share."""

from collections.abc import Callable
from dataclasses import dataclass, field

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

    def __post_init__(self) -> None:
        shapes = [tuple(x.shape) for x in (self.log_probs, self.old_log_probs, self.advantages, self.mask)]
        if len(set(shapes)) != 1:
            raise ValueError(f"expected log_probs, old_log_probs, advantages, mask all [n, L]; got {shapes}")

    @property
    def log_ratio(self) -> Tensor:
        """log π - log π_old in [-20, 20]; 0 outside the mask, so that padding has no gradient: [n, L]."""
        difference = torch.where(self.mask.bool(), self.log_probs - self.old_log_probs, 0)
        return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


@dataclass(frozen=True)
class LossOutputs:
    """The loss of every token, not yet aggregated, and what is to be measured about it.

    Marks are token values without gradient, indicators mostly. A metric is the mean of its mark over the
    valid tokens of the mini-batch; since a mark is kept per token, its sums over micro-batches add up however
    the mini-batch was split.
    """

    per_token: Tensor  # [n, L], zero outside the mask
    marks: dict[str, Tensor]  # each [n, L], zero outside the mask, by verl's metric name after `actor/`


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
class PolicyLossConfig:
    """Which policy loss, and the settings of each; a loss sees only the part that is its own."""

    loss_mode: str = "vanilla"  # verl's `actor_rollout_ref.actor.policy_loss.loss_mode`
    clip: ClipConfig = field(default_factory=ClipConfig)


PolicyLoss = Callable[[LossInputs], LossOutputs]
"""A policy loss with its settings bound."""
