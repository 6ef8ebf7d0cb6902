import math

import pytest

from archer.algorithms.kl import KLControlConfig, KLController
from archer.config.parse import parse
from archer.errors import ArcherError

ADAPTIVE = KLControlConfig(type="adaptive", kl_coef=0.5, target_kl=0.1, horizon=1000)


def test_a_fixed_coefficient_stays():
    controller = KLController(KLControlConfig(type="fixed", kl_coef=0.02))
    controller.update(current_kl=50.0, responses=512)
    assert controller.value == 0.02


@pytest.mark.parametrize(
    ("current_kl", "error"),
    [(0.1, 0.0), (0.11, 0.1), (0.095, -0.05), (7.0, 0.2), (0.0, -0.2), (-1.0, -0.2)],
)
def test_an_adaptive_coefficient_follows_the_clipped_relative_error(current_kl, error):
    controller = KLController(ADAPTIVE)
    controller.update(current_kl, responses=64)
    assert controller.value == pytest.approx(0.5 * (1 + error * 64 / 1000), rel=1e-12)


def test_a_controller_goes_on_from_its_saved_state():
    original = KLController(ADAPTIVE)
    original.update(0.3, responses=64)
    resumed = KLController(ADAPTIVE)
    resumed.load_state_dict(original.state_dict())
    for controller in (original, resumed):
        controller.update(0.05, responses=64)
    assert resumed.value == original.value != 0.5


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"horizon": 0}, "horizon=0: must be greater than 0"),
        ({"target_kl": 0.0}, "target_kl=0.0: must be greater than 0"),
        ({"kl_coef": -0.1}, "kl_coef=-0.1: must be at least 0"),
        ({"kl_coef": math.nan}, "kl_coef=nan"),
        ({"target_kl": math.inf}, "target_kl=inf"),
    ],
)
def test_impossible_settings_are_named(setting, named):
    with pytest.raises(ArcherError, match=named):
        KLControlConfig(**{"type": "adaptive"} | setting)


def test_an_unknown_kind_of_control_is_named():
    with pytest.raises(ArcherError, match=r"type='pid': choose one of fixed, adaptive"):
        parse(KLControlConfig, {"type": "pid"})
