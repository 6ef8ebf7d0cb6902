"""Search over a run and the course of a prompt, against plain loops; expressions that never end are ended."""

import math
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from small_traces import TOKENS, make_step, write_trace
from starlette.testclient import TestClient

from archer.errors import ArcherError
from archer.trace.vocab import Vocab
from archer.viewer.explore import RunSearch
from archer.viewer.promptindex import PromptIndex
from archer.viewer.regexprocess import RegexError, RegexProcess
from archer.viewer.runs import Library, TracedRun
from archer.viewer.security import Access
from archer.viewer.server import create_app
from archer.viewer.steps import StepData, load_step
from archer.viewer.textsearch import Query, matches_of, step_result, token_ids


@pytest.fixture(scope="module")
def regexes() -> Iterator[RegexProcess]:
    process = RegexProcess(seconds=1.0)
    yield process
    process.close()


SPELLED = [
    b"wait",
    b" Wait",
    b" waiter",
    " 😀".encode(),
    b" await",
    b"Wait",
    b",",
    "∑".encode()[:2],
    "∑".encode()[2:],
]


@pytest.fixture
def spelled(tmp_path: Path) -> TracedRun:
    """Responses `wait Wait waiter 😀 awaitWait,∑`, with ∑ over two tokens."""
    ids = np.tile(np.arange(len(SPELLED)), (8, 1))
    wide = np.random.default_rng(0).normal(size=ids.shape)
    step = make_step(
        responses=ids, entropies=np.abs(wide), influence=wide, advantage=wide, log_probs=-np.abs(wide),
        response_mask=np.ones(ids.shape), prompts=[[0]] * 8,
    )  # fmt: skip
    write_trace(tmp_path / "run/influence_trace", {1: step}, vocab=Vocab.from_tokens(SPELLED))
    return TracedRun(tmp_path / "run")


@pytest.mark.parametrize(
    ("query", "tokens"),
    [
        (Query("wait"), [(0, 1), (1, 2)]),
        (Query("Wait", case=True), [(1, 2)]),
        (Query("wait", "text"), [(0, 1), (1, 2), (2, 3), (4, 5), (5, 6)]),
        (Query("wait", "token"), [(0, 1), (1, 2), (5, 6)]),
        (Query(" Wait", "token", case=True), [(1, 2)]),
        (Query("#3", "token"), [(3, 4)]),
        (Query("😀 await", "text"), [(3, 5)]),
        (Query("∑", "text"), [(7, 9)]),
        (Query(r"w\w+t\b", "regex"), [(0, 1), (1, 2), (4, 6)]),
        (Query(r"x*", "regex"), []),
    ],
)
def test_a_match_is_the_tokens_that_its_characters_touch(
    spelled: TracedRun, regexes: RegexProcess, query: Query, tokens: list[tuple[int, int]]
) -> None:
    data = load_step(spelled, 1)
    found = matches_of(query, data, spelled.vocab()[0], regexes)
    assert [(match.first, match.end) for match in found if match.row == 2] == tokens


def test_counts_and_means_of_a_step_are_those_of_a_plain_loop(
    run_folder: Path, regexes: RegexProcess
) -> None:
    run = TracedRun(run_folder)
    data = load_step(run, 3)
    result = step_result(Query("the answer"), run, data, regexes)
    matches, entropies, influences = 0, [], []
    for row in range(8):
        ids = data.arrays.responses[row, : data.spans[row]].tolist()
        for position in range(len(ids) - 1):
            if ids[position : position + 2] != [0, 1]:
                continue
            if position and re.match(rb"\w", TOKENS[ids[position - 1]][-1:]):
                continue
            if position + 2 < len(ids) and re.match(rb"\w", TOKENS[ids[position + 2]][:1]):
                continue
            matches += 1
            for at in (position, position + 1):
                if data.arrays.response_mask[row, at]:
                    entropies.append(float(data.metric("entropy")[row, at]))
                    influences.append(float(data.metric("influence")[row, at]))
    assert matches and result["matches"] == matches
    assert result["responses"] == 8
    assert result["entropy"] == pytest.approx(sum(entropies) / len(entropies), rel=1e-5)
    assert result["influence"] == pytest.approx(sum(influences) / len(influences), rel=1e-5)
    assert result["influence"] < 0 or math.isfinite(result["influence"])
    assert sum(result["spellings"].values()) == matches
    assert result["examples"][0]["text"] == "The answer"


