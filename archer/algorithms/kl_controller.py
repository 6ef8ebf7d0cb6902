"""The coefficient of KL in the reward: constant, or steered towards a target (arXiv 1909.08593)."""

from dataclasses import dataclass

from archer.errors import ArcherError

MAX_ERROR = 0.2


@dataclass(frozen=True)
class KLControlConfig:
    """Settings in the names of verl's `algorithm.kl_ctrl`."""

    type: str = "fixed"  # "fixed" or "adaptive"
    kl_coef: float = 0.001  # the coefficient, or where an adaptive one starts
    target_kl: float = 0.1  # KL per token that an adaptive coefficient aims at
    horizon: float = 10_000.0  # responses over which it reacts: the larger, the slower

    def __post_init__(self) -> None:
        if self.type not in ("fixed", "adaptive"):
            raise ArcherError(
                f"algorithm.kl_ctrl.type={self.type} is not known. Choose one of: fixed, adaptive."
            )
        if self.type == "adaptive" and not (self.target_kl > 0 and self.horizon > 0):
            raise ArcherError(
                "algorithm.kl_ctrl.type=adaptive needs target_kl and horizon above 0; got "
                f"target_kl={self.target_kl}, horizon={self.horizon}. Set both, or type=fixed."
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
        """Go on from `state_dict()`."""
        self.value = state["value"]
