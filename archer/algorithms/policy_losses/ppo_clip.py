"""PPO-clip with separate lower and upper bounds (DAPO's clip-higher) and dual clip.

arXiv 1707.06347 (PPO), 2503.14476 (DAPO), 1912.09729 (dual clip).
"""

import torch
from torch import Tensor

from archer.algorithms.policy_losses.base import POLICY_LOSSES, ClipSettings, LossInputs, LossOutputs


@POLICY_LOSSES.register("vanilla", settings=ClipSettings)
def ppo_clip(inputs: LossInputs, clip: ClipSettings) -> LossOutputs:
    """Loss -A·w of each token, its weight w the bounded ratio r = π / π_old.

        w = min(r, 1 + clip_ratio_high)                    where A ≥ 0
        w = min(max(r, 1 - clip_ratio_low), clip_ratio_c)  where A < 0

    This is the textbook form, max(-A r, -A clip(r, 1 - low, 1 + high)), further bounded by -A·c where A < 0,
    with the sign of A resolved. The gradient is -A·r·∇log π within the bounds, on them too, and 0 beyond.
    """
    low, high = (inputs.advantages.new_full((), x) for x in (clip.low, clip.high))
    return clipped(inputs, low, high, clip.clip_ratio_c)


def clipped(
    inputs: LossInputs,
    low: Tensor,  # [] or [n, L]
    high: Tensor,  # [] or [n, L]
    c: float,
) -> LossOutputs:
    """PPO-clip with bounds that may differ from token to token."""
    valid, advantages = inputs.mask.bool(), inputs.advantages
    ratio = inputs.log_ratio.exp()
    weight = torch.where(
        advantages >= 0,
        ratio.clamp(max=1 + high),
        ratio.clamp(min=1 - low).clamp(max=c),
    )
    positive, negative = valid & (advantages > 0), valid & (advantages < 0)
    return LossOutputs(
        per_token=torch.where(valid, -advantages * weight, 0),
        up=positive & (ratio > 1 + high),
        down=negative & (ratio < 1 - low),
        dual=negative & (ratio > c),
    )
