"""Spare confident tokens: what the policy was sure of is not penalised in a rejected response.

Where mistakes are improbable tokens, most of a rejected response is right, and pushing all of it down costs
what the model knows.
"""

from dataclasses import dataclass

from torch import Tensor

from archer.algorithms.token_credit.base import CREDIT_MODES, CreditInputs
from archer.settings import Section, knob


@dataclass(frozen=True)
class SpareConfidentSettings(Section):
    """What counts as confident."""

    threshold: float = knob(
        0.5, "spare_confident: tokens with a probability above this are spared", at_least=0, at_most=1
    )


@CREDIT_MODES.register("spare_confident", settings=SpareConfidentSettings)
def spare_confident(inputs: CreditInputs, settings: SpareConfidentSettings) -> Tensor:
    """w_t = 0 where π(y_t) > threshold, else 1."""
    return (inputs.log_probs.exp() <= settings.threshold).to(inputs.log_probs.dtype)
