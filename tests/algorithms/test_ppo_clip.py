import math
import re

import pytest
import torch

from archer.algorithms.policy_losses.base import ClipSettings, LossInputs, bound_loss
from archer.algorithms.policy_losses.measures import loss_measures
from archer.algorithms.policy_losses.ppo_clip import ppo_clip
from archer.config.actor import actor_config
from archer.errors import ArcherError
from archer.settings import SettingError

CLIP = ClipSettings(clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=3.0)
INSIDE = 1e-6


def random_inputs(rng: torch.Generator, mask: torch.Tensor) -> LossInputs:
    """Ratios from e^-6 to e^6, so that every bound is met."""
    old = -torch.rand(mask.shape, generator=rng, dtype=torch.float64)
    new = old + 2 * torch.randn(mask.shape, generator=rng, dtype=torch.float64)
    advantages = torch.randn(mask.shape, generator=rng, dtype=torch.float64)
    advantages[:, 0] = 0
    return LossInputs(new.requires_grad_(), old, advantages, mask)


def textbook(
    log_prob: float, old: float, advantage: float, clip: ClipSettings
) -> tuple[float, dict[str, float]]:
    """The loss as published: the larger of two surrogates, with a ceiling where the advantage is negative."""
    r = math.exp(min(max(log_prob - old, -20), 20))
    plain = -advantage * r
    clipped = -advantage * min(max(r, 1 - clip.clip_ratio_low), 1 + clip.clip_ratio_high)
    loss = max(plain, clipped)
    dual = advantage < 0 and loss > -advantage * clip.clip_ratio_c
    if dual:
        loss = -advantage * clip.clip_ratio_c
    measures = {
        "pg_clipfrac": float(clipped > plain),
        "pg_clipfrac_lower": float(dual),
        "ppo_kl": old - log_prob,
    }
    return loss, measures


def test_loss_and_measures_agree_with_the_textbook_form_in_a_loop(rng, ragged_mask):
    mask = ragged_mask(rng, 16, 20)
    inputs = random_inputs(rng, mask)
    out = ppo_clip(inputs, CLIP)
    measured = {name: measure.values for name, measure in loss_measures(inputs, out).items()}
    for i in range(16):
        for t in range(20):
            loss, measures = 0.0, dict.fromkeys(("pg_clipfrac", "pg_clipfrac_lower", "ppo_kl"), 0.0)
            if mask[i, t]:
                row = (inputs.log_probs, inputs.old_log_probs, inputs.advantages)
                loss, measures = textbook(*(x[i, t].item() for x in row), CLIP)
            assert out.per_token[i, t].item() == pytest.approx(loss, abs=1e-12)
            for name, value in measures.items():
                assert measured[name][i, t].item() == pytest.approx(value, abs=1e-12), name
    assert all(measured[name].sum() > 0 for name in ("pg_clipfrac", "pg_clipfrac_lower"))


def test_gradient_agrees_with_finite_differences(rng, ragged_mask):
    mask = ragged_mask(rng, 5, 7)
    inputs = random_inputs(rng, mask)
    assert torch.autograd.gradcheck(
        lambda log_probs: (
            ppo_clip(LossInputs(log_probs, inputs.old_log_probs, inputs.advantages, mask), CLIP).per_token
        ),
        inputs.log_probs,
        eps=1e-7,
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [
        (1.0, 2.0, True),
        (1.28 - INSIDE, 2.0, True),
        (1.28 + INSIDE, 2.0, False),  # clip-higher
        (0.01, 2.0, True),  # the lower bound does not hold back a token that should rise
        (1.0, -2.0, True),
        (0.8 + INSIDE, -2.0, True),
        (0.8 - INSIDE, -2.0, False),
        (2.9, -2.0, True),  # nor the upper bound one that should fall
        (3.0 - INSIDE, -2.0, True),
        (3.0 + INSIDE, -2.0, False),  # dual clip
    ],
)
def test_a_token_pulls_with_minus_advantage_times_ratio_inside_the_bounds_and_not_beyond(
    ratio, advantage, moves
):
    log_probs = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, 1, dtype=torch.float64)
    ppo_clip(LossInputs(log_probs, 0 * one, advantage * one, one), CLIP).per_token.sum().backward()
    assert log_probs.grad.item() == pytest.approx(-advantage * ratio if moves else 0.0, rel=1e-9)


