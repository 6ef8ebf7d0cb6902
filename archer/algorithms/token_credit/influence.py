"""Influence of any modules: as `nthr`, with the gradients of all linear modules, or of those that are named.

Their influence needs a forward and a backward of its own before the update, about as much as the update
costs.
"""

from dataclasses import dataclass

from torch import Tensor

from archer.algorithms.token_credit.base import CREDIT_MODES, CreditInputs
from archer.algorithms.token_credit.scored import ScoreDefinition, ScoreSettings
from archer.settings import knob


@dataclass(frozen=True)
class InfluenceCreditSettings(ScoreSettings):
    """How the influence is defined, and where it is read."""

    module_name_filter: tuple[str, ...] = knob(
        (),
        "influence: which linear modules are compared, as in trainer.influence_trace; empty: all of them",
    )


def _scores(settings: InfluenceCreditSettings) -> ScoreDefinition:
    return ScoreDefinition(
        "modules",
        settings.hessian_mode,
        projection_dim=settings.projection_dim,
        module_name_filter=settings.module_name_filter,
    )


@CREDIT_MODES.register("influence", settings=InfluenceCreditSettings, scores=_scores)
def influence(inputs: CreditInputs, settings: InfluenceCreditSettings) -> Tensor:
    """w_t = 0 where the token's influence is positive, else 1."""
    return (inputs.known_scores <= 0).to(inputs.log_probs.dtype)
