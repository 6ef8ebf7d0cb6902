"""What a policy loss did to each token, for a trace: its ratio, and the side at which it was bounded."""

from dataclasses import dataclass

import torch
from torch import Tensor

from archer.algorithms.policy_losses.base import LossInputs, LossOutputs

LOW, FREE, HIGH = -1, 0, 1
"""Where a token was bounded: below 1, not at all, above 1."""


@dataclass(frozen=True)
class TokenMarks:
    """Per token; ratio 0 and mark 0 outside the mask."""

    ratio: Tensor  # [n, L] π / π_old as the bounds see it: of gspo that of the whole response
    clipped: Tensor  # [n, L] int8: LOW, FREE or HIGH


@torch.no_grad()
def token_marks(inputs: LossInputs, outputs: LossOutputs) -> TokenMarks:
    """Read the marks off a loss.

    A token that is stopped `up` is HIGH, one stopped `down` is LOW. The dual clip holds weights, not ratios:
    its side is that of the ratio, HIGH for PPO's (r > c), LOW for aspo's at positive advantages (1/r > c).
    """
    valid = inputs.mask.bool()
    ratio = inputs.log_ratio.exp() if outputs.ratio is None else outputs.ratio
    high = outputs.up | (outputs.dual & (ratio > 1))
    low = outputs.down | (outputs.dual & (ratio < 1))
    return TokenMarks(
        ratio=torch.where(valid, ratio, 0),
        clipped=(high.to(torch.int8) * HIGH + low.to(torch.int8) * LOW) * valid,
    )
