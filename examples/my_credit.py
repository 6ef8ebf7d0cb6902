"""A mode of token credit of your own: NTHR with a soft edge.

    archer train algorithm.token_credit.mode=examples/my_credit.py:soft_nthr \\
        algorithm.token_credit.softness=0.5

A mode is a function (inputs, settings) -> weights [n, L], at least 0. `@reads` names the dataclass of its
settings, which are then settings of `algorithm.token_credit`, and what it says of itself: `side`, the
responses that it is meant for ("rejected" unless it says "accepted" or "both"); `keep_sum=True`, where the
weights of a response are made to have mean 1; `scores`, where it reads influence: which. Strength, range,
schedule and the permuted control are added by Archer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from archer.algorithms.token_credit.base import CreditInputs
from archer.algorithms.token_credit.scored import ScoreDefinition, ScoreSettings
from archer.plugins import reads
from archer.settings import knob


@dataclass(frozen=True)
class SoftNthrSettings(ScoreSettings):
    """How soft the edge is."""

    softness: float = knob(1.0, "scores, in root mean squares, over which a weight falls", above=0)


def of_head(settings: SoftNthrSettings) -> ScoreDefinition:
    """The influence of the output head: no backward is needed."""
    return ScoreDefinition("head", settings.hessian_mode, projection_dim=settings.projection_dim)


@reads(SoftNthrSettings, scores=of_head)
def soft_nthr(inputs: CreditInputs, settings: SoftNthrSettings) -> Tensor:
    """w_t = 2 σ(-s_t / (softness rms(s))): 1 where the score is 0, less where it pulls to the accepted."""
    scores = torch.where(inputs.mask, inputs.known_scores, 0)  # 0 where there is none
    squares = scores.square().sum(-1, keepdim=True) / inputs.mask.sum(-1, keepdim=True).clamp(min=1)
    unit = torch.where(squares > 0, squares.sqrt() * settings.softness, 1.0)
    return 2 * torch.sigmoid(-scores / unit)
