"""SAPO: a soft gate in place of the clip (arXiv 2511.20347)."""

import math

import pytest
import torch
from torch import Tensor
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig as VerlActorConfig

from archer.algorithms.aggregation import LossTotals, aggregate
from archer.algorithms.policy_losses.base import LossInputs, LossOutputs, bound_loss
from archer.algorithms.policy_losses.measures import loss_measures
from archer.algorithms.policy_losses.sapo import SapoSettings, sapo
from archer.config.actor import actor_config
from archer.settings import SettingError

TAU_POS, TAU_NEG = 0.8, 1.6


def random_inputs(rng: torch.Generator, mask: Tensor, weights: bool = False) -> LossInputs:
    """One advantage a response, 0 for the last."""
    old = -3 * torch.rand(mask.shape, generator=rng, dtype=torch.float64)
    new = old + 0.8 * torch.randn(mask.shape, generator=rng, dtype=torch.float64)
    advantages = torch.randn(len(mask), 1, generator=rng, dtype=torch.float64).expand(mask.shape).clone()
    advantages[-1] = 0
    factors = torch.rand(mask.shape, generator=rng, dtype=torch.float64) if weights else None
    return LossInputs(new.requires_grad_(), old, advantages, mask, rollout_is_weights=factors)


def at(ratio: float, advantage: float, settings: SapoSettings) -> tuple[LossOutputs, float]:
    """The loss of one token, and its derivative by log pi."""
    log_probs = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    one = torch.ones_like(log_probs)
    out = sapo(LossInputs(log_probs, 0 * one, advantage * one, one), settings)
    out.per_token.sum().backward()
    return out, log_probs.grad.item()


def test_value_and_gradient_of_every_token_agree_with_a_loop(rng, ragged_mask):
    mask = ragged_mask(rng, 20, 13)
    inputs = random_inputs(rng, mask)
    out = bound_loss("sapo", actor_config(tau_pos=TAU_POS, tau_neg=TAU_NEG))(inputs)
    out.per_token.sum().backward()
    for i in range(20):
        for t in range(13):
            value = gradient = 0.0
            if mask[i, t]:
                a = inputs.advantages[i, t].item()
                r = math.exp(inputs.log_probs[i, t].item() - inputs.old_log_probs[i, t].item())
                tau = TAU_POS if a > 0 else TAU_NEG
                gate = 1 / (1 + math.exp(-tau * (r - 1)))
                value, gradient = -a * 4 / tau * gate, -a * r * 4 * gate * (1 - gate)
            assert out.per_token[i, t].item() == pytest.approx(value, rel=1e-12, abs=1e-14)
            assert inputs.log_probs.grad[i, t].item() == pytest.approx(gradient, rel=1e-12, abs=1e-14)


def test_the_gradient_agrees_with_finite_differences(rng, ragged_mask):
    mask = ragged_mask(rng, 5, 7)
    inputs = random_inputs(rng, mask)
    assert torch.autograd.gradcheck(
        lambda log_probs: (
            sapo(
                LossInputs(log_probs, inputs.old_log_probs, inputs.advantages, mask), SapoSettings()
            ).per_token
        ),
        inputs.log_probs,
    )


@pytest.mark.parametrize("weights", [False, True], ids=["plain", "rollout weights"])
def test_with_seq_mean_token_mean_it_is_verls(weights, rng, ragged_mask):
    mask = ragged_mask(rng, 20, 13)
    inputs = random_inputs(rng, mask, weights)
    theirs, metrics = core_algos.get_policy_loss_fn("sapo")(
        old_log_prob=inputs.old_log_probs,
        log_prob=inputs.log_probs,
        advantages=inputs.advantages,
        response_mask=mask.double(),
        loss_agg_mode="seq-mean-token-mean",
        config=VerlActorConfig(
            strategy="fsdp", rollout_n=4, use_dynamic_bsz=True, tau_pos=TAU_POS, tau_neg=TAU_NEG
        ),
        rollout_is_weights=inputs.rollout_is_weights,
    )
    (expected,) = torch.autograd.grad(theirs, inputs.log_probs)

    out = bound_loss("sapo", actor_config(tau_pos=TAU_POS, tau_neg=TAU_NEG))(inputs)
    ours = aggregate(out.per_token, mask, "seq-mean-token-mean", LossTotals.of(mask))
    (gradient,) = torch.autograd.grad(ours, inputs.log_probs)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-7, abs=1e-8)
    torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-14)
    measures = loss_measures(inputs, out)
    for name in ("pg_clipfrac", "pg_clipfrac_lower", "ppo_kl"):
        got = float(measures[name].values[measures[name].over].mean())
        assert got == pytest.approx(float(metrics[f"actor/{name}"]), rel=1e-5, abs=1e-7), name


def test_the_temperatures_are_verls_by_default():
    verls = VerlActorConfig(strategy="fsdp", rollout_n=4, use_dynamic_bsz=True)
    assert SapoSettings() == SapoSettings(verls.tau_pos, verls.tau_neg)


@pytest.mark.parametrize("tau", [0.1, 1.0, 7.0])
def test_at_ratio_one_the_gradient_is_ppos_whatever_the_temperatures(tau, rng, ragged_mask):
    mask = ragged_mask(rng, 6, 9)
    inputs = random_inputs(rng, mask)
    inputs = LossInputs(inputs.log_probs, inputs.log_probs.detach(), inputs.advantages, mask)
    actor = actor_config(tau_pos=tau, tau_neg=2 * tau)
    gradients = [
        torch.autograd.grad(bound_loss(mode, actor)(inputs).per_token.sum(), inputs.log_probs)[0]
        for mode in ("sapo", "vanilla")
    ]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-14, atol=0)


@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_the_pull_of_a_token_fades_with_the_distance_of_its_ratio_from_one(advantage):
    def pull(distance: float) -> float:
        """How hard the gradient by the ratio is, which PPO keeps constant inside its bounds."""
        return abs(at(1 + distance, advantage, SapoSettings())[1] / (1 + distance))

    for side in (1, -1):
        pulls = [pull(side * distance) for distance in (0.0, 0.2, 0.5, 0.9)]
        assert pulls == sorted(pulls, reverse=True)
        assert pulls[-1] > 0  # never taken away at once


def test_a_larger_temperature_closes_the_gate_faster_and_each_sign_has_its_own():
    narrow_pos, narrow_neg = SapoSettings(tau_pos=9.0), SapoSettings(tau_neg=9.0)
    for sign, changed, same in ((1.0, narrow_pos, narrow_neg), (-1.0, narrow_neg, narrow_pos)):
        plain = at(1.5, sign, SapoSettings())[1]
        assert abs(at(1.5, sign, changed)[1]) < abs(plain)
        assert at(1.5, sign, same)[1] == plain
    assert abs(at(1.5, -1.0, SapoSettings())[1]) < abs(at(1.5, 1.0, SapoSettings())[1])


def test_nothing_is_stopped_or_held(rng, ragged_mask):
    out = sapo(random_inputs(rng, ragged_mask(rng, 6, 9)), SapoSettings())
    assert not (out.up | out.down | out.dual).any()


@pytest.mark.parametrize("name", ["tau_pos", "tau_neg"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_temperature_is_a_finite_number_above_zero(name, value):
    for section in (SapoSettings, actor_config):
        with pytest.raises(SettingError, match=f"{name}=.*: must be (finite and )?greater than 0"):
            section(**{name: value})
