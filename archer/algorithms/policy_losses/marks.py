"""What is measured about a policy loss, token by token, under verl's metric names after `actor/`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from archer.algorithms.policy_losses.base import LossInputs, LossOutputs


@dataclass(frozen=True)
class Mark:
    """A value per token without gradient. The metric is its mean over some of the tokens of a step.

    Sums of values and counts of tokens add up over micro-batches, however the step was split; means do not.
    """

    values: Tensor  # [n, L]
    over: Tensor  # [n, L] bool: the tokens that the mean is over


@torch.no_grad()
def loss_marks(inputs: LossInputs, outputs: LossOutputs) -> dict[str, Mark]:
    """Return the marks of a micro-batch.

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
    marks = {
        "pg_clipfrac": Mark(stopped, valid),
        "pg_clipfrac_lower": Mark(outputs.dual.double(), valid),
        "ppo_kl": Mark(moved, valid),
    }
    signs = {"positive": inputs.advantages > 0, "negative": inputs.advantages < 0}
    bounds = {"up": outputs.up, "down": outputs.down, "dual": outputs.dual}
    for sign, where in signs.items():
        for bound, indicator in bounds.items():
            marks[f"{sign}_pg_clipfrac_{bound}"] = Mark(indicator.double(), valid & where)
    if inputs.reasoning is not None:
        marks["reasoning_share"] = Mark(inputs.reasoning.double(), valid)
        for name, over in class_masks(inputs.reasoning, valid).items():
            marks[f"pg_clipfrac_{name}"] = Mark(stopped, over)
            marks[f"ppo_kl_{name}"] = Mark(moved, over)
    return marks


def class_masks(reasoning: Tensor, valid: Tensor) -> dict[str, Tensor]:
    """Return the tokens of each class. reasoning, valid: [n, L] bool."""
    return {"reasoning": reasoning & valid, "knowledge": valid & ~reasoning}
