"""Validations and evaluations leave a trace, and change nothing by it."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from archer.generation.batch import Responses
from archer.generation.policy import Policy, token_stats_of
from archer.trace.check import check_trace
from archer.trace.reader import TraceReader, all_traces, find_traces

sys.path.insert(0, str(Path(__file__).parent))

from small_evals import Stop, evaluated, interrupted_after, train

TRACED = ("trainer.val_trace.enable=True",)
VOLATILE = ("timing_s/", "perf/", "time")


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("plain") / "run")


@pytest.fixture(scope="module")
def traced(tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("traced") / "run", *TRACED)


def metrics(run: Path) -> list[dict]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(VOLATILE)} for line in lines]


def test_a_traced_validation_changes_no_figure(plain, traced):
    assert metrics(plain) == metrics(traced)
    assert not (plain / "val_trace").exists(), "without an entropy trace it is off"


def test_every_validation_is_a_step(traced):
    trace = traced / "val_trace"
    assert check_trace(trace).whole
    reader = TraceReader(trace)
    assert [entry.step for entry in reader.entries] == [0, 1, 2]
    assert reader.summary.kind == "entropy" and reader.summary.metadata["validation"] is True
    assert all_traces(traced) == [trace]


def test_a_run_with_an_entropy_trace_has_it_by_default(tmp_path):
    run = train(tmp_path / "run", "trainer.entropy_trace.enable=True", "trainer.total_training_steps=1")
    assert check_trace(run / "val_trace").whole
    assert find_traces(run) == [run / "entropy_trace"], "a viewer must not take it for one of training"
    assert all_traces(run) == [run / "entropy_trace", run / "val_trace"]
    off = train(
        tmp_path / "off",
        *("trainer.entropy_trace.enable=True", "trainer.val_trace.enable=False"),
        "trainer.total_training_steps=1",
    )
    assert not (off / "val_trace").exists()


def test_it_holds_the_samples_of_the_evaluation_of_the_same_weights(traced, tmp_path):
    done = evaluated(traced / "checkpoints" / "global_step_2", tmp_path / "out")
    samples = [json.loads(line) for line in (done.folder / "samples.jsonl").read_text().splitlines()]
    ours = TraceReader(traced / "val_trace").read(2).arrays
    theirs = TraceReader(done.folder / "val_trace").read(2).arrays
    for name, values in ours.arrays().items():
        assert np.array_equal(values, getattr(theirs, name), equal_nan=values.dtype.kind == "f"), name
    vocab = TraceReader(traced / "val_trace").vocab
    assert ours.rows == len(samples) == 21
    for row, sample in enumerate(samples):
        text = vocab.decode(ours.responses[row][ours.response_mask[row]]).text
        assert text.startswith(sample["response"])
        assert ours.extracted_answer[row] == (sample["answer"] or "")
        assert ours.ground_truth[row] == sample["ground_truth"]
        assert bool(ours.accepted[row]) == sample["correct"]
        assert bool(ours.truncated[row]) != sample["finished"]
        assert int(ours.group_id[row]) == int(ours.sample_index[row]) == sample["prompt_index"]


def test_its_log_probs_are_those_that_sampling_had(traced):
    arrays = TraceReader(traced / "val_trace").read(2).arrays
    mask = arrays.response_mask
    difference = arrays.log_probs[mask].astype(float) - arrays.rollout_log_probs[mask].astype(float)
    assert np.abs(difference).max() < 5e-3
    assert (arrays.entropies[mask] >= 0).all() and arrays.entropies[mask].any()


def test_greedy_tokens_have_the_models_log_probs_and_no_draw(tmp_path):
    val = "actor_rollout_ref.rollout.val_kwargs"
    greedy = (f"{val}.n=1", f"{val}.do_sample=False", "trainer.total_training_steps=1")
    one, other = (
        TraceReader(
            train(tmp_path / name, *TRACED, *greedy, f"{val}.temperature={temperature}") / "val_trace"
        )
        for name, temperature in (("one", 1.0), ("other", 0.3))
    )
    arrays = one.read(1).arrays
    assert arrays.rollout_log_probs is None and arrays.seed is None
    for name, values in arrays.arrays().items():
        assert np.array_equal(values, getattr(other.read(1).arrays, name)), name


def test_a_bound_keeps_whole_prompts(tmp_path):
    run = train(
        tmp_path / "run",
        *TRACED,
        *("trainer.val_trace.max_responses=8", "trainer.total_training_steps=1", "trainer.test_freq=-1"),
    )
    arrays = TraceReader(run / "val_trace").read(1).arrays
    assert arrays.group_id.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_a_stopped_evaluation_has_the_trace_of_one_that_was_not(traced, tmp_path, monkeypatch, chunks):
    straight = evaluated(traced, tmp_path / "straight")
    with monkeypatch.context() as patch:
        interrupted_after(chunks, patch)
        with pytest.raises(Stop):
            evaluated(traced, tmp_path / "stopped")
    resumed = evaluated(traced, tmp_path / "stopped")
    one, other = (TraceReader(done.folder / "val_trace").read(2).arrays for done in (straight, resumed))
    for name, values in one.arrays().items():
        assert np.array_equal(values, getattr(other, name), equal_nan=values.dtype.kind == "f"), name


def test_an_evaluation_that_is_done_again_is_traced_again(traced, tmp_path):
    first = evaluated(traced, tmp_path / "out")
    marker = first.folder / "val_trace" / "steps" / "step_000009.npz"
    marker.write_bytes(b"of before")
    again = evaluated(traced, tmp_path / "out", overwrite=True)
    assert not marker.exists() and check_trace(again.folder / "val_trace").whole
    off = evaluated(traced, tmp_path / "off", overrides=("trainer.val_trace.enable=false",))
    assert not (off.folder / "val_trace").exists()


def test_a_scoring_pass_is_that_of_every_response_alone(make_responses, qwen2, compute):
    policy = Policy(qwen2(tied=True), compute, 0.7)
    responses: Responses = make_responses([3, 5, 2], [4, 1, 6])
    together = token_stats_of(policy, responses, budget=11)
    for row in range(3):
        alone = token_stats_of(policy, responses.rows([row]), budget=100)
        length = alone.log_probs.shape[1]
        torch.testing.assert_close(together.log_probs[row, :length], alone.log_probs[0])
        torch.testing.assert_close(together.entropy[row, :length], alone.entropy[0])
