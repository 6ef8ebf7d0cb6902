"""ASPO, asymmetric importance sampling policy optimisation (arXiv 2510.06062).

PPO weights a token by its ratio. Where the advantage is positive that is the wrong way round: tokens that
have become likely already are pushed hardest, those still unlikely hardly at all. There ASPO turns the weight
over.
"""

import torch

from archer.algorithms.policy_losses.base import POLICY_LOSSES, ClipSettings, LossInputs, LossOutputs


@POLICY_LOSSES.register("aspo", settings=ClipSettings)
def aspo(inputs: LossInputs, clip: ClipSettings) -> LossOutputs:
    """Weight w of the gradient -A·w·∇log π of each token, with r = π / π_old and c = clip_ratio_c:

        w = min(1/r, c)  where A ≥ 0, and 0 where r > 1 + clip_ratio_high
        w = min(r, c)    where A < 0, and 0 where r < 1 - clip_ratio_low

    The bound c is soft: a token held by it keeps its gradient, at weight c (PPO's dual clip takes it away).
    The loss of a token is -A·w·π/[π], where [] holds a value constant: its value is -A·w, with that gradient.
    """
    valid, advantages, c = inputs.mask.bool(), inputs.advantages, clip.clip_ratio_c
    log_ratio = inputs.log_ratio.detach()
    ratio, inverse = log_ratio.exp(), (-log_ratio).exp()
    positive, negative = valid & (advantages > 0), valid & (advantages < 0)
    up = positive & (ratio > 1 + clip.high)
    down = negative & (ratio < 1 - clip.low)
    weight = torch.where(advantages >= 0, inverse, ratio).clamp(max=c).masked_fill(up | down, 0)
    return LossOutputs(
        per_token=torch.where(valid, -advantages * weight * inputs.one, 0),
        up=up,
        down=down,
        dual=(positive & ~up & (inverse > c)) | (negative & (ratio > c)),
    )
