"""Real Ray, real verl, two ranks: two steps, a worker killed in the middle, and the run that goes on.

Every step leaves its traces, and what the local engine would have logged of it.
"""

import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from archer.trace.check import check_trace
from archer.trace.reader import TraceReader
from archer.tracking.jsonl import read_metrics

sys.path.insert(0, str(Path(__file__).parent))

from ray_runs import SETTINGS, archer, descendants, end, finish, wait_for

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[3] / "examples"
STD_FLOOR = 0.4
RUN = [
    *SETTINGS,
    f"actor_rollout_ref.actor.policy_loss.loss_mode={EXAMPLES}/my_loss.py:spo",
    "actor_rollout_ref.actor.spo_epsilon=0.3",
    f"algorithm.adv_estimator={EXAMPLES}/my_advantage.py:batch_std",
    f"algorithm.std_floor={STD_FLOOR}",
    "trainer.n_gpus_per_node=2",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=80",  # so small that a step has several portions
    "algorithm.token_credit.mode=influence",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("run")


@dataclass(frozen=True)
class Killed:
    """What a killed run said, and what `archer trace check` said of its traces then."""

    output: str
    checks: tuple[str, str]
    step: int  # of its newest complete checkpoint


@pytest.fixture(scope="module")
def killed(folder) -> Killed:
    """A run whose training worker was killed after its second step; it would have had forty."""
    run = [*RUN, f"trainer.default_local_dir={folder}", "trainer.total_training_steps=40"]
    process = archer("train", *run)
    try:
        second = folder / "checkpoints/global_step_2/archer.json"
        wait_for(second.is_file, process)
        workers = [p for p in descendants(process) if "WorkerDict" in p.name()]
        assert len(workers) == 2
        workers[1].send_signal(signal.SIGKILL)
        output = finish(process, code=2)
    finally:
        end(process)
    checks = (checked(folder / "entropy_trace"), checked(folder / "influence_trace"))
    return Killed(output, checks, max(checkpoints(folder)))


@pytest.fixture(scope="module")
def steps_before(killed) -> int:
    """Steps in the checkpoint that the resumed run starts from."""
    return killed.step


@pytest.fixture(scope="module")
def resumed(killed, steps_before, folder) -> str:
    """What the same command said, to train two more steps."""
    total = f"trainer.total_training_steps={steps_before + 2}"
    return finish(archer("train", *RUN, f"trainer.default_local_dir={folder}", total))


def checkpoints(folder: Path) -> list[int]:
    """Steps of the complete checkpoints."""
    complete = folder.glob("checkpoints/global_step_*/archer.json")
    return sorted(int(path.parent.name.removeprefix("global_step_")) for path in complete)


def checked(trace: Path) -> str:
    """What `archer trace check` prints."""
    return check_trace(trace).render()


def test_a_killed_worker_ends_the_run_with_one_message(killed, steps_before):
    assert "error: A worker process died" in killed.output
    assert f"The same command resumes from step {steps_before}" in killed.output
    assert "Traceback" not in killed.output


def test_the_traces_of_a_killed_run_are_whole(killed):
    for report in killed.checks:
        assert report.rstrip().endswith("whole")


def test_the_resumed_run_appends_to_both_traces(steps_before, resumed, folder):
    for kind in ("entropy", "influence"):
        report = checked(folder / f"{kind}_trace")
        assert f"{steps_before + 2} steps from 1 to {steps_before + 2}" in report
        assert "whole" in report


def test_the_resumed_run_goes_on_where_the_killed_one_was(resumed, steps_before, folder):
    assert f"resuming from step {steps_before}" in resumed
    logged = [line["step"] for line in read_metrics(folder / "metrics.jsonl")]
    assert logged == list(range(1, steps_before + 3))
    assert json.loads((folder / "result.json").read_text())["steps"] == steps_before + 2


def test_output_reads_like_the_local_engines(resumed, steps_before):
    for text in (
        "builtin:tiny_reasoner",
        "4 x 8 responses a step",
        "28 linear modules traced",
        "accuracy after",
    ):
        assert text in resumed
    assert f"step {steps_before + 2}/{steps_before + 2}  reward" in resumed
    for noise in ("Warning", "pid=", "INFO"):
        assert noise not in resumed


def test_metrics_have_the_local_engines_names(resumed, folder):
    line = read_metrics(folder / "metrics.jsonl")[-1]
    for name in (
        "critic/rewards/mean",
        "reward/accuracy",
        "groups/mixed",
        "actor/entropy",
        "actor/pg_loss",
        "actor/pg_clipfrac",
        "actor/grad_norm",
        "actor/lr",
        "response_length/mean",
        "response_length/clip_ratio",
        "influence_trace/rows_emitted",
        "influence_trace/selected_prompts",
        "timing_s/influence_capture",
        "timing_s/influence_write",
        "timing_s/step",
        "perf/throughput",
        "training/rollout_probs_diff_mean",
        "val-core/arithmetic/acc/mean@4",
    ):
        assert np.isfinite(line[name]), name


def test_a_step_that_is_too_large_is_scored_in_portions(resumed, folder):
    lines = read_metrics(folder / "metrics.jsonl")
    assert max(line["influence_trace/debug_portions"] for line in lines) > 1
    for line in lines:
        assert line["influence_trace/rows_emitted"] == line["influence_trace/selected_responses"]
        assert line["influence_trace/debug_cross_rank_groups"] == line["influence_trace/selected_prompts"]


def test_what_is_sampled_is_what_is_trained_on(resumed, folder):
    """Packed training and padded sampling agree on the probability of every token."""
    for line in read_metrics(folder / "metrics.jsonl"):
        assert line["training/rollout_probs_diff_max"] < 1e-5


def test_the_users_own_loss_and_advantage_were_used_on_every_rank(resumed, folder):
    whole = TraceReader(folder / "entropy_trace").read(1).arrays
    traced = TraceReader(folder / "influence_trace").read(1).arrays
    means = {group: whole.reward[whole.group_id == group].mean() for group in set(whole.group_id.tolist())}
    deviations = np.array([r - means[g] for r, g in zip(whole.reward, whole.group_id.tolist(), strict=True)])
    expected = deviations / max(float(whole.reward.std()), STD_FLOOR)
    got = traced.advantage[:, 0]
    assert np.allclose(got, expected[traced.response_index], atol=1e-5)
    config = (folder / "config.yaml").read_text()
    assert "my_loss.py:spo" in config and "spo_epsilon: 0.3" in config


def test_both_traces_tell_the_same_story(resumed, folder):
    entropy, influence = (TraceReader(folder / f"{kind}_trace") for kind in ("entropy", "influence"))
    for step in (entry.step for entry in influence.entries):
        everything, selected = entropy.read(step).arrays, influence.read(step).arrays
        assert everything.rows == 32
        assert sorted(np.bincount(everything.group_id)) == [8, 8, 8, 8]
        rows = selected.response_index
        width = selected.response_mask.shape[1]
        assert (everything.responses[rows, :width] == selected.responses).all()
        assert (everything.accepted[rows] == selected.accepted).all()
        assert (np.isfinite(selected.influence) == selected.response_mask).all()
        for group in np.unique(selected.group_id):
            verdicts = selected.accepted[selected.group_id == group]
            assert verdicts.any()
            assert not verdicts.all()
        advantages = selected.advantage[np.arange(selected.rows), 0]
        assert ((advantages > 0) == selected.accepted).all()


def test_a_checkpoint_holds_a_model_that_loads_by_itself(resumed, steps_before, folder):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder / f"checkpoints/global_step_{steps_before + 2}/actor/huggingface"
    )
    assert sum(parameter.numel() for parameter in model.parameters()) > 800_000


