"""A critic, a reference and several mini-batches on real Ray, stopped by SIGTERM as a scheduler does it."""

import signal
import sys
from pathlib import Path

import pytest

from archer.trace.reader import TraceReader
from archer.tracking.jsonl import read_metrics

sys.path.insert(0, str(Path(__file__).parent))

from ray_runs import SETTINGS, archer, end, finish, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> tuple[str, Path]:
    """Output and folder of a run of forty steps that was asked to stop after its first."""
    folder = tmp_path_factory.mktemp("run")
    process = archer(
        "train",
        *SETTINGS,
        f"trainer.default_local_dir={folder}",
        "trainer.total_training_steps=40",
        "algorithm.adv_estimator=gae",
        "critic.optim.lr=1e-4",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.model.enable_gradient_checkpointing=True",
        "algorithm.token_credit.mode=oracle",
    )
    try:
        first = folder / "checkpoints/global_step_1/archer.json"
        wait_for(first.is_file, process)
        process.send_signal(signal.SIGTERM)
        return finish(process, code=128 + signal.SIGTERM), folder
    finally:
        end(process)


def test_sigterm_ends_a_run_after_its_step_with_everything_saved(stopped):
    output, folder = stopped
    assert "Stopped. The same command resumes from here." in output
    last = read_metrics(folder / "metrics.jsonl")[-1]["step"]
    assert (folder / f"checkpoints/global_step_{last}/archer.json").is_file()
    for kind in ("entropy", "influence"):
        assert [entry.step for entry in TraceReader(folder / f"{kind}_trace").entries] == [
            *range(1, last + 1)
        ]


def test_the_critic_is_trained_and_saved(stopped):
    _, folder = stopped
    line = read_metrics(folder / "metrics.jsonl")[0]
    assert line["critic/vf_loss"] > 0
    assert line["critic/lr"] == pytest.approx(1e-4)
    assert any((folder / "checkpoints").glob("global_step_*/critic/model_world_size_1_rank_0.pt"))


def test_the_kl_loss_grows_from_zero_as_the_policy_moves(stopped):
    _, folder = stopped
    assert 0 < read_metrics(folder / "metrics.jsonl")[0]["actor/kl_loss"] < 0.1


def test_advantages_that_differ_within_a_response_take_a_second_backward(stopped):
    _, folder = stopped
    line = read_metrics(folder / "metrics.jsonl")[0]
    if line["influence_trace/selected_prompts"]:
        assert line["influence_trace/debug_second_backwards"] > 0
        assert line["influence_trace/debug_rescaled_micro_batches"] == 0


def test_the_oracle_pays_one_token_of_each_rejected_response(stopped):
    _, folder = stopped
    step = TraceReader(folder / "entropy_trace").read(1).arrays
    paid = ((step.credit == 1) & step.response_mask).sum(axis=1)
    assert (paid[~step.accepted] == 1).all()
    assert (paid[step.accepted] == step.lengths[step.accepted]).all()