def test_an_expression_that_never_ends_is_ended_and_the_next_one_works(regexes: RegexProcess) -> None:
    begin = time.monotonic()
    with pytest.raises(RegexError, match="longer than 1 s"):
        regexes.find(r"(a+)+$", ["a" * 60 + "!"], ignore_case=False, most=10)
    assert time.monotonic() - begin < 10
    assert regexes.find("a.", ["abcad"], ignore_case=False, most=10) == [[0, 2, 3, 5]]
    with pytest.raises(RegexError, match="not a regular expression"):
        regexes.find("(", [""], ignore_case=False, most=10)


def test_an_expression_that_wants_all_memory_is_refused(regexes: RegexProcess) -> None:
    with pytest.raises(RegexError):
        regexes.find("(?:" * 3000 + "a" + ")" * 3000, ["a"], ignore_case=False, most=10)
    assert regexes.find("a", ["a"], ignore_case=False, most=10) == [[0, 1]]


def test_a_search_comes_in_parts_that_make_the_whole(run_folder: Path, regexes: RegexProcess) -> None:
    search = RunSearch(Library.open([run_folder]), regexes)
    whole = search.look(0, Query("maybe"), -1, 60.0)
    assert [result["step"] for result in whole["results"]] == [1, 2, 3, 4, 5] and whole["next"] is None
    parts, after = [], -1
    while after is not None:
        part = search.look(0, Query("maybe", case=True), after, 0.0)
        assert len(part["results"]) == 1
        parts += part["results"]
        after = part["next"]
    assert parts == whole["results"]


def test_a_damaged_step_is_said_and_the_others_are_searched(tmp_path: Path, regexes: RegexProcess) -> None:
    folder = write_trace(tmp_path / "run/influence_trace", {1: make_step(1), 2: make_step(2)})
    (folder / "steps/step_000001.npz").write_bytes(b"PK nonsense")
    found = RunSearch(Library.open([tmp_path / "run"]), regexes).look(0, Query("so"), -1, 60.0)["results"]
    assert "problem" in found[0] and found[1]["matches"] == 8


def test_questions_that_cannot_be_asked_get_a_sentence(run_folder: Path) -> None:
    client = TestClient(create_app(Library.open([run_folder]), Access.of("127.0.0.1", 7862)))
    for query, status in [
        ("q=(&mode=regex", 400),
        ("q=&mode=text", 404),
        ("q=a&mode=odd", 404),
        ("q=" + "a" * 501, 422),
    ]:
        answer = client.get(f"/api/runs/0/search?{query}")
        assert answer.status_code == status and answer.json()["error"]
    with pytest.raises(ArcherError, match="#1234"):
        token_ids(Query("wait", "token"), None)


def test_the_course_of_a_prompt_grows_with_the_run_and_a_step_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from archer.viewer import promptindex

    folder = tmp_path / "run/influence_trace"
    samples = {1: [7] * 4 + [8] * 4, 2: [8] * 4 + [9] * 4, 3: [7] * 4 + [9] * 4}
    write_trace(
        folder, {step: make_step(step, sample_index=given) for step, given in samples.items() if step < 3}
    )
    run = TracedRun(tmp_path / "run")
    read: list[int] = []
    monkeypatch.setattr(promptindex.PromptIndex, "_text", lambda *_: None)

    def counted(run: TracedRun, step: int) -> StepData:
        read.append(step)
        return load_step(run, step)

    monkeypatch.setattr(promptindex, "load_step", counted)
    index = PromptIndex(run)
    partial = index.look("sample:8", seconds=-1.0)
    assert (partial["indexed"], partial["steps"]) == (0, 2)
    assert [(entry["step"], entry["group"]) for entry in index.look("sample:8")["groups"]] == [(1, 1), (2, 0)]
    write_trace(folder, {3: make_step(3, sample_index=samples[3])})
    run.refresh()
    found = index.look("sample:7")
    assert [(entry["step"], entry["group"]) for entry in found["groups"]] == [(1, 0), (3, 0)]
    assert read == [1, 2, 3]
    data = load_step(run, 3)
    values = [float(v) for v in data.metric("entropy")[:4][data.arrays.response_mask[:4]]]
    assert found["groups"][1]["entropy"] == pytest.approx(sum(values) / len(values), rel=1e-5)


def test_without_sample_numbers_a_prompt_is_found_by_its_text(tmp_path: Path) -> None:
    steps = {step: make_step(step, sample_index=None) for step in (1, 2)}
    write_trace(tmp_path / "run/influence_trace", steps)
    run = TracedRun(tmp_path / "run")
    from archer.viewer.groups import groups_json

    name = groups_json(load_step(run, 1), run.vocab()[0])[1]["prompt_id"]
    found = PromptIndex(run).look(name)
    assert name.startswith("text:") and [entry["step"] for entry in found["groups"]] == [1, 2]
    assert found["text"] == "The answer is  answer"
