"""The viewer shows a run whose influence refers to its entropy trace as one that repeats the arrays."""

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from archer.config import compose
from archer.train import make_run
from archer.viewer.runs import TracedRun
from archer.viewer.steps import UnreadableStepError, load_step


def trained(folder: Path, *overrides: str) -> Path:
    settings = [
        *("data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "data.val_files=[]"),
        *("actor_rollout_ref.rollout.n=4", "trainer.total_training_steps=4", "engine.threads=1"),
        *("engine.device=cpu", "trainer.entropy_trace.enable=True", "trainer.influence_trace.enable=True"),
        f"trainer.default_local_dir={folder}",
    ]
    make_run(compose([*settings, *overrides]), Console(file=io.StringIO())).execute()
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def joined(folder) -> Path:
    return trained(folder / "joined")


@pytest.fixture(scope="module")
def alone(folder) -> Path:
    return trained(folder / "alone", "trainer.influence_trace.self_contained=True")


def equal(one: TracedRun, other: TracedRun, step: int) -> None:
    ours, theirs = load_step(one, step), load_step(other, step)
    assert ours.metrics.keys() == theirs.metrics.keys() and "influence" in ours.metrics
    for name, values in ours.metrics.items():
        np.testing.assert_array_equal(values, theirs.metrics[name], err_msg=name)
    assert not ours.notes and not theirs.notes


def test_every_step_of_both_runs_is_the_same(joined, alone):
    for step in (1, 2, 3, 4):
        equal(TracedRun(joined), TracedRun(alone), step)


def test_the_influence_trace_opened_alone_finds_the_other(joined, alone):
    equal(TracedRun(joined / "influence_trace"), TracedRun(alone / "influence_trace"), 2)


def test_a_step_that_the_entropy_trace_leaves_out_stands_alone(folder, alone):
    run = TracedRun(trained(folder / "sparse", "trainer.entropy_trace.write_every=2"))
    for step in (2, 4):
        equal(run, TracedRun(alone), step)
    for step in (1, 3):
        equal(run, TracedRun(alone / "influence_trace"), step)


def test_traces_in_different_places_repeat_everything(folder, alone):
    elsewhere = folder / "elsewhere"
    trained(folder / "apart", f"trainer.influence_trace.output_dir={elsewhere}")
    equal(TracedRun(elsewhere), TracedRun(alone / "influence_trace"), 3)


@pytest.mark.parametrize("self_contained", [False, True])
def test_what_tokens_were_paid_is_there_for_both_traces(folder, self_contained):
    name = "weighed_alone" if self_contained else "weighed"
    settings = ("algorithm.token_credit.mode=nthr", "trainer.total_training_steps=2")
    run = trained(folder / name, *settings, f"trainer.influence_trace.self_contained={self_contained}")
    whole = load_step(TracedRun(run), 2)
    influence = load_step(TracedRun(run / "influence_trace"), 2)
    place = {index: row for row, index in enumerate(whole.arrays.response_index.tolist())}
    rows = [place[index] for index in influence.arrays.response_index.tolist()]
    mask = influence.arrays.response_mask
    assert np.isfinite(influence.metrics["credit_score"][mask]).any()
    for metric in ("credit", "paid", "credit_score"):
        held = whole.metrics[metric][rows, : mask.shape[1]]
        np.testing.assert_array_equal(influence.metrics[metric], held, err_msg=metric)
    weighed = whole.metrics["advantage"][rows, : mask.shape[1]] * influence.metrics["credit"]
    np.testing.assert_allclose(influence.metrics["paid"][mask], weighed[mask], rtol=1e-3)


def test_one_without_the_other_says_what_is_missing(joined, folder):
    shutil.copytree(joined / "influence_trace", folder / "lonely" / "influence_trace")
    with pytest.raises(UnreadableStepError, match="entropy_trace, which is not beside"):
        load_step(TracedRun(folder / "lonely"), 1)


def test_a_resumed_run_reads_as_one_that_was_not_stopped(folder, joined):
    trained(folder / "resumed", "trainer.total_training_steps=2")
    run = trained(folder / "resumed")
    for step in (1, 2, 3, 4):
        equal(TracedRun(run), TracedRun(joined), step)
