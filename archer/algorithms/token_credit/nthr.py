"""NTHR: spare the tokens of rejected responses that pull towards the accepted ones (after arXiv 2505.18830).

A rejected response shares reasoning with the accepted ones; penalising what they share lowers their
probability, too. The paper compares tokens by the gradients of the output head; so does this mode, in closed
form, in the forward that gives the log-probs: no backward is needed.
"""

from dataclasses import dataclass

from torch import Tensor

from archer.algorithms.token_credit.base import CREDIT_MODES, CreditInputs
from archer.algorithms.token_credit.scored import Anchors, ScoreDefinition, ScoreSettings
from archer.settings import knob


@dataclass(frozen=True)
class NthrSettings(ScoreSettings):
    """How the head's influence is defined."""

    anchors: Anchors = knob(
        "contrast", "nthr: compare with the accepted less the rejected responses, or with the accepted alone"
    )


def _scores(settings: NthrSettings) -> ScoreDefinition:
    return ScoreDefinition("head", settings.hessian_mode, settings.anchors, settings.projection_dim)


@CREDIT_MODES.register("nthr", settings=NthrSettings, scores=_scores)
def nthr(inputs: CreditInputs, settings: NthrSettings) -> Tensor:
    """w_t = 0 where the token's influence is positive, else 1."""
    return (inputs.known_scores <= 0).to(inputs.log_probs.dtype)
