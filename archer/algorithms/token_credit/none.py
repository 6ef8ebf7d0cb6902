"""No token credit: every token is paid its response's advantage in full."""

import torch
from torch import Tensor

from archer.algorithms.token_credit.base import CREDIT_MODES, CreditInputs
from archer.plugins import NoSettings


@CREDIT_MODES.register("none")
def none(inputs: CreditInputs, settings: NoSettings) -> Tensor:
    """Weight 1 for every token."""
    return torch.ones_like(inputs.log_probs)
