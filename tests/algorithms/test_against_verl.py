"""What verl computes too must come out the same: one configuration serves both engines."""

import numpy as np
import pytest
import torch
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_offpolicy_metrics, compute_rollout_correction_weights
from verl.workers.config import ActorConfig as VerlActorConfig

from archer.algorithms.advantages.base import AdvantageInputs, bound_advantage
from archer.algorithms.aggregation import AGGREGATIONS, LossTotals, aggregate
from archer.algorithms.config import AlgorithmConfig
from archer.algorithms.policy_losses.base import LossInputs, bound_loss
from archer.algorithms.policy_losses.measures import loss_measures
from archer.algorithms.rollout_correction import Threshold, rollout_is_weights, rollout_mismatch
from archer.config.actor import ActorConfig, actor_config
from archer.plugins import extended

HORIZON = 40
CLIPS = {
    "vanilla": actor_config(clip_ratio_low=0.2, clip_ratio_high=0.28),
    "gspo": actor_config(clip_ratio_low=0.1, clip_ratio_high=0.12),
    "cispo": actor_config(clip_ratio_low=0.3, clip_ratio_high=0.28),
}


def random_inputs(rng: torch.Generator, mask: torch.Tensor, weights: bool = False) -> LossInputs:
    old = -3 * torch.rand(mask.shape, generator=rng, dtype=torch.float64)
    new = (old + 0.8 * torch.randn(mask.shape, generator=rng, dtype=torch.float64)).requires_grad_()
    advantages = torch.randn(len(mask), 1, generator=rng, dtype=torch.float64).expand(mask.shape).clone()
    advantages[-1] = 0
    factors = torch.rand(mask.shape, generator=rng, dtype=torch.float64) if weights else None
    return LossInputs(new, old, advantages, mask, rollout_is_weights=factors)


def verl_loss(mode: str, clip: ActorConfig, inputs: LossInputs, agg: str) -> tuple[torch.Tensor, dict]:
    config = VerlActorConfig(
        strategy="fsdp",
        rollout_n=4,
        use_dynamic_bsz=True,
        clip_ratio_low=clip.clip_ratio_low,
        clip_ratio_high=clip.clip_ratio_high,
        clip_ratio_c=clip.clip_ratio_c,
        global_batch_info={"loss_scale_factor": HORIZON},
    )
    return core_algos.get_policy_loss_fn(mode)(
        old_log_prob=inputs.old_log_probs,
        log_prob=inputs.log_probs,
        advantages=inputs.advantages,
        response_mask=inputs.mask.double(),
        loss_agg_mode=agg,
        config=config,
        rollout_is_weights=inputs.rollout_is_weights,
    )


@pytest.mark.parametrize("mode", CLIPS)
@pytest.mark.parametrize("agg", AGGREGATIONS)
@pytest.mark.parametrize("weights", [False, True], ids=["plain", "rollout weights"])
def test_losses_have_verls_value_gradient_and_metrics(mode, agg, weights, rng, ragged_mask):
    mask = ragged_mask(rng, 20, 13)
    inputs = random_inputs(rng, mask, weights)
    theirs, metrics = verl_loss(mode, CLIPS[mode], inputs, agg)
    (expected,) = torch.autograd.grad(theirs, inputs.log_probs)

    out = bound_loss(mode, CLIPS[mode])(inputs)
    ours = aggregate(out.per_token, mask, agg, LossTotals.of(mask), HORIZON)
    (gradient,) = torch.autograd.grad(ours, inputs.log_probs)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-7, abs=1e-8)
    torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-14)
    measures = loss_measures(inputs, out)
    for name in ("pg_clipfrac", "pg_clipfrac_lower", "ppo_kl"):
        got = float(measures[name].values[measures[name].over].mean())
        assert got == pytest.approx(metrics[f"actor/{name}"], rel=1e-5, abs=1e-7), name
    assert metrics["actor/pg_clipfrac"] > 0


def test_gspo_beyond_verls_bound_on_the_ratio_agrees_too():
    mask = torch.ones(2, 3, dtype=torch.bool)
    log_probs = torch.tensor([[0.0, 0.0, 0.0], [-90.0, -90.0, -90.0]], dtype=torch.float64).requires_grad_()
    old = torch.tensor([[-60.0, -30.0, -30.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    for sign in (1.0, -1.0):
        inputs = LossInputs(log_probs, old, sign * torch.ones_like(old), mask)
        theirs, _ = verl_loss("gspo", CLIPS["gspo"], inputs, "token-mean")
        ours = bound_loss("gspo", CLIPS["gspo"])(inputs).per_token.mean()
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-9)
        gradients = [torch.autograd.grad(loss, log_probs)[0] for loss in (ours, theirs)]
        torch.testing.assert_close(gradients[0], gradients[1])


def test_dr_grpo_is_verls_grpo_without_the_deviation(rng, ragged_mask):
    mask = ragged_mask(rng, 12, 7)
    mask[:, 0] = True
    rewards = torch.where(mask, torch.rand(mask.shape, generator=rng, dtype=torch.float64), 0)
    groups = torch.arange(12) // 4
    theirs, _ = core_algos.compute_grpo_outcome_advantage(
        rewards, mask.double(), np.array(groups.tolist()), norm_adv_by_std_in_grpo=False
    )
    ours = bound_advantage("dr_grpo", extended(AlgorithmConfig)())(AdvantageInputs(rewards, mask, groups))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("threshold", ["1.3", "0.6_1.8"])
@pytest.mark.parametrize("normalize", [False, True])
def test_rollout_weights_and_their_metrics_are_verls(level, threshold, normalize, rng, ragged_mask):
    mask = ragged_mask(rng, 15, 8)
    mask[:, 0] = True  # verl counts an empty response among the sequences of its fractions
    old = -3 * torch.rand(mask.shape, generator=rng, dtype=torch.float64)
    rollout = old + 0.3 * torch.randn(mask.shape, generator=rng, dtype=torch.float64)
    theirs, metrics = compute_rollout_correction_weights(
        old - rollout, mask.double(), level, threshold, normalize
    )
    ours = rollout_is_weights(old, rollout, mask, level, Threshold.parse(threshold), normalize)
    torch.testing.assert_close(ours.weights, theirs, rtol=1e-6, atol=1e-9)
    # verl's extremes of sequence weights are those before truncation; ours are of the weights applied.
    skipped = {"rollout_is_max", "rollout_is_min"} if level == "sequence" else set()
    for name in ours.metrics.keys() - skipped:
        assert ours.metrics[name] == pytest.approx(metrics[name], rel=1e-5, abs=1e-6), name


def test_the_mismatch_of_rollout_and_training_is_measured_as_verl_does(rng, ragged_mask):
    mask = ragged_mask(rng, 15, 8)
    mask[:, 0] = True
    old = -3 * torch.rand(mask.shape, generator=rng, dtype=torch.float64)
    rollout = old + 0.3 * torch.randn(mask.shape, generator=rng, dtype=torch.float64)
    theirs = compute_offpolicy_metrics(old, rollout, mask.double())
    for name, value in rollout_mismatch(old, rollout, mask).items():
        assert value == pytest.approx(theirs[name], rel=1e-6, abs=1e-9), name
