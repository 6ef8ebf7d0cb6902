"""Data sets on the hub: which files are meant, and fetching them from a stand-in of the hub's server."""

import hashlib
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archer.data.prepare import sources
from archer.data.prepare.catalogue import find_set
from archer.data.prepare.hub import HubRequest, choose_files, fetch
from archer.data.prepare.pipeline import Request, prepare
from archer.data.prepare.sources import FileSource, resolve
from archer.errors import ArcherError

COMMIT = "a" * 40
DAPO_CARD = [
    {"config_name": name, "data_files": [{"split": "train", "path": f"{name}/train-*"}]}
    for name in ("all", "cn", "en")
]


def parquet(*rows) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), buffer)
    return buffer.getvalue()


def dapo_row(number: int) -> dict:
    return {
        "prompt": f"What is {number}?",
        "solution": str(number),
        "data_source": "math_dapo",
        "source_prompt": [{"role": "user", "content": "..."}],
        "ability": "MATH",
        "reward_model": {"ground_truth": str(number), "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": f"uuid-{number}"},
    }


FILES = {
    "all/train-00000-of-00002.parquet": parquet(dapo_row(1), dapo_row(2)),
    "all/train-00001-of-00002.parquet": parquet(dapo_row(2), dapo_row(3)),
    "en/train-00000-of-00001.parquet": parquet(dapo_row(1)),
    "README.md": b"---\n---\n",
}


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as a download needs: the data set's description, and its files."""

    repo = "open-r1/DAPO-Math-17k-Processed"

    def do_GET(self) -> None:
        if self.path.startswith(f"/api/datasets/{self.repo}/revision/"):
            siblings = [{"rfilename": name} for name in FILES]
            description = {
                "id": self.repo,
                "sha": COMMIT,
                "siblings": siblings,
                "cardData": {"configs": DAPO_CARD},
            }
            self._answer(200, json.dumps(description).encode(), {"Content-Type": "application/json"})
        else:
            self._file()

    def do_HEAD(self) -> None:
        self._file()

    def _file(self) -> None:
        name = self.path.partition(f"/resolve/{COMMIT}/")[2]
        if not self.path.startswith(f"/datasets/{self.repo}/") or name not in FILES:
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
            return
        etag = hashlib.sha256(FILES[name]).hexdigest()
        self._answer(200, FILES[name], {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Be quiet."""


@pytest.fixture(autouse=True)
def online(monkeypatch):
    """The stand-in may be asked, although tests are otherwise kept off the hub."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_files_of_a_configuration_are_fetched_and_prepared(endpoint, tmp_path, rows):
    files = fetch(HubRequest(Hub.repo, "all", "train"), endpoint, tmp_path / "cache")
    assert [origin["file"] for origin in files.values()] == list(FILES)[:2]
    assert [path.read_bytes() for path in files] == list(FILES.values())[:2]
    source = FileSource(tuple(files), files)
    done = prepare(Request(find_set("dapo-math-17k"), source, tmp_path / "dapo.parquet", "train"))
    assert [row["reward_model"]["ground_truth"] for row in rows(done.output)] == ["1", "2", "3"]
    assert [row["extra_info"]["id"] for row in rows(done.output)] == ["uuid-1", "uuid-2", "uuid-3"]
    assert done.counts.duplicates == 1
    origin = json.loads(done.manifest.read_text())["identity"]["source"][0]
    assert (origin["repo"], origin["commit"]) == (Hub.repo, COMMIT)


def test_a_second_fetch_takes_the_cache(endpoint, tmp_path, monkeypatch):
    first = fetch(HubRequest(Hub.repo, "en", "train"), endpoint, tmp_path)
    ((path, origin),) = first.items()
    monkeypatch.setitem(FILES, origin["file"], b"changed on the server under the same commit")
    assert fetch(HubRequest(Hub.repo, "en", "train"), endpoint, tmp_path) == first
    assert pq.read_table(path).num_rows == 1


def test_a_repository_that_does_not_exist(endpoint, tmp_path):
    with pytest.raises(ArcherError, match=r"no data set nobody/nothing \(revision main\) on the hub"):
        fetch(HubRequest("nobody/nothing", None, "train"), endpoint, tmp_path)


def test_a_hub_that_cannot_be_reached(tmp_path):
    with pytest.raises(ArcherError, match=r"could not be fetched from the hub .*give its path instead"):
        fetch(HubRequest(Hub.repo, "all", "train"), "http://127.0.0.1:9", tmp_path)


GSM8K = [f"{c}/{s}-00000-of-00001.parquet" for c in ("main", "socratic") for s in ("test", "train")]


@pytest.mark.parametrize(
    ("names", "configs", "config", "split", "chosen"),
    [
        (GSM8K, None, "main", "train", ["main/train-00000-of-00001.parquet"]),
        (["test.jsonl", "README.md"], None, None, "test", ["test.jsonl"]),
        (["test.jsonl", "test2.jsonl", "latest.jsonl"], None, None, "test", ["test.jsonl", "test2.jsonl"]),
        (["only.json", "README.md"], None, None, "train", ["only.json"]),
        (list(FILES), DAPO_CARD, "en", "train", ["en/train-00000-of-00001.parquet"]),
        (list(FILES), DAPO_CARD, None, "train", list(FILES)[:2]),  # the first configuration is the default
        (
            ["a.parquet", "b.parquet"],
            [{"config_name": "x", "data_files": "b.parquet"}],
            "x",
            "train",
            ["b.parquet"],
        ),
    ],
)
def test_files_are_chosen_by_the_card_or_by_their_names(names, configs, config, split, chosen):
    assert choose_files(names, configs, HubRequest("a/b", config, split)) == chosen


def test_a_configuration_or_split_that_is_not_there_lists_what_is():
    with pytest.raises(ArcherError, match="no configuration 'fr'; it has: all, cn, en"):
        choose_files(list(FILES), DAPO_CARD, HubRequest("a/b", "fr", "train"))
    with pytest.raises(ArcherError, match=r"Its data files are: main/test-.*--config and --split"):
        choose_files(GSM8K, None, HubRequest("a/b", "main", "validation"))


@pytest.fixture
def requests(monkeypatch) -> list[HubRequest]:
    """What would have been asked of the hub."""
    asked: list[HubRequest] = []
    monkeypatch.setattr(sources, "fetch", lambda request: asked.append(request) or {})
    return asked


@pytest.mark.parametrize(
    ("name", "source", "split", "config", "wanted"),
    [
        ("gsm8k", None, None, None, ("openai/gsm8k", "main", "train")),
        ("gsm8k", None, "test", None, ("openai/gsm8k", "main", "test")),
        ("dapo-math-17k", None, None, "en", ("open-r1/DAPO-Math-17k-Processed", "en", "train")),
        ("aime24", None, None, None, ("HuggingFaceH4/aime_2024", None, "train")),  # its only split
        ("qa", "me/mine", None, "small", ("me/mine", "small", "train")),
    ],
)
def test_names_stand_for_their_place_on_the_hub(requests, name, source, split, config, wanted):
    resolve(find_set(name), source, split, config)
    assert [(r.repo, r.config, r.split) for r in requests] == [wanted]


def test_a_local_file_is_preferred_and_a_missing_one_is_not_looked_for_on_the_hub(
    requests, write, monkeypatch
):
    path = write("mine.jsonl", {"question": "Q"})
    monkeypatch.chdir(path.parent)
    assert resolve(find_set("qa"), "mine.jsonl") == FileSource((path.relative_to(path.parent),))
    for missing in ("nothing/here.jsonl", "/nowhere/at/all"):
        with pytest.raises(ArcherError, match=f"{missing} does not exist"):
            resolve(find_set("qa"), missing)
    with pytest.raises(ArcherError, match="no place on the hub"):
        resolve(find_set("leetcode"), None)
    assert not requests


def test_in_offline_mode_the_message_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ArcherError, match=r"could not be fetched from the hub \(.*offline mode"):
        fetch(HubRequest(Hub.repo, "all", "train"), "http://127.0.0.1:9", tmp_path)
