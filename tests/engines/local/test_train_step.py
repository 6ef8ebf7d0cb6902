"""Whole training steps of the embedded default, made small."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from archer.engines.local import engine as engine_module
from archer.engines.local.engine import LocalEngine
from archer.engines.local.trainer import Trainer
from archer.generation.judge import Judged
from archer.generation.policy import Policy
from archer.rewards import RewardResult

SMALL = [
    "data.train_max_samples=40",
    "data.val_max_samples=6",
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
    "trainer.total_training_steps=10",
    "engine.threads=1",
    "engine.device=cpu",
]
PROMISED = {
    "actor/entropy",
    "actor/pg_loss",
    "actor/pg_clipfrac",
    "actor/pg_clipfrac_lower",
    "actor/ppo_kl",
    "actor/grad_norm",
    "actor/lr",
    "critic/score/mean",
    "critic/rewards/mean",
    "critic/rewards/max",
    "critic/rewards/min",
    "critic/advantages/mean",
    "response_length/mean",
    "response_length/max",
    "response_length/min",
    "response_length/clip_ratio",
    "prompt_length/mean",
    "reward/accuracy",
    "groups/mixed",
    "groups/all_correct",
    "groups/all_wrong",
    "training/rollout_probs_diff_mean",
    "training/rollout_probs_diff_max",
    "timing_s/step",
    "timing_s/gen",
    "timing_s/adv",
    "timing_s/update_actor",
    "perf/total_num_tokens",
    "perf/time_per_step",
    "perf/throughput",
    "perf/max_memory_allocated_gb",
}


def judge_with(trainer: Trainer, judge: object) -> None:
    trainer.collector.generation = replace(trainer.collector.generation, judge=judge)


def weights(model: torch.nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(map(torch.equal, first, second))


class ConstantJudge:
    """Calls everything wrong."""

    def judge(self, responses, groups, shaped=True) -> Judged:
        results = tuple(RewardResult.of_verdict(False) for _ in range(len(responses)))
        return Judged(responses, groups, results, torch.zeros(len(responses)))


@pytest.mark.parametrize("count", [0, 2])
def test_as_many_responses_of_a_step_are_shown_as_are_wanted(make_engine, count):
    engine = make_engine(f"trainer.log_step_responses={count}")
    report = engine.train_step(lambda: False)
    assert [response.rank for response in report.responses] == ["best"] * count + ["worst"] * count
    for response in report.responses:
        assert response.step == 1 and "+" in response.prompt and response.mean_entropy >= 0
        assert response.verdict == ("accepted" if response.reward > 0 else "rejected")
    rewards = [response.reward for response in report.responses]
    assert not count or min(rewards[:count]) >= max(rewards[count:])
    assert ("timing_s/step_responses" in report.metrics) == bool(count)


def test_a_step_reports_every_promised_metric_and_changes_the_weights(make_engine):
    engine = make_engine()
    trainer, before = engine.trainer, weights(engine.trainer.policy.model)
    report = trainer.train_step()
    metrics = report.metrics
    assert metrics.keys() >= PROMISED
    assert all(isinstance(value, float) and math.isfinite(value) for value in metrics.values())
    assert not same(weights(engine.trainer.policy.model), before)
    assert trainer.step == 1 and report.warning is None
    assert 0 < metrics["actor/entropy"] < math.log(20)
    assert metrics["critic/rewards/mean"] == metrics["critic/score/mean"] == metrics["reward/accuracy"]
    assert metrics["groups/mixed"] + metrics["groups/all_correct"] + metrics["groups/all_wrong"] == 4
    assert metrics["actor/lr"] == pytest.approx(engine.config.actor_rollout_ref.actor.optim.lr)
    assert metrics["timing_s/step"] >= metrics["timing_s/gen"] + metrics["timing_s/update_actor"]


def test_the_sampler_and_the_training_forward_agree_on_every_token(make_engine):
    metrics = make_engine().trainer.train_step().metrics
    assert metrics["training/rollout_log_probs_diff_max"] < 1e-3
    assert metrics["training/rollout_probs_diff_max"] < 1e-4


@pytest.mark.parametrize(
    "options",
    [
        ("actor_rollout_ref.actor.ppo_epochs=2",),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=2",),
        ("algorithm.adv_estimator=rloo", "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"),
        ("algorithm.adv_estimator=reinforce_plus_plus", "actor_rollout_ref.actor.entropy_coeff=0.01"),
        (
            "algorithm.norm_adv_by_std_in_grpo=False",
            "actor_rollout_ref.model.enable_gradient_checkpointing=True",
        ),
    ],
    ids=["epochs", "mini-batches", "rloo", "reinforce++", "dr.grpo, checkpointing"],
)
def test_variants_run_and_the_sampler_still_agrees_with_the_policy_that_sampled(make_engine, options):
    engine = make_engine(*options)
    trainer = engine.trainer
    for _ in range(2):
        metrics = trainer.train_step().metrics
        assert metrics["training/rollout_log_probs_diff_max"] < 1e-3
    assert metrics["actor/skipped_updates"] == 0


def test_with_several_passes_the_policy_moves_away_from_the_one_that_sampled(make_engine):
    metrics = make_engine("actor_rollout_ref.actor.ppo_epochs=3").trainer.train_step().metrics
    assert metrics["actor/ppo_kl"] != 0 and metrics["actor/pg_clipfrac"] > 0
    assert metrics["timing_s/old_log_prob"] > 0


def test_skip_optimizer_step_runs_everything_and_leaves_the_weights(make_engine):
    engine = make_engine("trainer.skip_optimizer_step=True")
    trainer, before = engine.trainer, weights(engine.trainer.policy.model)
    metrics = trainer.train_step().metrics
    assert same(weights(engine.trainer.policy.model), before)
    assert metrics.keys() >= PROMISED and metrics["actor/grad_norm"] > 0


def test_the_same_configuration_gives_the_same_numbers(make_engine):
    def run() -> tuple[list[Tensor], dict[str, float]]:
        engine = make_engine()
        trainer = engine.trainer
        trainer.train_step()
        metrics = trainer.train_step().metrics
        return weights(engine.trainer.policy.model), {
            k: v for k, v in metrics.items() if not k.startswith(("timing_s/", "perf/"))
        }

    (first, one), (second, two) = run(), run()
    assert same(first, second) and one == two


def test_responses_that_teach_nothing_leave_the_weights_without_dynamic_sampling(make_engine):
    engine = make_engine()
    judge_with(engine.trainer, ConstantJudge())
    before = weights(engine.trainer.policy.model)
    metrics = engine.trainer.train_step().metrics
    assert same(weights(engine.trainer.policy.model), before)
    assert metrics["actor/grad_norm"] == 0 and metrics["critic/advantages/max"] == 0


def test_a_step_without_a_mixed_group_counts_and_changes_nothing(make_engine):
    engine = make_engine(
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.max_num_gen_batches=2",
        "actor_rollout_ref.actor.optim.lr=1e-4",
        "actor_rollout_ref.actor.optim.lr_warmup_steps=3",
    )
    good_judge = engine.generation.judge
    judge_with(engine.trainer, ConstantJudge())
    trainer, before = engine.trainer, weights(engine.trainer.policy.model)
    report = trainer.train_step()
    assert trainer.step == 1 and "0 of 4" in report.warning
    assert same(weights(engine.trainer.policy.model), before)
    assert report.metrics["perf/sampled_tokens"] > 0
    judge_with(engine.trainer, good_judge)
    metrics = trainer.train_step().metrics
    assert metrics.keys() >= PROMISED
    assert metrics["actor/lr"] == pytest.approx(0.5e-4), "the schedule went on: this is its second step"
    assert not same(weights(engine.trainer.policy.model), before)


@pytest.fixture
def kl_loss_engine(make_engine) -> LocalEngine:
    return make_engine(
        "actor_rollout_ref.actor.use_kl_loss=True", "actor_rollout_ref.actor.kl_loss_coef=0.01"
    )


def test_the_kl_loss_is_zero_while_the_policy_is_the_reference_and_grows_when_it_moves(kl_loss_engine):
    trainer = kl_loss_engine.trainer
    reference = weights(kl_loss_engine.trainer.reference.model)
    first, second = (trainer.train_step().metrics["actor/kl_loss"] for _ in range(2))
    assert first == pytest.approx(0, abs=1e-9)
    assert second > 1e-5
    assert same(weights(kl_loss_engine.trainer.reference.model), reference)


def test_the_kl_loss_is_measured_against_the_reference_and_nothing_else(kl_loss_engine):
    with torch.no_grad():
        for parameter in kl_loss_engine.trainer.reference.model.parameters():
            parameter.mul_(1.05)
    assert kl_loss_engine.trainer.train_step().metrics["actor/kl_loss"] > 1e-5


def test_the_reference_is_loaded_only_where_a_kl_term_needs_it(make_engine):
    assert make_engine().trainer.reference is None


def test_kl_in_the_reward_is_zero_at_first_and_then_taken_off_the_rewards(make_engine):
    engine = make_engine("algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0.5")
    trainer = engine.trainer
    first = trainer.train_step().metrics
    assert first["actor/reward_kl_penalty"] == pytest.approx(0, abs=1e-6)
    assert first["critic/rewards/mean"] == pytest.approx(first["critic/score/mean"], abs=1e-5)

    policy = Policy(copy.deepcopy(engine.trainer.policy.model), engine.generation.compute, 1.0)
    seen = []
    collect = engine.trainer.collector.collect
    engine.trainer.collector.collect = lambda step: seen.append(collect(step)) or seen[-1]
    second = trainer.train_step().metrics
    responses = seen[0].judged.responses
    difference = (
        trainer._forward(policy, responses).log_probs
        - trainer._forward(engine.trainer.reference, responses).log_probs
    )
    per_response = difference.sum(-1)  # k1, zero outside the mask
    assert float(per_response.abs().max()) > 1e-3
    expected = seen[0].judged.scores - 0.5 * per_response
    assert second["critic/rewards/mean"] == pytest.approx(float(expected.mean()), abs=1e-5)
    per_token = float((per_response / responses.lengths).mean())
    assert second["actor/reward_kl_penalty"] == pytest.approx(per_token, abs=1e-6)


def test_validation_of_the_embedded_default_gives_the_promised_metrics_and_repeats_itself(make_engine):
    engine = make_engine()
    first, second = (engine.validate(lambda: False) for _ in range(2))
    assert first == second
    assert {key.split("/", 1)[0] for key in first.metrics} == {"val-core", "val-aux"}
    assert sum(key.endswith("/acc/mean@4") for key in first.metrics) == 1
    assert sum(key.endswith("/acc/pass@4") for key in first.metrics) == 1
    assert 0 <= first.accuracy <= 1


def test_bfloat16_products_train_float32_weights_and_sample_from_the_refreshed_copy(make_engine):
    engine = make_engine("engine.dtype=bfloat16")
    trainer = engine.trainer
    metrics = trainer.train_step().metrics
    assert all(p.dtype == torch.float32 for p in engine.trainer.policy.model.parameters())
    sampling, policy = engine.generation.rollout.model, engine.trainer.policy.model
    assert engine.generation.rollout.model is sampling is not policy
    for mine, theirs in zip(sampling.parameters(), policy.parameters(), strict=True):
        assert torch.equal(mine, theirs.bfloat16())
    assert metrics["training/rollout_probs_diff_mean"] < 0.02


def test_a_small_step_makes_right_responses_likelier_than_wrong_ones(make_engine):
    engine = make_engine("algorithm.norm_adv_by_std_in_grpo=False", "actor_rollout_ref.actor.optim.lr=1e-5")
    trainer = engine.trainer
    before = Policy(copy.deepcopy(engine.trainer.policy.model), engine.generation.compute, 1.0)
    seen = []
    collect = engine.trainer.collector.collect
    engine.trainer.collector.collect = lambda step: seen.append(collect(step)) or seen[-1]
    trainer.train_step()
    judged = seen[0].judged
    change = (
        trainer._forward(engine.trainer.policy, judged.responses).log_probs
        - trainer._forward(before, judged.responses).log_probs
    ).sum(-1)
    scores = judged.scores.view(-1, 4)
    advantages = (scores - scores.mean(-1, keepdim=True)).flatten()
    # To first order this is what the loss fell by, times the number of tokens.
    assert (advantages * change).sum() > 1e-3


def test_micro_batches_are_sized_last_beside_all_that_stays_in_memory(make_engine, monkeypatch):
    made = []
    real = engine_module.load_reference
    monkeypatch.setattr(
        engine_module, "load_reference", lambda *given: made.append("reference") or real(*given)
    )
    monkeypatch.setattr(engine_module, "choose_sizes", lambda *_: made.append("sizes"))
    make_engine("actor_rollout_ref.actor.use_kl_loss=True")
    assert made == ["reference", "sizes"]
