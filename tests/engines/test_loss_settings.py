"""How the configuration becomes the settings of a loss, the same for both engines."""

import pytest
import torch

from archer.algorithms.policy_losses import ClipConfig, TokenClassConfig
from archer.config.model import ActorConfig, PolicyLossConfig
from archer.engines.loss_settings import loss_settings, weighted_kl


@pytest.mark.parametrize(
    ("actor", "clip"),
    [
        (ActorConfig(), ClipConfig(0.2, 0.2, 3.0)),
        (ActorConfig(clip_ratio=0.1), ClipConfig(0.1, 0.1, 3.0)),
        (ActorConfig(clip_ratio_high=0.28, clip_ratio_c=10.0), ClipConfig(0.2, 0.28, 10.0)),
        (ActorConfig(policy_loss=PolicyLossConfig("gspo")), ClipConfig(3e-4, 4e-4, 3.0)),
        (ActorConfig(policy_loss=PolicyLossConfig("gspo"), clip_ratio_low=0.1), ClipConfig(0.1, 4e-4, 3.0)),
    ],
)
def test_bounds_that_are_not_set_fall_back_to_clip_ratio_and_for_gspo_to_its_own(actor, clip):
    assert loss_settings(actor).clip == clip


def test_the_settings_of_the_token_classes_are_taken_over():
    actor = ActorConfig(
        token_entropy_quantile=0.7,
        low_entropy_clip_ratio_low=0.1,
        low_entropy_clip_ratio_high=0.15,
        high_entropy_clip_ratio_low=0.5,
        high_entropy_clip_ratio_high=0.6,
    )
    assert loss_settings(actor).classes == TokenClassConfig(0.7, 0.1, 0.15, 0.5, 0.6)


def test_the_kl_of_reasoning_tokens_has_its_own_coefficient_in_the_dual_token_loss_alone():
    kl, reasoning = torch.tensor([[2.0, 2.0]]), torch.tensor([[True, False]])
    coefficients = {"kl_loss_coef": 0.5, "high_entropy_kl_loss_scale_coef": 0.25}
    dual = ActorConfig(policy_loss=PolicyLossConfig("dual_token"), **coefficients)
    assert weighted_kl(dual, kl, reasoning).tolist() == [[0.5, 1.0]]
    assert weighted_kl(ActorConfig(**coefficients), kl, reasoning).tolist() == [[1.0, 1.0]]