@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_at_the_first_update_the_gradient_is_minus_the_advantage(advantage):
    log_probs = torch.full((1, 3), -1.3, requires_grad=True)
    out = ppo_clip(
        LossInputs(log_probs, log_probs.detach(), torch.full((1, 3), advantage), torch.ones(1, 3)),
        ClipSettings(clip_ratio=0.0),
    )
    out.per_token.sum().backward()
    assert log_probs.grad.tolist() == [[-advantage] * 3]


def test_every_clip_value_is_really_used():
    def loss(ratio: float, advantage: float, clip: ClipSettings) -> float:
        x = torch.tensor([[math.log(ratio)]], dtype=torch.float64)
        one = torch.ones_like(x)
        return ppo_clip(LossInputs(x, 0 * x, advantage * one, one), clip).per_token.item()

    assert loss(9.0, 1.0, ClipSettings(clip_ratio_high=0.5)) == pytest.approx(-1.5)
    assert loss(0.1, -1.0, ClipSettings(clip_ratio_low=0.4)) == pytest.approx(0.6)
    assert loss(90.0, -1.0, ClipSettings(clip_ratio_c=7.0)) == pytest.approx(7.0)
    assert loss(90.0, -1.0, ClipSettings(clip_ratio_c=1e9)) == pytest.approx(90.0)


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf")])
def test_garbage_in_the_padding_reaches_neither_loss_nor_measures_nor_gradient(garbage):
    mask = torch.tensor([[True, False], [False, False]])
    clean = torch.tensor([[-1.0, 0.0], [0.0, 0.0]])
    log_probs = clean.masked_fill(~mask, garbage).requires_grad_()
    inputs = LossInputs(log_probs, clean, torch.where(mask, 1.0, garbage), mask)
    out = ppo_clip(inputs, CLIP)
    out.per_token.sum().backward()
    assert out.per_token.tolist() == [[-1.0, 0.0], [0.0, 0.0]]
    assert log_probs.grad.tolist() == [[-1.0, 0.0], [0.0, 0.0]]
    assert all((measure.values == 0).all() for measure in loss_measures(inputs, out).values())


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("difference", [1e4, -1e4])
def test_an_absurd_log_ratio_leaves_loss_and_gradient_finite(difference, advantage):
    log_probs = torch.tensor([[difference]], requires_grad=True)
    one = torch.ones(1, 1)
    loss = ppo_clip(LossInputs(log_probs, 0 * one, advantage * one, one), CLIP).per_token.sum()
    loss.backward()
    assert math.isfinite(loss.item())
    assert log_probs.grad.item() == 0.0


def test_measures_carry_no_gradient(rng, ragged_mask):
    inputs = random_inputs(rng, ragged_mask(rng, 4, 5))
    out = ppo_clip(inputs, CLIP)
    assert out.per_token.requires_grad
    assert not any(measure.values.requires_grad for measure in loss_measures(inputs, out).values())


def test_vanilla_is_ppo_clip_with_the_configured_bounds(rng, ragged_mask):
    inputs = random_inputs(rng, ragged_mask(rng, 4, 5))
    by_name = bound_loss("vanilla", actor_config(clip_ratio_high=0.28))(inputs)
    assert torch.equal(by_name.per_token, ppo_clip(inputs, CLIP).per_token)


def test_an_unknown_loss_mode_names_key_and_choices():
    with pytest.raises(ArcherError, match=re.escape("policy_loss.loss_mode='nope': choose one of")) as error:
        bound_loss("nope", actor_config())
    assert "vanilla" in str(error.value)


@pytest.mark.parametrize(
    "setting",
    [
        {"clip_ratio_low": -0.1},
        {"clip_ratio_low": 0.0},
        {"clip_ratio_high": -1.0},
        {"clip_ratio_high": math.nan},
        {"clip_ratio": -0.1},
        {"clip_ratio_c": 1.0},
        {"clip_ratio_c": math.inf},
    ],
)
def test_impossible_clip_values_are_named(setting):
    (name,) = setting
    for section in (ClipSettings, actor_config):
        with pytest.raises(SettingError, match=f"^{name}=.*: must be"):
            section(**setting)


def test_mismatched_shapes_are_refused_instead_of_broadcast():
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"all \[n, L\]"):
        LossInputs(x, x, torch.zeros(2, 1), x)
