"""From the configuration to what the policy losses are given: the same for both engines."""

from torch import Tensor

from archer.algorithms.policy_losses import ClipConfig, PolicyLossConfig, TokenClassConfig
from archer.algorithms.token_classes import by_class
from archer.config.model import ActorConfig

GSPO_CLIP_RATIO_LOW, GSPO_CLIP_RATIO_HIGH = 3e-4, 4e-4
"""Bounds on a sequence's ratio where the user gives none: those of the GSPO paper."""


def loss_settings(actor: ActorConfig) -> PolicyLossConfig:
    """Return the settings of the policy loss that `actor` names.

    `clip_ratio_low` and `clip_ratio_high` that are not set fall back to `clip_ratio`, and for GSPO to bounds
    of its own.
    """
    low, high = actor.clip_ratio, actor.clip_ratio
    if actor.policy_loss.loss_mode == "gspo":
        low, high = GSPO_CLIP_RATIO_LOW, GSPO_CLIP_RATIO_HIGH
    return PolicyLossConfig(
        loss_mode=actor.policy_loss.loss_mode,
        clip=ClipConfig(
            clip_ratio_low=low if actor.clip_ratio_low is None else actor.clip_ratio_low,
            clip_ratio_high=high if actor.clip_ratio_high is None else actor.clip_ratio_high,
            clip_ratio_c=actor.clip_ratio_c,
        ),
        classes=TokenClassConfig(
            token_entropy_quantile=actor.token_entropy_quantile,
            low_entropy_clip_ratio_low=actor.low_entropy_clip_ratio_low,
            low_entropy_clip_ratio_high=actor.low_entropy_clip_ratio_high,
            high_entropy_clip_ratio_low=actor.high_entropy_clip_ratio_low,
            high_entropy_clip_ratio_high=actor.high_entropy_clip_ratio_high,
        ),
    )


def weighted_kl(actor: ActorConfig, kl: Tensor, reasoning: Tensor) -> Tensor:
    """Multiply the KL of every token by its coefficient in the loss.

    That is `kl_loss_coef`; for the reasoning tokens of the dual-token loss `high_entropy_kl_loss_scale_coef`.

    kl:        [n, L]
    reasoning: [n, L] bool
    """
    if actor.policy_loss.loss_mode != "dual_token":
        return actor.kl_loss_coef * kl
    return by_class(reasoning, actor.high_entropy_kl_loss_scale_coef, actor.kl_loss_coef, kl) * kl
