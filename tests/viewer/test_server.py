"""The HTTP interface: what is cached, what is refused, and with which sentence."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_traces import make_step, unpack, write_trace
from starlette.testclient import TestClient

from archer.viewer.app import app_maker
from archer.viewer.runs import Library
from archer.viewer.security import Access

BASE = "http://127.0.0.1:7862"
Open = Callable[..., TestClient]


@pytest.fixture
def connect() -> Iterator[Open]:
    clients = []

    def make(*folders: Path) -> TestClient:
        app = app_maker(Library.open(list(folders)))(Access.of("127.0.0.1", 7862))
        clients.append(TestClient(app, base_url=BASE))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(connect: Open, run_folder: Path) -> TestClient:
    return connect(run_folder)


def sentence(client: TestClient, path: str, status: int) -> str:
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


def test_the_page_and_its_modules_are_served(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    script = client.get("/static/main.js")
    assert script.headers["content-type"].startswith("text/javascript")
    again = client.get("/static/main.js", headers={"If-None-Match": script.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_tokens_are_immutable_under_the_version_of_their_step(client: TestClient) -> None:
    head = client.get("/api/runs/0/steps/2").json()
    answer = client.get(f"/api/runs/0/steps/2/{head['version']}/groups/1?metrics=entropy")
    assert "immutable" in answer.headers["cache-control"]
    header, arrays = unpack(answer.content)
    assert header["rows"] == [4, 5, 6, 7]
    assert set(arrays) == {"mask", "metric:entropy"}


def test_one_row_comes_with_all_metrics_and_text(client: TestClient) -> None:
    version = client.get("/api/runs/0/steps/2").json()["version"]
    header, arrays = unpack(client.get(f"/api/runs/0/steps/2/{version}/rows/3/1?text=1").content)
    assert header["rows"] == [3]
    assert {"metric:entropy", "metric:influence", "metric:log_prob", "metric:advantage", "ids"} <= set(arrays)


def test_an_unchanged_head_or_timeline_is_not_sent_twice(client: TestClient) -> None:
    for path in ("/api/runs/0/steps/2", "/api/runs/0/timeline"):
        etag = client.get(path).headers["etag"]
        assert client.get(path, headers={"If-None-Match": etag}).status_code == 304


def test_new_steps_appear_in_the_timeline(connect: Open, tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step(1)})
    client = connect(folder)
    first = client.get("/api/runs/0/timeline")
    write_trace(folder, {2: make_step(2)})
    second = client.get("/api/runs/0/timeline", headers={"If-None-Match": first.headers["etag"]})
    assert second.json()["steps"] == [1, 2]
    assert client.get("/api/runs/0/steps/2").json()["step"] == 2


def test_a_step_written_again_conflicts_with_its_old_version(connect: Open, tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step(1)})
    client = connect(folder)
    version = client.get("/api/runs/0/steps/1").json()["version"]
    write_trace(folder, {1: make_step(5)})
    assert "written again" in sentence(client, f"/api/runs/0/steps/1/{version}/groups/0", 409)


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/api/runs/7/timeline", 404, "no run 7"),
        ("/api/runs/0/steps/99", 404, "has no step 99"),
        ("/api/runs/0/steps/-1", 404, "has no step -1"),
        ("/api/runs/0/steps/999999999999999999999999", 404, "has no step"),
        ("/api/runs/0/steps/nonsense", 422, "step is wrong"),
        (f"/api/runs/0/steps/{'9' * 5000}", 422, "step is wrong"),
        ("/api/runs/0/steps/1/{version}/groups/77", 404, "no group 77"),
        ("/api/runs/0/steps/1/{version}/groups/0?metrics=nonsense", 404, "no metric 'nonsense'"),
        ("/api/runs/0/steps/1/{version}/rows/8/1", 404, "no response 8"),
        ("/api/runs/0/steps/1/{version}/rows/-1/1", 404, "no response -1"),
        ("/api/runs/0/steps/1/{version}/rows/0/0", 413, "0 responses were asked for"),
        ("/api/runs/0/steps/1/{version}/rows/0/1000000", 413, "1 to 4096"),
        ("/api/runs/0/steps/1/wrong/rows/0/1", 409, "load it anew"),
        ("/api/runs/0/steps/1/groups/77/page", 404, "no group 77"),
        ("/api/runs/0/steps/1/groups/1e9/page", 422, "group is wrong"),
        ("/api/runs/-1/timeline", 404, "no run -1"),
        ("/api/runs/0/steps/1/{version}/rows/0/-5", 413, "-5 responses were asked for"),
        ("/api/runs/0/steps/1/{version}/groups/0?metrics=" + "x," * 3000, 422, "metrics is wrong"),
        ("/api/nothing", 404, "nothing at this address"),
    ],
)
def test_absurd_requests_get_a_sentence(client: TestClient, path: str, status: int, said: str) -> None:
    version = client.get("/api/runs/0/steps/1").json()["version"]
    assert said in sentence(client, path.replace("{version}", version), status)


@pytest.mark.parametrize(
    "name", ["../server.py", "..%2fserver.py", "%2e%2e/server.py", "....//server.py", "/etc/passwd", "x\0.js"]
)
def test_only_the_clients_own_files_are_served_by_name(client: TestClient, name: str) -> None:
    answer = client.get(f"/static/{name}") if "\0" not in name else client.get("/static/x%00.js")
    assert answer.status_code == 404


def test_a_damaged_step_is_reported_and_the_others_work(connect: Open, tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step(1), 2: make_step(2)})
    (folder / "steps" / "step_000001.npz").write_bytes(b"PK nonsense")
    client = connect(folder)
    assert "unreadable" in sentence(client, "/api/runs/0/steps/1", 422)
    assert client.get("/api/runs/0/steps/2").status_code == 200


def test_a_missing_step_file_shows_in_the_timeline(connect: Open, tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step(1), 2: make_step(2)})
    (folder / "steps" / "step_000001.npz").unlink()
    assert connect(folder).get("/api/runs/0/timeline").json()["problems"] == {"1": "its file is missing"}


def test_a_link_out_of_the_trace_folder_is_not_followed(connect: Open, tmp_path: Path) -> None:
    secret = write_trace(tmp_path / "other" / "influence_trace", {1: make_step(9)})
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step(1), 2: make_step(2)})
    step = folder / "steps" / "step_000001.npz"
    step.unlink()
    step.symlink_to(secret / "steps" / "step_000001.npz")
    client = connect(folder)
    assert "leads out of the trace folder" in sentence(client, "/api/runs/0/steps/1", 422)
    assert client.get("/api/runs/0/steps/2").status_code == 200


def test_a_vocabulary_that_is_a_link_out_is_not_read(connect: Open, tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step(1)})
    outside = tmp_path / "elsewhere.npz"
    (folder / "vocab.npz").rename(outside)
    (folder / "vocab.npz").symlink_to(outside)
    client = connect(folder)
    head = client.get("/api/runs/0/steps/1").json()
    assert "leads out of the trace folder" in head["notes"][-1]
    assert head["groups"][0]["prompt"].startswith("⟨0⟩")


def test_a_folder_of_steps_that_is_a_link_out_is_not_followed(connect: Open, tmp_path: Path) -> None:
    secret = write_trace(tmp_path / "other" / "influence_trace", {1: make_step(9)})
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step(1)})
    (folder / "steps").rename(tmp_path / "aside")
    (folder / "steps").symlink_to(secret / "steps")
    assert "leads out of the trace folder" in sentence(connect(folder), "/api/runs/0/steps/1", 422)


def test_a_file_name_in_the_manifest_is_never_a_path(connect: Open, tmp_path: Path) -> None:
    secret = write_trace(tmp_path / "other" / "influence_trace", {1: make_step(9)})
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step(1)})
    manifest = folder / "manifest.jsonl"
    elsewhere = "../../other/influence_trace/steps/step_000001.npz"
    manifest.write_text(manifest.read_text().replace("steps/step_000001.npz", elsewhere))
    own, foreign = (connect(path).get("/api/runs/0/steps/1").json() for path in (folder, secret))
    assert elsewhere in manifest.read_text()
    assert own["metrics"][0]["row_mean"] != foreign["metrics"][0]["row_mean"]
    assert own["metrics"][0]["row_mean"][1] == pytest.approx(
        float(make_step(1).entropies[1][make_step(1).response_mask[1]].astype(float).mean()), rel=1e-3
    )


def test_the_server_never_holds_all_steps(client: TestClient) -> None:
    for step in range(1, 6):
        client.get(f"/api/runs/0/steps/{step}")
    cache = client.app._app.state.cache  # type: ignore[attr-defined]
    cache._max_steps = 2
    client.get("/api/runs/0/steps/1")
    assert len(cache._held) == 2