def test_only_as_many_checkpoints_are_kept_as_the_recipe_says(resumed, steps_before, folder):
    assert checkpoints(folder) == [steps_before + 1, steps_before + 2]


def test_the_new_arrays_of_every_step_are_there(resumed, folder):
    metrics = {line["step"]: line for line in read_metrics(folder / "metrics.jsonl")}
    for found in TraceReader(folder / "entropy_trace"):
        arrays, line = found.arrays, metrics[found.step]
        mask = arrays.response_mask
        ratio = arrays.ratio[mask].astype(float)
        assert -np.log(ratio).mean() == pytest.approx(line["actor/ppo_kl"], abs=2e-3)
        assert (arrays.clipped[mask] != 0).mean() == pytest.approx(line["actor/pg_clipfrac"], abs=1e-9)
        assert (arrays.loss_weight[mask] == 1).all(), "token-mean"
        close = arrays.rollout_log_probs[mask].astype(float) - arrays.log_probs[mask].astype(float)
        assert np.abs(close).max() < 1e-2
        assert (arrays.accepted == (arrays.extracted_answer == arrays.ground_truth)).all()
        assert all(arrays.reason) and set(arrays.data_source) == {"arithmetic"}


def test_the_influence_trace_refers_to_the_entropy_trace(resumed, folder):
    assert TraceReader(folder / "influence_trace").summary.refers_to == "entropy_trace"


def test_the_validation_after_the_last_step_is_traced(resumed, steps_before, folder):
    arrays = TraceReader(folder / "val_trace").read(steps_before + 2).arrays
    assert arrays.sample_index.tolist() == sorted(arrays.sample_index.tolist())
    assert np.isnan(arrays.entropies[arrays.response_mask]).all(), "verl's validation computes none"
    assert np.isfinite(arrays.log_probs[arrays.response_mask]).all()


def test_tokens_of_rejected_responses_are_paid_by_their_influence(resumed, steps_before, folder):
    """All of it in the trace: scores, the weights made from them, and what was left of the advantage."""
    reader, seen = TraceReader(folder / "entropy_trace"), 0
    for number in range(1, steps_before + 3):
        step = reader.read(number).arrays
        mask, rejected = step.response_mask, ~step.accepted[:, None]
        assert (step.credit[mask & ~rejected] == 1).all()
        scored = mask & rejected & np.isfinite(step.credit_score)
        assert np.array_equal(step.credit[scored] == 0, step.credit_score[scored] > 0)
        assert (step.paid[step.credit == 0] == 0).all()
        seen += int((step.credit[scored] == 0).sum())
        line = read_metrics(folder / "metrics.jsonl")[number - 1]
        spared = (step.credit < 1) & mask & rejected
        assert line["token_credit/spared_share"] == pytest.approx(spared.sum() / (mask & rejected).sum())
    assert seen
