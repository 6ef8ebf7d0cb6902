"""Estimates of KL(π ‖ π_ref) from the log-probs of tokens sampled from π.

With d = log π(a) - log π_ref(a), for a sampled from π. "Value" is the expectation of the estimate, "gradient"
that of its derivative when it is minimised as a loss; the two need not belong to the same divergence
(J. Schulman, "Approximating KL divergence", 2020). In the reward only the value matters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from archer.plugins import PluginTable
from archer.settings import Section, knob

KLEstimator = Callable[[Tensor, Tensor], Tensor]
"""(log_probs [n, L], ref_log_probs [n, L]) -> KL of each token [n, L]."""

KL_ESTIMATORS = PluginTable[KLEstimator](
    "actor_rollout_ref.actor.kl_loss_type", package=__name__, takes=("log_probs", "ref_log_probs")
)
"""Estimators by verl's names: `actor.kl_loss_type` for the loss, `algorithm.kl_penalty` for the reward."""

MAX_LOG_RATIO = 20.0
MAX_K3 = 10.0


@KL_ESTIMATORS.register("kl", "k1")
def k1(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """The log-ratio d itself.

    Value: unbiased, with a large variance and either sign.
    Gradient: ∇log π, whose expectation is 0. As a loss it only adds noise.
    """
    return log_probs - ref_log_probs


@KL_ESTIMATORS.register("abs")
def absolute(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """|d|.

    Value: biased upwards; of first order in the difference of the two policies, where KL is of second.
    Gradient: sign(d) ∇log π, a pull towards π_ref of constant strength.
    """
    return (log_probs - ref_log_probs).abs()


@KL_ESTIMATORS.register("mse", "k2")
def k2(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """d² / 2.

    Value: biased, though little while the policies are close; never negative.
    Gradient: d ∇log π, an unbiased gradient of KL(π ‖ π_ref).
    """
    return 0.5 * (log_probs - ref_log_probs).square()


@KL_ESTIMATORS.register("low_var_kl", "k3")
def k3(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """e^-d - 1 + d, with d in [-20, 20] and the result at most 10 (as in verl).

    Value: unbiased but for those bounds, of low variance, never negative.
    Gradient: (1 - π_ref/π) ∇log π, in expectation the gradient of the other divergence, KL(π_ref ‖ π); the
    two agree to first order while the policies are close. No gradient beyond the bounds.
    """
    minus_d = (ref_log_probs - log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (torch.expm1(minus_d) - minus_d).clamp(max=MAX_K3)


def kl_estimator(name: str, key: str = "actor_rollout_ref.actor.kl_loss_type") -> KLEstimator:
    """Return the estimator of that name; `key` is the setting that an error points at."""
    return KL_ESTIMATORS.find(name, key).function


MAX_ERROR = 0.2


@dataclass(frozen=True)
class KLControlConfig(Section):
    """The coefficient of KL in the reward, `algorithm.kl_ctrl`: constant or steered (arXiv 1909.08593)."""

    type: Literal["fixed", "adaptive"] = knob("fixed", "constant, or steered towards target_kl")
    kl_coef: float = knob(0.001, "(initial) weight", at_least=0)
    horizon: int = knob(
        10_000,
        "responses over which an adaptive weight reacts; larger is slower",
        above=0,
        needs="type=adaptive",
    )
    target_kl: float = knob(
        0.1,
        "KL per token that an adaptive weight aims at",
        above=0,
        needs="type=adaptive",
    )


class KLController:
    """Holds the coefficient β in `value`; its state belongs in the checkpoint."""

    def __init__(self, config: KLControlConfig) -> None:
        self.config = config
        self.value = config.kl_coef

    def update(self, current_kl: float, responses: int) -> None:
        """Adaptive: β ← β (1 + clip(KL / target - 1, ±0.2) · responses / horizon). Fixed: nothing.

        current_kl: mean over responses of their mean KL per token, which is
            `aggregate(kl, mask, "seq-mean-token-mean", LossTotals.of(mask))`
        responses: how many of them there were
        """
        if self.config.type == "fixed":
            return
        error = min(max(current_kl / self.config.target_kl - 1, -MAX_ERROR), MAX_ERROR)
        self.value *= 1 + error * responses / self.config.horizon

    def state_dict(self) -> dict[str, float]:
        """What a resumed run needs."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Resume from `state_dict()`."""
        self.value = state["value"]
