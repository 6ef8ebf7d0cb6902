"""Every algorithm end to end: chosen on the command line, a few real steps, both traces."""

import io
import json
import math
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

from archer.config import compose
from archer.engines.local import loss as loss_module
from archer.engines.local import trainer as trainer_module
from archer.engines.local.engine import LocalEngine
from archer.engines.local.trainer import Trainer
from archer.trace.reader import TraceReader
from archer.train import make_run
from archer.training.traces import Traces

ACTOR = "actor_rollout_ref.actor"
MODE = f"{ACTOR}.policy_loss.loss_mode"
SMALL = (
    "data.val_files=[]",
    "data.train_max_samples=40",
    "data.train_batch_size=4",
    f"{ACTOR}.ppo_mini_batch_size=2",
    "actor_rollout_ref.rollout.n=4",
    "trainer.total_training_steps=2",
    "trainer.save_freq=-1",
    "engine.threads=1",
    "engine.device=cpu",
)
ALGORITHMS = {
    "aspo": (f"{MODE}=aspo",),
    "dual token": (f"{MODE}=dual_token", f"{ACTOR}.use_kl_loss=True"),
    "gspo": (f"{MODE}=gspo", f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"),
    "cispo": (f"{MODE}=cispo", f"{ACTOR}.clip_ratio_low=1.0"),
    "dr.grpo": ("algorithm.adv_estimator=dr_grpo", f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm"),
    "token weights": ("algorithm.rollout_correction.rollout_is=token",),
    "sequence weights": (
        "algorithm.rollout_correction.rollout_is=sequence",
        "algorithm.rollout_correction.rollout_is_threshold=0.5_2.0",
        "algorithm.rollout_correction.rollout_is_batch_normalize=True",
    ),
}


@pytest.mark.parametrize("options", ALGORITHMS.values(), ids=ALGORITHMS.keys())
def test_an_algorithm_chosen_by_overrides_trains_and_traces(options, tmp_path):
    config = compose([*SMALL, f"trainer.default_local_dir={tmp_path}", f"{ACTOR}.ppo_epochs=2", *options])
    outcome = make_run(config, Console(file=io.StringIO())).execute()
    assert outcome.steps == 2
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for metrics in lines:
        assert all(math.isfinite(value) for value in metrics.values())
        assert metrics["actor/skipped_updates"] == 0
    assert any(metrics["actor/grad_norm"] > 0 for metrics in lines)
    assert any(metrics["actor/ppo_kl"] != 0 for metrics in lines), "the second epoch is off-policy"
    arrays = TraceReader(tmp_path / "influence_trace").read(1).arrays
    assert np.isfinite(arrays.influence[arrays.response_mask]).all()


@dataclass(frozen=True)
class Step:
    """A trainer after its first step, and what that reported."""

    trainer: Trainer
    metrics: dict[str, float]

    @property
    def weights(self) -> list[Tensor]:
        return [p.detach() for p in self.trainer.policy.model.parameters()]

    @property
    def influence(self) -> Tensor:
        return self.trainer.recorder.influence

    def same_weights(self, other: "Step") -> bool:
        return all(map(torch.equal, self.weights, other.weights))


@pytest.fixture
def first_step(tmp_path):
    """`first_step(name, *overrides)`: run one step."""
    with ExitStack() as closing:

        def run(name: str, *overrides: str) -> Step:
            config = compose([*SMALL, f"trainer.default_local_dir={tmp_path / name}", *overrides])
            engine = LocalEngine(config)
            engine.start(None, closing)
            engine.traces = Traces(config, engine.tokenizer, resumed_at=0)
            closing.callback(engine.traces.close)
            return Step(engine.trainer, engine.trainer.train_step().metrics)

        yield run


@pytest.mark.parametrize("mode", ["aspo", "gspo", "cispo", "dual_token"])
def test_off_policy_the_losses_really_differ(mode, first_step):
    vanilla, other = first_step("vanilla"), first_step(mode, f"{MODE}={mode}")
    assert not vanilla.same_weights(other)


def test_the_classes_of_tokens_stay_the_same_while_the_policy_moves(first_step, monkeypatch):
    seen: list[Tensor] = []
    original = loss_module.reasoning_tokens

    def watched(entropy, mask, quantile) -> Tensor:
        seen.append(original(entropy, mask, quantile))
        return seen[-1]

    monkeypatch.setattr(loss_module, "reasoning_tokens", watched)
    step = first_step("run", f"{ACTOR}.ppo_epochs=2", f"{ACTOR}.optim.lr=1e-2")
    assert abs(step.metrics["actor/ppo_kl"]) > 0.01
    epochs = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert all(map(torch.equal, *epochs))


def test_weights_for_equal_policies_change_next_to_nothing_and_a_skewed_sampler_changes_much(
    first_step, monkeypatch
):
    corrected = "algorithm.rollout_correction.rollout_is=token"
    plain, weighted = first_step("plain"), first_step("weighted", corrected)
    assert weighted.metrics["rollout_corr/rollout_is_mean"] == pytest.approx(1, abs=1e-4)
    for mine, theirs in zip(plain.weights, weighted.weights, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)

    original = trainer_module.rollout_is_weights

    def skewed(old, rollout, *rest):
        return original(old, rollout - 0.5 * torch.rand(rollout.shape), *rest)

    monkeypatch.setattr(trainer_module, "rollout_is_weights", skewed)
    other = first_step("skewed", corrected)
    assert other.metrics["rollout_corr/rollout_is_mean"] > 1.1
    assert not weighted.same_weights(other)


INFLUENCE = "trainer.influence_trace"


@pytest.mark.parametrize("objective", ["log_prob", "log_prob_advantage", "log_prob_reward"])
@pytest.mark.parametrize("name", ["aspo", "dual token", "gspo", "cispo"])
def test_influence_through_a_loss_is_that_of_its_own_backward(name, objective, first_step):
    """The second mini-batch is off-policy: its weights need not be a multiple of the objective's."""
    options = (*ALGORITHMS[name], f"{INFLUENCE}.output_function={objective}")
    traced = first_step("traced", *options)
    exact = first_step("exact", *options, f"{INFLUENCE}.proportionality_tolerance=0")
    assert traced.metrics["influence_trace/rows_emitted"] > 0
    assert exact.metrics["influence_trace/debug_rescaled_micro_batches"] == 0
    mine, theirs = traced.influence, exact.influence
    assert torch.equal(mine.isnan(), theirs.isnan())
    scale = float(theirs.nan_to_num().abs().max())
    torch.testing.assert_close(mine, theirs, atol=1e-3 * scale, rtol=1e-3, equal_nan=True)


@pytest.mark.parametrize("name", ["aspo", "dual token", "gspo", "cispo"])
def test_the_training_losss_own_influence_is_finite_and_differs_from_the_vanilla_loss(name, first_step):
    objective = f"{INFLUENCE}.output_function=training_loss"
    vanilla = first_step("vanilla", objective).influence
    other = first_step("other", objective, *ALGORITHMS[name]).influence
    assert torch.isfinite(other[~other.isnan()]).all() and torch.equal(vanilla.isnan(), other.isnan())
    assert not torch.allclose(vanilla.nan_to_num(), other.nan_to_num(), rtol=1e-3, atol=0)


def test_on_policy_aspo_needs_no_second_backward(first_step):
    options = (f"{MODE}=aspo", f"{ACTOR}.ppo_mini_batch_size=4", f"{INFLUENCE}.output_function=log_prob")
    metrics = first_step("on", *options).metrics
    assert metrics["influence_trace/debug_rescaled_micro_batches"] > 0
    assert metrics["influence_trace/debug_second_backwards"] == 0
