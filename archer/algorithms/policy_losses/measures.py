"""What is measured about a policy loss, token by token, under verl's metric names after `actor/`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from archer.algorithms.policy_losses.base import LossInputs, LossOutputs
from archer.algorithms.token_classes import class_masks


@dataclass(frozen=True)
class TokenMeasure:
    """A value per token without gradient. The metric is its mean over some of the tokens of a step.

    Sums of values and counts of tokens add up over micro-batches, however the step was split; means do not.
    """

    values: Tensor  # [n, L]
    over: Tensor  # [n, L] bool: the tokens that the mean is over


@torch.no_grad()
def loss_measures(inputs: LossInputs, outputs: LossOutputs) -> dict[str, TokenMeasure]:
    """Return what is measured of a micro-batch.

    pg_clipfrac              stopped at the upper or lower bound, of all tokens
    pg_clipfrac_lower        held by the dual clip, of all tokens (verl's name for it)
    ppo_kl                   -log r, the k1 estimate of KL(π_old ‖ π)
    SIGN_pg_clipfrac_BOUND   stopped `up`, `down` or `dual`, of the tokens with `positive` or `negative`
                             advantage
    pg_clipfrac_CLASS, ppo_kl_CLASS    of the `reasoning` or `knowledge` tokens, where they are told apart
    reasoning_share          reasoning tokens, of all tokens
    """
    valid = inputs.mask.bool()
    stopped, moved = (outputs.up | outputs.down).double(), -inputs.log_ratio
    measures = {
        "pg_clipfrac": TokenMeasure(stopped, valid),
        "pg_clipfrac_lower": TokenMeasure(outputs.dual.double(), valid),
        "ppo_kl": TokenMeasure(moved, valid),
    }
    signs = {"positive": inputs.advantages > 0, "negative": inputs.advantages < 0}
    bounds = {"up": outputs.up, "down": outputs.down, "dual": outputs.dual}
    for sign, where in signs.items():
        for bound, indicator in bounds.items():
            measures[f"{sign}_pg_clipfrac_{bound}"] = TokenMeasure(indicator.double(), valid & where)
    if inputs.reasoning is not None:
        measures["reasoning_share"] = TokenMeasure(inputs.reasoning.double(), valid)
        for name, over in class_masks(inputs.reasoning, valid).items():
            measures[f"pg_clipfrac_{name}"] = TokenMeasure(stopped, over)
            measures[f"ppo_kl_{name}"] = TokenMeasure(moved, over)
    return measures
