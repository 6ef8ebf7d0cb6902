"""80/20: only the tokens at which the policy was unsure are paid (arXiv 2506.01939)."""

from dataclasses import dataclass

from torch import Tensor

from archer.algorithms.token_classes import reasoning_tokens
from archer.algorithms.token_credit.base import CREDIT_MODES, CreditInputs
from archer.settings import Section, knob


@dataclass(frozen=True)
class EntropyTopSettings(Section):
    """Which tokens count as unsure."""

    entropy_quantile: float = knob(
        0.8,
        "entropy_top: tokens above this quantile of their response's entropies are paid",
        at_least=0,
        at_most=1,
    )


@CREDIT_MODES.register("entropy_top", settings=EntropyTopSettings, side="both")
def entropy_top(inputs: CreditInputs, settings: EntropyTopSettings) -> Tensor:
    """w_t = 1 for the tokens whose entropy is above the quantile of their response, else 0."""
    chosen = reasoning_tokens(inputs.entropy, inputs.mask, settings.entropy_quantile)
    return chosen.to(inputs.log_probs.dtype)
