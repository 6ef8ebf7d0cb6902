"""CISPO: clip the weight of a token, never its gradient (arXiv 2506.13585, MiniMax-M1)."""

import torch

from archer.algorithms.policy_losses.base import POLICY_LOSSES, ClipBounds, LossInputs, LossOutputs


@POLICY_LOSSES.register("cispo", settings=ClipBounds)
def cispo(inputs: LossInputs, clip: ClipBounds) -> LossOutputs:
    """Loss -[clip(r, 1 - clip_ratio_low, 1 + clip_ratio_high)]·A·log π of each token; [] holds constant.

    r = π / π_old. The gradient is -A·clip(r)·∇log π: every token keeps pulling, whatever the sign of A and
    the side of the bound. The paper leaves the lower bound open, clip_ratio_low=1. There is no dual clip.
    """
    valid = inputs.mask.bool()
    ratio = inputs.log_ratio.detach().exp()
    low, high = 1 - clip.low, 1 + clip.high
    log_probs = torch.where(valid, inputs.log_probs, 0)
    return LossOutputs(
        per_token=torch.where(valid, -ratio.clamp(low, high) * inputs.advantages * log_probs, 0),
        up=valid & (ratio > high),
        down=valid & (ratio < low),
        dual=torch.zeros_like(valid),
    )
