"""Settings that contradict each other, or that the chosen algorithm would not use, are refused at once."""

import pytest

from archer.config import compose
from archer.errors import ArcherError

ACTOR = "actor_rollout_ref.actor"
MODE = f"{ACTOR}.policy_loss.loss_mode"
CORRECTION = "algorithm.rollout_correction"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([f"{MODE}=asop"], "choose one of aspo, cispo, dual_token, gspo, vanilla, sapo, or your own"),
        (
            [f"{MODE}=dual_token", f"{ACTOR}.clip_ratio=0.3"],
            "set what dual_token reads: clip_ratio_c, low_entropy_clip_ratio_low",
        ),
        ([f"{MODE}=dual_token", f"{ACTOR}.clip_ratio_low=0.3"], f"{ACTOR}.clip_ratio_low=0.3 has no effect"),
        (
            [f"{MODE}=dual_token", f"{ACTOR}.clip_ratio_high=0.3"],
            f"{ACTOR}.clip_ratio_high=0.3 has no effect",
        ),
        ([f"{ACTOR}.low_entropy_clip_ratio_low=0.3"], "loss_mode is vanilla; it is read by dual_token"),
        (
            [f"{MODE}=aspo", f"{ACTOR}.high_entropy_clip_ratio_high=0.3"],
            "loss_mode is aspo; it is read by dual_token",
        ),
        ([f"{MODE}=gspo", f"{ACTOR}.clip_ratio=0.1"], "set what gspo reads: clip_ratio_low, clip_ratio_high"),
        (
            [f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.high_entropy_kl_loss_scale_coef=0.1"],
            "loss_mode is vanilla; it is read by dual_token",
        ),
        (
            [f"{MODE}=dual_token", f"{ACTOR}.high_entropy_kl_loss_scale_coef=0.1"],
            f"use_kl_loss is False. Leave it out, or set {ACTOR}.use_kl_loss=True",
        ),
        ([f"{ACTOR}.token_entropy_quantile=1.5"], "must be in [0, 1]"),
        ([f"{ACTOR}.token_entropy_quantile=-0.1"], "must be in [0, 1]"),
        ([f"{MODE}=dual_token", f"{ACTOR}.low_entropy_clip_ratio_high=-1"], "must be at least 0"),
        ([f"{MODE}=sapo", f"{ACTOR}.clip_ratio_high=0.28"], "set what sapo reads: tau_pos, tau_neg"),
        ([f"{MODE}=sapo", f"{ACTOR}.tau_neg=0"], "must be greater than 0"),
        (
            [f"{ACTOR}.loss_scale_factor=100"],
            f"is token-mean. Leave it out, or set {ACTOR}.loss_agg_mode=seq-mean-token-sum-norm",
        ),
        (
            ["algorithm.adv_estimator=rloo", "algorithm.norm_adv_by_std_in_grpo=False"],
            "adv_estimator is rloo; it is read by grpo, dr_grpo",
        ),
        ([f"{CORRECTION}.rollout_is=word"], "choose one of token, sequence"),
        ([f"{CORRECTION}.rollout_is_batch_normalize=True"], f"Leave it out, or set {CORRECTION}.rollout_is"),
        ([f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_is_threshold=-2"], "such as 2.0"),
        ([f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_is_threshold=0.5_5"], "such as 0.5_5.0"),
    ],
)
def test_a_contradiction_is_refused_and_says_what_to_do(overrides, expected):
    with pytest.raises(ArcherError) as error:
        compose(overrides)
    assert expected in str(error.value)


@pytest.mark.parametrize(
    "overrides",
    [
        [f"{MODE}=aspo", f"{ACTOR}.clip_ratio=0.1", f"{ACTOR}.clip_ratio_c=5"],
        [f"{MODE}=gspo", f"{ACTOR}.clip_ratio_low=3e-4", f"{ACTOR}.clip_ratio_high=4e-4"],
        # verl's scripts set a dual clip for GSPO, which has none; it does no harm
        [f"{MODE}=gspo", f"{ACTOR}.clip_ratio_c=10.0"],
        [f"{MODE}=cispo", f"{ACTOR}.clip_ratio_low=1.0", f"{ACTOR}.clip_ratio_high=4.0"],
        [f"{MODE}=sapo", f"{ACTOR}.tau_pos=0.9", f"{ACTOR}.tau_neg=2"],
        [f"{MODE}=dual_token", f"{ACTOR}.token_entropy_quantile=0.9"],
        [f"{MODE}=dual_token", f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.high_entropy_kl_loss_scale_coef=0.1"],
        [f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm", f"{ACTOR}.loss_scale_factor=100"],
        [f"{CORRECTION}.rollout_is=sequence", f"{CORRECTION}.rollout_is_threshold=0.5_5.0"],
        [f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_is_threshold=3"],
        [f"{CORRECTION}.rollout_is=null"],
    ],
)
def test_settings_that_go_together_are_accepted(overrides):
    compose(overrides)
