"""A run as a whole: metrics read and thinned, runs found and named, the telling group, notes."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from small_traces import make_step, write_trace
from starlette.testclient import TestClient

from archer.errors import ArcherError
from archer.viewer.app import app_maker
from archer.viewer.discover import unique_names
from archer.viewer.metricsfile import MetricsFile, thinned
from archer.viewer.notes import MAX_TEXT
from archer.viewer.runs import RESCAN, Library
from archer.viewer.security import Access

BASE = "http://127.0.0.1:7862"


def connect(*folders: Path, read_only: bool = False) -> TestClient:
    library = Library.open(list(folders), read_only=read_only)
    return TestClient(app_maker(library)(Access.of("127.0.0.1", 7862)), base_url=BASE)


def make_run(folder: Path, steps: int = 2) -> Path:
    write_trace(folder / "influence_trace", {step: make_step(step) for step in range(1, steps + 1)})
    lines = [{"step": step, "actor/entropy": 1 / step, "critic/score/mean": step} for step in range(1, 4)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_metrics_are_read_on_and_a_torn_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 1.0}\n{"step": 2, "a": 2')
    metrics = MetricsFile(tmp_path)
    assert metrics.series_json(["a"])["series"]["a"] == {"steps": [1], "values": [1.0]}
    with path.open("a") as file:
        file.write('.5}\n{"step": 2, "a": 9}\n')
    assert metrics.series_json(["a"])["series"]["a"] == {"steps": [1, 2], "values": [1.0, 9.0]}
    path.write_text('{"step": 1, "b": 1.0}\n')  # a resumed run wrote the file again
    assert [entry["name"] for entry in metrics.index_json()["names"]] == ["b"]


def test_hostile_metrics_are_left_out(tmp_path: Path) -> None:
    lines = [
        "[1]",
        '{"step": true, "a": 1}',
        '{"a": 1}',
        "{" * 5000,
        '{"step": 3, "a": NaN, "b": "x", "c": 1e999}',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, f'{{"step": 4, "a": {"9" * 400}}}', ""]))
    metrics = MetricsFile(tmp_path)
    assert metrics.index_json()["bad_lines"] == 4
    assert metrics.series_json(["a", "c"])["series"]["a"]["values"] == [None, None]
    json.dumps(metrics.index_json(), allow_nan=False)


def test_a_link_out_of_the_run_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('{"step": 1, "a": 1}\n')
    run = tmp_path / "run"
    make_run(run)
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to(tmp_path / "secret")
    assert connect(run).get("/api/runs/0/metrics").status_code == 404


def test_a_thinned_line_keeps_its_extremes() -> None:
    values = np.sin(np.arange(100_000) / 50)
    values[77_777], values[3] = 40.0, math.nan
    kept = thinned(values, 400)
    assert len(kept) <= 402
    assert {0, 77_777, 99_999} <= set(kept.tolist())
    assert np.nanmin(values[kept]) == np.nanmin(values)


def test_a_folder_of_runs_is_scanned_and_new_ones_are_picked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/one", "b/one", "b/two"):
        make_run(tmp_path / name)
    bare = tmp_path / "b" / "bare"
    bare.mkdir()
    (bare / "metrics.jsonl").write_text('{"step": 1, "a": 1}\n')
    client = connect(tmp_path)
    runs = client.get("/api/runs").json()["runs"]
    assert [run["name"] for run in runs] == ["a/one", "bare", "b/one", "two"]
    assert runs[1]["traces"] == []
    assert client.get("/api/runs/1/timeline").json()["steps"] == []
    assert "no trace" in client.get("/api/runs/1/steps/1").json()["error"]
    make_run(tmp_path / "0first")
    monkeypatch.setattr("archer.viewer.runs.RESCAN", 0.0 * RESCAN)
    names = [run["name"] for run in client.get("/api/runs").json()["runs"]]
    assert names == ["a/one", "bare", "b/one", "two", "0first"]  # numbers stay


def test_a_folder_without_runs_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(ArcherError, match=r"no trace in|no run in"):
        Library.open([tmp_path])
    with pytest.raises(ArcherError, match="not a folder"):
        Library.open([tmp_path / "nothing"])


def test_the_same_folder_twice_gets_two_names() -> None:
    assert unique_names(["a", "a"], [Path("/x/a"), Path("/x/a")]) == ["a", "a (2)"]
    assert unique_names(["a", "a", "b"], [Path("/x/a"), Path("/y/a"), Path("/b")]) == ["x/a", "y/a", "b"]


def test_runs_of_one_experiment_are_told_apart_by_their_own_folders() -> None:
    """The embedded default calls every run `arithmetic`, wherever trainer.default_local_dir puts it."""
    folders = [Path("/x/lr-1"), Path("/x/lr-2"), Path("/x/lr-2/val_trace"), Path("/y/lr-1/entropy_trace")]
    names = ["sums", "sums", "sums/val_trace", "sums"]
    assert unique_names(names, folders) == ["x/lr-1/sums", "lr-2/sums", "sums/val_trace", "y/lr-1/sums"]


def test_the_telling_group_is_mixed_and_newest(tmp_path: Path) -> None:
    uniform = make_step(9, accepted=np.ones(8, dtype=bool))
    run = make_run(tmp_path / "run", 2)
    write_trace(run / "influence_trace", {3: uniform})
    found = connect(run).get("/api/runs/0/telling").json()["telling"]
    assert found["step"] == 2
    assert found["row"] % 2 == 1 and found["beside"] % 2 == 0  # a rejected response beside an accepted one


def test_notes_are_kept_listed_and_deleted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    client = connect(run)
    place = {"step": 2, "group": 1, "response": 5, "token": None}
    note = client.post("/api/runs/0/notes", json={"text": "  wrong\nsign ", **place}).json()["note"]
    assert note["text"] == "wrong\nsign"
    with (run / "notes.jsonl").open("a") as file:
        file.write('{"torn": ')
    other = client.post("/api/runs/0/notes", json={"text": "the run"}).json()["note"]
    held = connect(run / "influence_trace").get("/api/runs/0/notes").json()
    assert [each["id"] for each in held["notes"]] == [note["id"], other["id"]]
    assert held["bad_lines"] == 1
    assert client.delete(f"/api/runs/0/notes/{note['id']}").status_code == 200
    assert client.delete(f"/api/runs/0/notes/{note['id']}").status_code == 404
    assert len(client.get("/api/runs/0/notes").json()["notes"]) == 1


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ('{"text": "x"}', {"Origin": "http://evil.example"}, 403),
        ('{"text": "x"}', {"Origin": "http://127.0.0.1:3000"}, 403),
        ('{"text": "x"}', {"Origin": "null"}, 403),
        ('{"text": "x"}', {"Sec-Fetch-Site": "cross-site"}, 403),
        ('{"text": "x"}', {"Content-Type": "text/plain"}, 415),
        ('{"text": "' + "x" * 40_000 + '"}', {}, 413),
        ('{"text": "' + "x" * (MAX_TEXT + 1) + '"}', {}, 404),
        ('{"text": 1}', {}, 422),
        ('{"text": "x", "step": "1"}', {}, 422),
        ("[]", {}, 422),
        ('{"text": " "}', {}, 404),
    ],
)
def test_a_note_that_must_not_be_written_is_not(
    tmp_path: Path, body: str, headers: dict[str, str], status: int
) -> None:
    run = make_run(tmp_path / "run")
    sent = {"Content-Type": "application/json", "Origin": BASE} | headers
    assert connect(run).post("/api/runs/0/notes", content=body, headers=sent).status_code == status
    assert not (run / "notes.jsonl").exists()


def test_notes_are_off_when_read_only_and_never_follow_a_link(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    answer = connect(run, read_only=True).post("/api/runs/0/notes", json={"text": "x"})
    assert (answer.status_code, "--read-only" in answer.json()["error"]) == (403, True)
    (run / "notes.jsonl").symlink_to(tmp_path / "elsewhere")
    assert connect(run).post("/api/runs/0/notes", json={"text": "x"}).status_code == 403
    assert not (tmp_path / "elsewhere").exists()
