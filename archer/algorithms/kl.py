"""Estimates of KL(π ‖ π_ref) from the log-probs of tokens sampled from π.

With d = log π(a) - log π_ref(a), for a sampled from π. "Value" is the expectation of the estimate, "gradient"
that of its derivative when it is minimised as a loss; the two need not belong to the same divergence
(J. Schulman, "Approximating KL divergence", 2020). In the reward only the value matters.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from archer.algorithms.lookup import choose

KLEstimator = Callable[[Tensor, Tensor], Tensor]
"""(log_probs [n, L], ref_log_probs [n, L]) -> KL of each token [n, L]."""

MAX_LOG_RATIO = 20.0
MAX_K3 = 10.0


def k1(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """The log-ratio d itself.

    Value: unbiased, with a large variance and either sign.
    Gradient: ∇log π, whose expectation is 0. As a loss it only adds noise.
    """
    return log_probs - ref_log_probs


def absolute(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """|d|.

    Value: biased upwards; of first order in the difference of the two policies, where KL is of second.
    Gradient: sign(d) ∇log π, a pull towards π_ref of constant strength.
    """
    return (log_probs - ref_log_probs).abs()


def k2(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """d² / 2.

    Value: biased, though little while the policies are close; never negative.
    Gradient: d ∇log π, an unbiased gradient of KL(π ‖ π_ref).
    """
    return 0.5 * (log_probs - ref_log_probs).square()


def k3(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """e^-d - 1 + d, with d in [-20, 20] and the result at most 10 (as in verl).

    Value: unbiased but for those bounds, of low variance, never negative.
    Gradient: (1 - π_ref/π) ∇log π, in expectation the gradient of the other divergence, KL(π_ref ‖ π); the
    two agree to first order while the policies are close. No gradient beyond the bounds.
    """
    minus_d = (ref_log_probs - log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (torch.expm1(minus_d) - minus_d).clamp(max=MAX_K3)


KL_ESTIMATORS: dict[str, KLEstimator] = {
    "kl": k1,
    "k1": k1,
    "abs": absolute,
    "mse": k2,
    "k2": k2,
    "low_var_kl": k3,
    "k3": k3,
}
"""Estimators by verl's names: `actor.kl_loss_type` for the loss, `algorithm.kl_penalty` for the reward."""


def kl_estimator(name: str, key: str = "actor_rollout_ref.actor.kl_loss_type") -> KLEstimator:
    """Return the estimator of that name; `key` is the configuration key an error should point at."""
    return choose(KL_ESTIMATORS, name, key)
