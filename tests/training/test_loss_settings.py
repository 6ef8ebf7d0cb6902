"""How the configuration becomes the settings of a loss, the same for both engines."""

import pytest
import torch

from archer.algorithms.policy_losses.base import POLICY_LOSSES, ClipSettings
from archer.algorithms.policy_losses.dual_token import DualTokenSettings
from archer.config.actor import LossChoice, actor_config
from archer.training.token_loss import TokenLoss


@pytest.mark.parametrize(
    ("given", "low", "high"),
    [
        ({}, 0.2, 0.2),
        ({"clip_ratio": 0.1}, 0.1, 0.1),
        ({"clip_ratio_high": 0.28, "clip_ratio_c": 10.0}, 0.2, 0.28),
    ],
)
def test_bounds_that_are_not_set_fall_back_to_clip_ratio(given, low, high):
    settings = POLICY_LOSSES.find("vanilla").settings_from(actor_config(**given))
    assert isinstance(settings, ClipSettings)
    assert (settings.low, settings.high) == (low, high)
    assert settings.clip_ratio_c == given.get("clip_ratio_c", 3.0)


def test_the_settings_of_the_token_classes_are_taken_over():
    given = {
        "low_entropy_clip_ratio_low": 0.1,
        "low_entropy_clip_ratio_high": 0.15,
        "high_entropy_clip_ratio_low": 0.5,
        "high_entropy_clip_ratio_high": 0.6,
    }
    settings = POLICY_LOSSES.find("dual_token").settings_from(actor_config(**given))
    assert settings == DualTokenSettings(**given)


def test_the_kl_of_reasoning_tokens_has_its_own_coefficient_in_the_dual_token_loss_alone():
    kl, reasoning = torch.tensor([[2.0, 2.0]]), torch.tensor([[True, False]])
    given = {"kl_loss_coef": 0.5, "high_entropy_kl_loss_scale_coef": 0.25}
    dual = TokenLoss(actor_config(policy_loss=LossChoice("dual_token"), **given), horizon=2)
    assert dual._coefficient(reasoning, kl).tolist() == [[0.25, 0.5]]
    assert TokenLoss(actor_config(**given), horizon=2)._coefficient(reasoning, kl) == 0.5
