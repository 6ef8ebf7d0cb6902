"""Archer's dual-token constraints: PPO-clip whose bounds depend on the kind of token (arXiv 2507.15778).

Reasoning tokens, those of high entropy within their response, may move far; knowledge tokens are held close
to the policy that sampled them. The KL loss, where there is one, has a coefficient for each kind too:
`archer.engines.loss_settings.weighted_kl`.
"""

from archer.algorithms.policy_losses.base import ClipConfig, LossInputs, LossOutputs, TokenClassConfig
from archer.algorithms.policy_losses.ppo_clip import clipped
from archer.algorithms.token_classes import by_class


def dual_token(inputs: LossInputs, clip: ClipConfig, classes: TokenClassConfig) -> LossOutputs:
    """PPO-clip, its bounds chosen token by token:

        low, high = high_entropy_clip_ratio_low, high_entropy_clip_ratio_high  at reasoning tokens
        low, high = low_entropy_clip_ratio_low, low_entropy_clip_ratio_high    at knowledge tokens

    Of `clip` only the dual clip's bound is used. `inputs.reasoning` says which token is which.
    """
    if inputs.reasoning is None:
        raise ValueError("the dual-token loss needs LossInputs.reasoning")
    like = inputs.advantages
    return clipped(
        inputs,
        by_class(
            inputs.reasoning, classes.high_entropy_clip_ratio_low, classes.low_entropy_clip_ratio_low, like
        ),
        by_class(
            inputs.reasoning, classes.high_entropy_clip_ratio_high, classes.low_entropy_clip_ratio_high, like
        ),
        clip.clip_ratio_c,
    )
