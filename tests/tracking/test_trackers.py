"""Trackers: metrics.jsonl always; TensorBoard, W&B offline and trackio for real."""

import json
import math
import time
from io import StringIO

import pytest
from rich.console import Console

from archer.errors import ArcherError
from archer.tracking import JsonlTracker, RunInfo, StepResponse, ValidationSample, make_trackers
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


SAMPLES = [ValidationSample("1 + 1 =", "2", 1.0), ValidationSample("2 + 2 =", "\x1b[31m```five", None)]


RESPONSES = [
    StepResponse(1, "best", "1 + 1 =", "2", 1.0, "accepted", 1, 0.25, "2", None),
    StepResponse(1, "worst", "2 + 2 =", "[red]\x1b[31mfive", -0.5, "rejected", 3, None, "4", "found five"),
]


def test_tensorboard_gets_the_responses_of_a_validation_as_text(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tracker,) = make_trackers(["tensorboard"], run)
    tracker.log_samples(3, SAMPLES)
    tracker.close()
    events = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    (event,) = events.Tensors("val/generations/1/text_summary")
    assert event.step == 3
    text = event.tensor_proto.string_val[0].decode()
    assert "unjudged" in text and "    2 + 2 =" in text and "```five" in text


def test_the_console_shows_a_response_and_none_of_its_escapes():
    console = Console(file=StringIO(), width=60)
    for sample in SAMPLES:
        console.print(sample.panel(3))
    shown = console.file.getvalue()
    assert "validation at step 3, score 1" in shown and "validation at step 3, unjudged" in shown
    assert "1 + 1 =" in shown and "␛[31m```five" in shown and "\x1b" not in shown


def test_the_console_shows_why_a_response_of_a_step_is_among_the_worst():
    console = Console(file=StringIO(), width=90)
    for response in RESPONSES:
        console.print(response.panel(1))
    shown = console.file.getvalue()
    assert "best of the step, reward 1, accepted, 1 tokens, mean entropy 0.250" in shown
    assert "worst of the step, reward -0.5, rejected, 3 tokens ─" in shown
    assert "ground truth: 4" in shown and "reason: found five" in shown
    assert "[red]␛[31mfive" in shown and "\x1b" not in shown


def test_tensorboard_gets_the_responses_of_a_step(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tracker,) = make_trackers(["tensorboard"], run)
    tracker.log_samples(1, RESPONSES)
    tracker.close()
    events = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    (event,) = events.Tensors("train/responses/1/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert "worst of the step" in text and "    reason: found five" in text


def test_wandb_works_offline(run):
    (tracker,) = make_trackers(["wandb"], run)
    tracker.log_samples(1, SAMPLES)
    tracker.log_samples(1, RESPONSES)
    tracker.log(1, {"actor/entropy": 0.5})
    tracker.close()
    (table,) = (run.folder / "wandb").glob("offline-run-*-id123/files/media/table/val/*.table.json")
    assert json.loads(table.read_text())["data"] == [sample.row() for sample in SAMPLES]
    (table,) = (run.folder / "wandb").glob("offline-run-*-id123/files/media/table/train/*.table.json")
    written = json.loads(table.read_text())
    assert written["columns"] == list(StepResponse.columns)
    assert written["data"] == [response.row() for response in RESPONSES]
    logs = list((run.folder / "wandb").glob("offline-run-*-id123/*.wandb"))
    assert len(logs) == 1
    deadline = time.monotonic() + 60
    while b"actor/entropy" not in logs[0].read_bytes():  # a process of W&B's own writes it, at its leisure
        assert time.monotonic() < deadline, "nothing was written in time"
        time.sleep(0.1)


def test_trackio_keeps_its_own_store(run, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "store"))
    (tracker,) = make_trackers(["trackio"], run)
    tracker.log_samples(1, SAMPLES)
    tracker.log_samples(1, RESPONSES)
    tracker.log(1, {"actor/entropy": 0.5})
    tracker.close()
    stored = b"".join(path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert b"val/generations" in stored and b"train/responses" in stored


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


def test_a_damaged_line_is_told_and_the_file_kept_as_it_was(tmp_path, caplog):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "x\n{"step": 2}\n{"step": 3}')
    JsonlTracker(file, 3).close()
    assert [line["step"] for line in read_metrics(file)] == [2, 3]
    assert (tmp_path / "metrics.jsonl.damaged").read_text().startswith('{"step": 1, "x')
    assert "1 lines that are no metrics" in caplog.text


def test_a_last_line_cut_short_by_a_kill_is_no_damage(tmp_path, caplog):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": 2, "x": 0.')
    JsonlTracker(file, 1).close()
    assert file.read_text() == '{"step": 1}\n'
    assert not caplog.text and not (tmp_path / "metrics.jsonl.damaged").exists()
