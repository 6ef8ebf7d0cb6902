"""PPO-clip with separate lower and upper bounds (DAPO's clip-higher) and dual clip.

arXiv 1707.06347 (PPO), 2503.14476 (DAPO), 1912.09729 (dual clip).
"""

import torch

from archer.algorithms.policy_losses.base import ClipConfig, LossInputs, LossOutputs


def ppo_clip(inputs: LossInputs, clip: ClipConfig) -> LossOutputs:
    """Loss -A·w of each token, its weight w the bounded ratio r = π / π_old.

        w = min(r, 1 + clip_ratio_high)                    where A ≥ 0
        w = min(max(r, 1 - clip_ratio_low), clip_ratio_c)  where A < 0

    This is the textbook form, max(-A r, -A clip(r, 1 - low, 1 + high)), further bounded by -A·c where A < 0,
    with the sign of A resolved. The gradient is -A·r·∇log π within the bounds, on them too, and 0 beyond.

    Marks: `pg_clipfrac`, tokens stopped by low or high; `pg_clipfrac_lower`, tokens stopped by the dual clip;
    `ppo_kl`, -log r, the k1 estimate of KL(π_old ‖ π).
    """
    valid = inputs.mask.bool()
    log_ratio = inputs.log_ratio
    ratio = log_ratio.exp()
    weight = torch.where(
        inputs.advantages >= 0,
        ratio.clamp(max=1 + clip.clip_ratio_high),
        ratio.clamp(min=1 - clip.clip_ratio_low, max=clip.clip_ratio_c),
    )
    per_token = torch.where(valid, -inputs.advantages * weight, 0)

    with torch.no_grad():
        positive = valid & (inputs.advantages > 0)
        negative = valid & (inputs.advantages < 0)
        too_high = positive & (ratio > 1 + clip.clip_ratio_high)
        too_low = negative & (ratio < 1 - clip.clip_ratio_low)
        marks = {
            "pg_clipfrac": (too_high | too_low).to(ratio.dtype),
            "pg_clipfrac_lower": (negative & (ratio > clip.clip_ratio_c)).to(ratio.dtype),
            "ppo_kl": -log_ratio,
        }
    return LossOutputs(per_token, marks)
