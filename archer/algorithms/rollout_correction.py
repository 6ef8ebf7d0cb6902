"""Truncated importance sampling for the mismatch of rollout and training, `algorithm.rollout_correction`.

A sampler with its own kernels and precision draws from π_rollout, which is not quite the π_old that training
computes for the same tokens. Weighting each token's loss by π_old / π_rollout corrects for it; truncation
bounds the variance. arXiv 2110.00641 (decoupled policies); F. Yao et al., "Your Efficient RL Framework
Secretly Brings You Off-Policy RL Training", 2025 (truncation). The knobs and their meaning are verl's.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from archer.algorithms.masked import masked_mean, masked_sum
from archer.errors import ArcherError
from archer.settings import Section, knob

MAX_LOG_WEIGHT = 20.0
"""Bound on the logarithm of a weight, as in verl."""


@dataclass(frozen=True)
class RolloutCorrectionConfig(Section):
    """`algorithm.rollout_correction`."""

    rollout_is: Literal["token", "sequence"] | None = knob(
        None, "weight the loss by π_old / π_rollout of each `token` or of the whole `sequence`; default: not"
    )
    rollout_is_threshold: str = knob(
        "2.0",
        "truncate these weights at an upper bound, `2.0`; or drop those outside two bounds, `0.5_5.0`",
        needs="rollout_is",
    )
    rollout_is_batch_normalize: bool = knob(
        False, "divide these weights by their mean over the step", needs="rollout_is", idle="refuse"
    )


@dataclass(frozen=True)
class Threshold:
    """Bounds on weights: at most `upper`; with a `lower` bound, those outside the two become 0 (IcePop)."""

    upper: float
    lower: float | None = None

    @staticmethod
    def parse(text: str) -> "Threshold":
        """Read `2.0`, which truncates at 2, or `0.5_5.0`, which drops what lies outside [0.5, 5]."""
        try:
            bounds = [float(part) for part in text.split("_")]
        except ValueError:
            bounds = []
        lower = bounds[0] if len(bounds) == 2 else 1.0
        if len(bounds) not in (1, 2) or not 0 < lower <= 1 <= bounds[-1] < math.inf:
            raise ArcherError(
                f"algorithm.rollout_correction.rollout_is_threshold={text}: expected an upper bound of at "
                "least 1, such as 2.0, or lower_upper around 1, such as 0.5_5.0 (with both points: the "
                "command line reads 0.5_5 as the number 0.55)"
            )
        return Threshold(bounds[-1], bounds[0] if len(bounds) == 2 else None)


@dataclass(frozen=True)
class RolloutCorrection:
    """The weights and what is measured about them, by verl's metric names after `rollout_corr/`."""

    weights: Tensor  # [N, L], zero outside the mask
    metrics: dict[str, float]


@torch.no_grad()
def rollout_is_weights(
    old_log_probs: Tensor,  # [N, L] of the whole step, by the training forward
    rollout_log_probs: Tensor,  # [N, L] as sampled
    mask: Tensor,  # [N, L]
    level: Literal["token", "sequence"],
    threshold: Threshold,
    batch_normalize: bool,
) -> RolloutCorrection:
    """Weights π_old / π_rollout of every token, truncated:

        token     w_it = exp(log π_old - log π_rollout)
        sequence  w_it = exp(Σ_t log π_old - log π_rollout), one weight for the whole response
        w <- min(w, upper), or w where lower ≤ w ≤ upper and 0 elsewhere
        w <- w / mean w, with `batch_normalize`: over tokens, or over responses for `sequence`

    The logarithm is held within [-20, 20]. Sequence weights are unbiased, with a variance that grows with
    length; token weights are biased and tame.
    """
    valid = mask.bool()
    log_ratio = torch.where(valid, old_log_probs - rollout_log_probs, 0).double()
    if level == "sequence":
        log_ratio = log_ratio.sum(-1, keepdim=True).expand_as(log_ratio)
    raw = torch.where(valid, log_ratio.clamp(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT).exp(), 0)
    if threshold.lower is None:
        weights = raw.clamp(max=threshold.upper)
    else:
        weights = torch.where((raw >= threshold.lower) & (raw <= threshold.upper), raw, 0)
    metrics = _metrics(raw, weights, valid, level, threshold)
    if batch_normalize:
        mean = _mean(weights, valid, level)
        metrics["rollout_is_batch_norm_factor"] = mean
        if mean > 0:
            weights = weights / mean
    return RolloutCorrection(weights.to(old_log_probs.dtype), metrics)


def _mean(values: Tensor, valid: Tensor, level: str) -> float:
    """Mean over valid tokens, or over responses that have any."""
    if level == "token":
        return float(masked_mean(values, valid))
    return float(masked_mean(masked_mean(values, valid, dim=-1), valid.any(-1)))


def _metrics(
    raw: Tensor, weights: Tensor, valid: Tensor, level: str, threshold: Threshold
) -> dict[str, float]:
    """Spread of the applied weights, how many were truncated, and the effective sample size over tokens."""
    lower = threshold.lower if threshold.lower is not None else 1 / threshold.upper
    mean = masked_mean(weights, valid)
    square = masked_mean(weights.square(), valid)
    chosen = weights[valid]
    return {
        "rollout_is_mean": float(mean),
        "rollout_is_max": float(chosen.max()) if len(chosen) else 0.0,
        "rollout_is_min": float(chosen.min()) if len(chosen) else 0.0,
        "rollout_is_std": float((square - mean.square()).clamp(min=0).sqrt()),
        "rollout_is_eff_sample_size": float(mean.square() / square) if float(square) > 0 else 0.0,
        "rollout_is_ratio_fraction_high": _mean((raw > threshold.upper).double(), valid, level),
        "rollout_is_ratio_fraction_low": _mean((raw < lower).double(), valid, level),
    }


@torch.no_grad()
def rollout_mismatch(old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor) -> dict[str, float]:
    """How far the sampler is from training, in verl's names after `rollout_corr/`; all tensors [N, L].

    With d = log π_old - log π_rollout of the sampled tokens:

        kl          mean of -d: the k1 estimate of KL(π_rollout ‖ π_old)
        k3_kl       mean of e^d - 1 - d: the k3 estimate of the same
        chi2_token  mean of e^2d, minus 1: the variance of token weights
        ppl_ratio   mean over responses of exp(mean -d): perplexity in training over that in rollout
    """
    valid = mask.bool()
    d = (
        torch.where(valid, old_log_probs - rollout_log_probs, 0)
        .double()
        .clamp(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT)
    )
    count = masked_sum(torch.ones_like(d), valid).clamp(min=1)
    return {
        "kl": float(-d.sum() / count),
        "k3_kl": float((torch.expm1(d) - d).sum() / count),
        "chi2_token": float(torch.where(valid, torch.expm1(2 * d), 0).sum() / count),
        "ppl_ratio": float(masked_mean((-masked_mean(d, valid, dim=-1)).exp(), valid.any(-1))),
    }
