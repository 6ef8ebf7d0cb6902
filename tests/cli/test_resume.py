"""Interrupted runs: the same numbers, bit for bit, as one that was left alone."""

import random
import signal
import time

import numpy as np
import pytest
import torch

from archer.trace.check import TraceReport, check_trace
from archer.trace.reader import TraceReader

# Every kind of state matters here: epochs, mini-batches, schedule, adaptive KL, refilled groups.
EVERYTHING = (
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.actor.ppo_epochs=2",
    "actor_rollout_ref.actor.shuffle=True",
    "actor_rollout_ref.actor.optim.lr_scheduler_type=cosine",
    "actor_rollout_ref.actor.optim.lr_warmup_steps=2",
    "algorithm.use_kl_in_reward=True",
    "algorithm.kl_ctrl.type=adaptive",
    "algorithm.filter_groups.enable=True",
    "algorithm.filter_groups.max_num_gen_batches=2",
    "trainer.total_training_steps=5",
    "trainer.test_freq=2",
)


def assert_same(runs, one: str, other: str) -> None:
    assert [differences(*pair) for pair in zip(runs.metrics(one), runs.metrics(other), strict=True)] == [
        {} for _ in runs.metrics(one)
    ]
    theirs = runs.weights(other)
    for name, weight in runs.weights(one).items():
        assert torch.equal(weight, theirs[name]), name


def traces_of(runs, name: str) -> list[TraceReport]:
    folders = [runs.folder / name / kind for kind in ("entropy_trace", "influence_trace")]
    return [check_trace(folder) for folder in folders if (folder / "summary.json").exists()]


def assert_same_traces(runs, one: str, other: str) -> None:
    for kind in ("entropy_trace", "influence_trace"):
        ours, theirs = (TraceReader(runs.folder / name / kind) for name in (one, other))
        assert [entry.step for entry in ours.entries] == [entry.step for entry in theirs.entries]
        for entry in ours.entries:
            left, right = ours.read(entry.step).arrays.arrays(), theirs.read(entry.step).arrays.arrays()
            assert left.keys() == right.keys()
            for name, array in left.items():
                np.testing.assert_array_equal(array, right[name], err_msg=f"step {entry.step}: {name}")


def differences(one: dict[str, float], other: dict[str, float]) -> dict[str, tuple[object, object]]:
    keys = one.keys() | other.keys()
    return {key: (one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key)}


def wait_for_step(runs, name: str, step: int, process) -> None:
    file = runs.folder / name / "metrics.jsonl"
    while not file.exists() or f'"step": {step},' not in file.read_text():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.slow
def test_a_run_that_was_killed_again_and_again_gives_the_same_numbers(runs):
    runs.here("whole", *EVERYTHING)
    chance = random.Random(0)
    for _ in range(4):
        process = runs.process("killed", *EVERYTHING)
        wait_for_step(runs, "killed", 0, process)
        time.sleep(chance.uniform(0.0, 1.5))  # anywhere: in a step, in the middle of a checkpoint
        process.kill()
        process.communicate()
        for report in traces_of(runs, "killed"):
            assert report.whole, report.render()
    runs.here("killed", *EVERYTHING)
    assert_same(runs, "killed", "whole")
    assert_same_traces(runs, "killed", "whole")


@pytest.mark.slow
def test_a_signal_finishes_the_step_saves_and_the_same_command_goes_on(runs):
    options = (*EVERYTHING, "trainer.save_freq=-1")
    runs.here("whole", *options)
    for number in (signal.SIGINT, signal.SIGTERM):
        name = f"stopped by {number.name}"
        process = runs.process(name, *options)
        wait_for_step(runs, name, 1, process)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 128 + number, err
        assert "The same command resumes from here" in out
        saved = (runs.folder / name / "checkpoints/latest_checkpointed_iteration.txt").read_text()
        assert [line["step"] for line in runs.metrics(name)][-1] == int(saved)
        runs.here(name, *options)
        assert_same(runs, name, "whole")


def test_a_run_killed_before_its_first_checkpoint_starts_over(runs):
    runs.here("whole")
    folder = runs.folder / "killed"
    runs.here("killed", "trainer.val_only=True")
    assert [line["step"] for line in runs.metrics("killed")] == [0]
    assert not (folder / "checkpoints").exists()
    runs.here("killed")
    assert_same(runs, "killed", "whole")


def test_half_written_checkpoints_are_ignored_and_removed(runs):
    runs.here("run", "trainer.total_training_steps=1")
    leftover = runs.folder / "run/checkpoints/.saving-global_step_2"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half")
    outcome = runs.here("run", "trainer.total_training_steps=2")
    assert outcome.steps == 2
    assert not leftover.exists()


def test_a_metrics_line_cut_short_by_a_kill_is_written_again(runs):
    runs.here("whole", "trainer.test_freq=1")
    runs.here("cut", "trainer.test_freq=1", "trainer.total_training_steps=2")
    with (runs.folder / "cut/metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "actor/ent')
    runs.here("cut", "trainer.test_freq=1")
    assert_same(runs, "cut", "whole")


def test_a_run_goes_on_from_a_checkpoint_of_another_run(runs):
    runs.here("whole")
    runs.here("first", "trainer.total_training_steps=2")
    start = runs.folder / "first/checkpoints/global_step_2"
    runs.here("second", "trainer.resume_mode=resume_path", f"trainer.resume_from_path={start}")
    assert runs.metrics("second") == runs.metrics("whole")[3:]
