"""The oracle: of a rejected response only the first mistake is penalised. For the built-in task alone.

What credit assignment could give at best, if it knew which token was wrong.
"""

from torch import Tensor

from archer.algorithms.token_credit.base import CREDIT_MODES, CreditInputs
from archer.plugins import NoSettings


@CREDIT_MODES.register("oracle", mistakes=True)
def oracle(inputs: CreditInputs, settings: NoSettings) -> Tensor:
    """w_t = 1 at the first wrong token, else 0."""
    if inputs.mistakes is None:
        raise ValueError("the oracle needs the first mistakes, which only the built-in task knows")
    return inputs.mistakes.to(inputs.log_probs.dtype)
