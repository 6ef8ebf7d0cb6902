"""Pay tokens by their surprise: -log π, scaled so that a response is paid as much as before."""

from torch import Tensor

from archer.algorithms.token_credit.base import CREDIT_MODES, CreditInputs
from archer.plugins import NoSettings


@CREDIT_MODES.register("neg_log_prob", side="both", keep_sum=True)
def neg_log_prob(inputs: CreditInputs, settings: NoSettings) -> Tensor:
    """w_t ∝ -log π(y_t), with mean 1 over the response."""
    return (-inputs.log_probs).clamp(min=0)
