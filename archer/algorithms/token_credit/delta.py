"""DelTA: weights by the distance to the accepted and rejected gradient centroids (after arXiv 2605.21467).

A token is paid more the nearer its gradient lies to the centroid of its own side. Of the squared distances

    |g_t - c_other|^2 - |g_t - c_own|^2 = 2 <g_t, c_own - c_other> + const

only the inner product differs between tokens: the identity influence, with the sign of the own side. Here it
is that of the output head.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from archer.algorithms.token_credit.base import CREDIT_MODES, CreditInputs
from archer.algorithms.token_credit.scored import ProjectionSettings, ScoreDefinition
from archer.settings import knob


@dataclass(frozen=True)
class DeltaSettings(ProjectionSettings):
    """How far weights may go."""

    delta_range: float = knob(0.2, "delta: weights lie in [1 - this, 1 + this]", at_least=0, at_most=1)


def _scores(settings: DeltaSettings) -> ScoreDefinition:
    return ScoreDefinition("head", hessian_mode="identity", projection_dim=settings.projection_dim)


@CREDIT_MODES.register("delta", settings=DeltaSettings, side="both", scores=_scores)
def delta(inputs: CreditInputs, settings: DeltaSettings) -> Tensor:
    """w_t = 1 - d + 2 d σ(z_t), z_t = ±s_t / rms(s), + in accepted and - in rejected responses.

    The root mean square is over the response's tokens: gradients of long and short responses compare.
    """
    scores, valid = inputs.known_scores, inputs.mask.to(inputs.log_probs.dtype)
    squares = (scores.square() * valid).sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp(min=1)
    own = torch.where(inputs.accepted, 1.0, -1.0).to(scores)[:, None]
    z = torch.where(squares > 0, own * scores / squares.clamp(min=torch.finfo(scores.dtype).tiny).sqrt(), 0.0)
    return 1 - settings.delta_range + 2 * settings.delta_range * torch.sigmoid(z)
