"""The learning rate of every step."""

import math

import pytest

from archer.config.actor import OptimConfig
from archer.engines.local.update import lr_factor


def factors(config: OptimConfig, steps: int) -> list[float]:
    factor = lr_factor(config, steps)
    return [factor(step) for step in range(steps)]


def test_the_default_is_constant_from_the_first_step():
    assert factors(OptimConfig(), 5) == [1.0] * 5


def test_warm_up_rises_in_equal_steps_to_the_peak():
    assert factors(OptimConfig(lr_warmup_steps=3), 6) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


def test_warm_up_as_a_share_of_all_steps_is_used_only_without_a_number_of_steps():
    by_share = factors(OptimConfig(lr_warmup_steps_ratio=0.3), 10)
    assert by_share == factors(OptimConfig(lr_warmup_steps=3), 10)
    assert factors(OptimConfig(lr_warmup_steps=0, lr_warmup_steps_ratio=0.3), 10) == [1.0] * 10


@pytest.mark.parametrize("minimum", [0.0, 0.1])
@pytest.mark.parametrize("warmup", [0, 4])
def test_cosine_falls_from_the_peak_towards_the_minimum(warmup, minimum):
    steps = 20
    config = OptimConfig(lr_warmup_steps=warmup, lr_scheduler_type="cosine", min_lr_ratio=minimum)
    got = factors(config, steps)
    for step in range(warmup, steps):
        progress = (step - warmup) / (steps - warmup)
        expected = minimum + (1 - minimum) * (1 + math.cos(math.pi * progress)) / 2
        assert got[step] == pytest.approx(expected)
    assert got[warmup] == 1.0
    assert lr_factor(config, steps)(steps) == pytest.approx(minimum)


@pytest.mark.parametrize("kind", ["constant", "cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 5, 10, 25])
def test_no_step_has_rate_zero(kind, warmup):
    assert min(factors(OptimConfig(lr_warmup_steps=warmup, lr_scheduler_type=kind), 10)) > 0


def test_a_run_of_one_step_trains_at_the_peak():
    assert factors(OptimConfig(lr_scheduler_type="cosine"), 1) == [1.0]
