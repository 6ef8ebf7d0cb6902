"""GSPO, group sequence policy optimisation: one ratio for the whole response (arXiv 2507.18071)."""

import torch

from archer.algorithms.masked import masked_mean
from archer.algorithms.policy_losses.base import POLICY_LOSSES, LossInputs, LossOutputs, RatioBounds

CLIP_RATIO_LOW, CLIP_RATIO_HIGH = 3e-4, 4e-4
"""Bounds on a sequence's ratio where the user gives none: those of the paper."""
MAX_LOG_SEQUENCE_RATIO = 10.0
"""Bound on the logarithm of a sequence's ratio, as in verl; beyond it a response has no gradient."""


@POLICY_LOSSES.register("gspo", settings=RatioBounds)
def gspo(inputs: LossInputs, clip: RatioBounds) -> LossOutputs:
    """PPO-clip with the geometric mean of a response's ratios in place of each token's own:

        s_i   = exp( 1/|y_i| Σ_t log π(y_it) - log π_old(y_it) )
        s_it  = [s_i] · π(y_it) / [π(y_it)]            [] holds a value constant
        loss  = max(-A s_it, -A clip(s_it, 1 - clip_ratio_low, 1 + clip_ratio_high))

    Every token of a response is inside or outside the bounds together. With the aggregation
    seq-mean-token-mean, value and gradient are those of the paper's sequence loss, the mean over responses of
    max(-A s_i, -A clip(s_i)). A mean over a response varies far less than a token's ratio, so the bounds are
    of the order of 1e-4. There is no dual clip.
    """
    valid, advantages = inputs.mask.bool(), inputs.advantages
    difference = (inputs.log_probs - inputs.old_log_probs).detach()
    log_sequence_ratio = masked_mean(difference, valid, dim=-1).unsqueeze(-1).expand_as(difference)
    in_reach = log_sequence_ratio <= MAX_LOG_SEQUENCE_RATIO
    sequence_ratio = log_sequence_ratio.clamp(max=MAX_LOG_SEQUENCE_RATIO).exp()
    ratio = sequence_ratio * torch.where(in_reach, inputs.one, 1)
    low = 1 - (CLIP_RATIO_LOW if clip.clip_ratio_low is None else clip.clip_ratio_low)
    high = 1 + (CLIP_RATIO_HIGH if clip.clip_ratio_high is None else clip.clip_ratio_high)
    weight = torch.where(advantages >= 0, ratio.clamp(max=high), ratio.clamp(min=low))
    return LossOutputs(
        per_token=torch.where(valid, -advantages * weight, 0),
        up=valid & (advantages > 0) & (sequence_ratio > high),
        down=valid & (advantages < 0) & (sequence_ratio < low),
        dual=torch.zeros_like(valid),
        ratio=sequence_ratio,
    )
