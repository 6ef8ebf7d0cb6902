"""Trackers: metrics.jsonl always; TensorBoard, W&B offline and trackio for real."""

import json
import math
import time

import pytest

from archer.errors import ArcherError
from archer.tracking import JsonlTracker, RunInfo, make_trackers
from archer.tracking.jsonl import read_metrics
from archer.tracking.trackers import TRACKERS


@pytest.fixture
def run(tmp_path):
    return RunInfo("project", "experiment", "id123", tmp_path, {"data": {"seed": 1}})


def test_every_step_is_a_line_of_valid_json(tmp_path):
    tracker = JsonlTracker(tmp_path / "metrics.jsonl", 0)
    tracker.log(1, {"actor/entropy": 0.5, "actor/grad_norm": math.inf})
    tracker.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == [
        {"step": 1, "actor/entropy": 0.5, "actor/grad_norm": None}
    ]


def test_a_resumed_run_drops_the_lines_it_will_write_again(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"step": 4, "act')
    JsonlTracker(file, 2).close()
    assert [line["step"] for line in read_metrics(file)] == [1, 2]


def test_tensorboard_gets_every_scalar(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tracker,) = make_trackers(["console", "tensorboard"], run)
    tracker.log(1, {"actor/entropy": 0.5})
    tracker.log(2, {"actor/entropy": 0.25})
    tracker.close()
    events = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("actor/entropy")] == [(1, 0.5), (2, 0.25)]


def test_wandb_works_offline(run):
    (tracker,) = make_trackers(["wandb"], run)
    tracker.log(1, {"actor/entropy": 0.5})
    tracker.close()
    logs = list((run.folder / "wandb").glob("offline-run-*-id123/*.wandb"))
    assert len(logs) == 1
    deadline = time.monotonic() + 60
    while b"actor/entropy" not in logs[0].read_bytes():  # a process of W&B's own writes it, at its leisure
        assert time.monotonic() < deadline, "nothing was written in time"
        time.sleep(0.1)


def test_trackio_keeps_its_own_store(run, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "store"))
    (tracker,) = make_trackers(["trackio"], run)
    tracker.log(1, {"actor/entropy": 0.5})
    tracker.close()
    assert any((tmp_path / "store").rglob("*"))


def test_a_tracker_that_is_not_installed_is_named_with_its_extra(run, monkeypatch):
    def missing(_):
        raise ModuleNotFoundError("No module named 'wandb'")

    monkeypatch.setitem(TRACKERS, "wandb", missing)
    with pytest.raises(ArcherError, match="pip install wandb"):
        make_trackers(["wandb"], run)


def test_json_stays_json(tmp_path):
    tracker = JsonlTracker(tmp_path / "m.jsonl", 0)
    tracker.log(1, {"x": math.nan})
    tracker.close()
    assert json.loads((tmp_path / "m.jsonl").read_text())["x"] is None
