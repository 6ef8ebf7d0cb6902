"""What a trace says of the update is what the update did: against plain loops, and against its metrics."""

import io
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from archer.algorithms.policy_losses.base import LossInputs, bound_loss
from archer.algorithms.policy_losses.token_marks import token_marks
from archer.algorithms.token_classes import reasoning_tokens
from archer.config import compose
from archer.config.actor import ActorConfig, actor_config
from archer.trace.reader import TraceReader
from archer.tracking.jsonl import read_metrics
from archer.train import make_run
from archer.training.update_marks import CHUNK, MarkMaker, UpdateView

MODES = ("vanilla", "dual_token", "aspo", "gspo", "cispo", "sapo")
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
N, L, HORIZON = CHUNK + 7, 12, 20


@pytest.fixture
def view() -> UpdateView:
    rng = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, L + 1, (N,), generator=rng)
    lengths[5] = 0  # a response without a verdict
    mask = torch.arange(L) < lengths[:, None]
    old = -torch.rand(N, L, generator=rng)
    return UpdateView(
        log_probs=(old + 0.5 * torch.randn(N, L, generator=rng)) * mask,
        old_log_probs=old * mask,
        entropy=torch.rand(N, L, generator=rng) * mask,
        advantages=torch.randn(N, 1, generator=rng).expand(N, L) * mask,
        mask=mask,
        rollout_is_weights=torch.rand(N, L, generator=rng) * mask,
    )


def loss_config(mode: str) -> ActorConfig:
    config = actor_config()
    return replace(config, policy_loss=replace(config.policy_loss, loss_mode=mode))


def batches() -> list[list[int]]:
    return [list(range(1, N, 2)), list(range(0, N, 2))]


@pytest.mark.parametrize("mode", MODES)
def test_ratio_and_clip_are_those_of_the_loss_of_the_whole_step(view, mode):
    config = loss_config(mode)
    marks = MarkMaker(config, HORIZON)(view, batches())
    reasoning = reasoning_tokens(view.entropy, view.mask, config.token_entropy_quantile)
    inputs = LossInputs(view.log_probs, view.old_log_probs, view.advantages, view.mask, reasoning)
    expected = token_marks(inputs, bound_loss(mode, config)(inputs))
    assert torch.equal(marks.ratio, expected.ratio)
    assert torch.equal(marks.clipped, expected.clipped)
    assert (marks.clipped != 0).any() or mode == "sapo"


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_loss_weights_are_those_of_a_loop_times_the_tokens_of_the_mini_batch(view, mode):
    marks = MarkMaker(actor_config(loss_agg_mode=mode), HORIZON)(view, batches())
    for rows in batches():
        lengths = {row: int(view.mask[row].sum()) for row in rows}
        tokens, sequences = sum(lengths.values()), sum(length > 0 for length in lengths.values())
        for row in rows:
            plain = {
                "token-mean": 1 / tokens,
                "seq-mean-token-sum": 1 / sequences,
                "seq-mean-token-mean": 1 / (sequences * max(1, lengths[row])),
                "seq-mean-token-sum-norm": 1 / (sequences * HORIZON),
            }[mode]
            for t in range(L):
                expected = plain * tokens * view.rollout_is_weights[row, t].item() * bool(view.mask[row, t])
                assert marks.loss_weight[row, t].item() == pytest.approx(expected, rel=1e-5)


def test_an_update_that_is_its_own_old_policy_has_ratio_one(view):
    marks = MarkMaker(actor_config(), HORIZON)(replace(view, old_log_probs=None), batches())
    assert torch.equal(marks.ratio, view.mask.float())
    assert not marks.clipped.any()


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run whose second mini-batch of a step sees weights that the first has moved."""
    folder = tmp_path_factory.mktemp("run")
    config = compose(
        [
            "data.train_batch_size=4",
            "actor_rollout_ref.actor.ppo_mini_batch_size=1",
            "actor_rollout_ref.actor.optim.lr=1e-3",
            "actor_rollout_ref.rollout.n=8",
            "data.val_files=[]",
            "trainer.total_training_steps=3",
            "trainer.entropy_trace.enable=True",
            "trainer.influence_trace.enable=True",
            "engine.threads=1",
            "engine.device=cpu",
            f"trainer.default_local_dir={folder}",
        ]
    )
    make_run(config, Console(file=io.StringIO())).execute()
    return folder


def test_clip_shares_and_divergence_of_a_real_run_are_its_metrics(trained):
    metrics = {line["step"]: line for line in read_metrics(trained / "metrics.jsonl")}
    moved = 0
    for loaded in TraceReader(trained / "entropy_trace"):
        arrays, line = loaded.arrays, metrics[loaded.step]
        mask = arrays.response_mask
        ratio, clipped = arrays.ratio[mask].astype(np.float64), arrays.clipped[mask]
        moved += int((ratio != 1).sum())
        stopped = line["actor/pg_clipfrac"] + line["actor/pg_clipfrac_lower"]
        assert (clipped != 0).mean() == pytest.approx(stopped, abs=1e-9)
        assert -np.log(ratio).mean() == pytest.approx(line["actor/ppo_kl"], abs=1e-3)
        assert (arrays.loss_weight[mask] == 1).all(), "token-mean"
        assert (arrays.truncated <= (arrays.lengths == 64)).all(), "cut off at the longest length"
        assert len(set(arrays.seed.tolist())) == arrays.rows, "every response has a stream of its own"
        difference = arrays.rollout_log_probs[mask].astype(float) - arrays.log_probs[mask].astype(float)
        assert np.abs(difference).max() < 1e-2, "the same weights sampled and trained"
        for row in range(arrays.rows):
            accepted = bool(arrays.accepted[row])
            assert accepted == (arrays.extracted_answer[row] == arrays.ground_truth[row])
            if accepted:
                assert arrays.reason[row] == f"found {arrays.ground_truth[row]}, as expected"
    assert moved > 100


def test_an_influence_step_is_the_rows_of_its_entropy_step(trained):
    entropy = TraceReader(trained / "entropy_trace")
    found = 0
    for loaded in TraceReader(trained / "influence_trace"):
        whole = entropy.read(loaded.step).arrays
        place = {index: row for row, index in enumerate(whole.response_index.tolist())}
        for row, index in enumerate(loaded.arrays.response_index.tolist()):
            valid = loaded.arrays.response_mask[row]
            there = whole.response_mask[place[index]]
            assert math.isfinite(float(np.nansum(loaded.arrays.influence[row])))
            for name in ("responses", "entropies", "ratio", "clipped", "rollout_log_probs"):
                ours, theirs = getattr(loaded.arrays, name)[row], getattr(whole, name)[place[index]]
                assert np.array_equal(ours[valid], theirs[there])
            assert loaded.arrays.reason[row] == whole.reason[place[index]]
            found += 1
    assert found > 10
