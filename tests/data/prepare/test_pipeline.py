"""Preparing: what is written, what is left out, and what an interruption, a second time or a mistake does."""

import hashlib
import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from archer.data.prepare import pipeline
from archer.data.prepare.catalogue import find_set
from archer.data.prepare.pipeline import Request, prepare
from archer.data.prepare.sources import ArithmeticSource, FileSource
from archer.errors import ArcherError
from archer.files import lock

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."


def problem(number: int) -> dict[str, str]:
    return {"question": f"How many are {number}?", "answer": f"They are {number}.\n#### {number}"}


def sha256(path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_row_has_verls_fields(write, prepared, rows):
    done = prepared("gsm8k", write("a.jsonl", problem(7)), split="test")
    assert rows(done.output) == [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"How many are 7?\n\n{BOXED}"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "7"},
            "extra_info": {
                "split": "test",
                "index": 0,
                "id": "",
                "question": "How many are 7?",
                "meta": '{"solution": "They are 7."}',
            },
        }
    ]


def test_files_of_all_sets_have_the_same_columns_so_that_they_can_be_mixed(write, prepared):
    asserts = {"functional": "assert f(1) == 1"}
    outputs = [
        prepared("gsm8k", write("a.jsonl", problem(1)), "a.parquet"),
        prepared("math500", write("b.jsonl", {"problem": "P", "answer": "x", "level": 2}), "b.parquet"),
        prepared("leetcode", write("c.jsonl", {"problem": "P", "tests": asserts}), "c.parquet"),
    ]
    assert len({str(pq.read_schema(done.output).remove_metadata()) for done in outputs}) == 1


def test_duplicates_are_left_out_and_counted_and_so_are_those_that_disagree(write, prepared, rows):
    twin = {"question": " How  many\nare 1? ", "answer": "#### 1"}
    liar = {"question": "How many are 1?", "answer": "#### 2"}
    done = prepared("gsm8k", write("a.jsonl", problem(1), twin, problem(2), liar))
    assert [row["reward_model"]["ground_truth"] for row in rows(done.output)] == ["1", "2"]
    assert [row["extra_info"]["index"] for row in rows(done.output)] == [0, 1]
    assert (done.counts.read, done.counts.kept, done.counts.duplicates, done.counts.conflicts) == (4, 2, 2, 1)


def test_bad_rows_are_counted_by_reason_with_the_places_of_the_first(write, prepared):
    half = '{"question": "\\ud800 half a character", "answer": "#### 1"}'
    bad = [{"question": "Q"}, "{", half] + [{"question": f"Q{i}", "answer": "?"} for i in range(9)]
    counts = prepared("gsm8k", write("a.jsonl", problem(1), *bad)).counts
    assert dict(counts.invalid) == {
        "no field answer": 1,
        "not valid JSON: Expecting property name enclosed in double quotes": 1,
        "text with half a character (a lone surrogate)": 1,
        "answer has no #### line": 9,
    }
    assert counts.first_invalid[0] == "a.jsonl, line 2: no field answer"
    assert len(counts.first_invalid) == 5


def test_the_manifest_says_what_was_made_from_what(write, prepared):
    source = write("a.jsonl", problem(1), problem(2))
    done = prepared("gsm8k", source)
    manifest = json.loads(done.manifest.read_text())
    assert done.manifest.name == "out.parquet.manifest.json"
    assert manifest["sha256"] == done.sha256 == sha256(done.output)
    assert manifest["identity"]["source"] == [
        {"file": "a.jsonl", "bytes": source.stat().st_size, "sha256": sha256(source)}
    ]
    assert manifest["rows"] == 2 and manifest["counts"]["kept"] == 2


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ({"instruction": "none"}, [("user", "Q")]),
        ({"instruction": "Be brief."}, [("user", "Q\n\nBe brief.")]),
        ({"instruction": "Question: {question}\nAnswer:"}, [("user", "Question: Q\nAnswer:")]),
        ({"system": "You add."}, [("system", "You add."), ("user", f"Q\n\n{BOXED}")]),
    ],
)
def test_the_prompt_around_the_question_can_be_chosen(write, prepared, rows, options, messages):
    done = prepared("qa", write("a.jsonl", {"question": "Q", "answer": "1"}), **options)
    assert [(m["role"], m["content"]) for m in rows(done.output)[0]["prompt"]] == messages


def test_a_template_has_one_place_for_the_question(write, prepared):
    with pytest.raises(ArcherError, match="more than once"):
        prepared("qa", write("a.jsonl", {"question": "Q"}), instruction="{question} {question}")


def test_fields_and_data_source_can_be_named(write, prepared, rows):
    source = write("a.jsonl", {"frage": "Q", "antwort": 4, "answer": "wrong field"})
    options = {"question_field": "frage", "answer_field": "antwort", "data_source": "amc23"}
    row = rows(prepared("qa", source, **options).output)[0]
    assert row["extra_info"]["question"] == "Q"
    assert (row["reward_model"]["ground_truth"], row["data_source"]) == ("4", "amc23")


def test_jsonl_can_be_written_instead(write, prepared, rows):
    source = write("a.jsonl", problem(1), problem(2))
    as_lines = rows(prepared("gsm8k", source, "out.jsonl").output)
    assert as_lines == rows(prepared("gsm8k", source, "out.parquet").output)


def test_only_the_first_records_on_request(write, prepared):
    done = prepared("gsm8k", write("a.jsonl", *map(problem, range(5))), limit=3)
    assert (done.counts.read, done.counts.kept) == (3, 3)


class Kill(Exception):  # noqa: N818
    """Stands for a kill."""


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(pipeline, "BATCH_RECORDS", 4)
    monkeypatch.setattr(pipeline, "PROGRESS_RECORDS", 4)


def dying(request: Request, after: int) -> None:
    """Prepare until so many batches have been read."""
    batches = []

    def progress(done, counts) -> None:
        batches.append(counts.read)
        if len(batches) == after:
            raise Kill

    with pytest.raises(Kill):
        prepare(request, progress)


@pytest.fixture
def request_for(write, tmp_path):
    rows = [*map(problem, range(10)), problem(3), {"question": "Q"}, *map(problem, range(9, 15))]
    source = FileSource((write("source.jsonl", *rows),))
    return lambda out: Request(find_set("gsm8k"), source, tmp_path / out, "train")


@pytest.mark.parametrize("after", [1, 2, 4])
def test_an_interrupted_preparation_leaves_nothing_and_the_next_gives_the_whole_file(
    request_for, small_batches, after
):
    straight = prepare(request_for("straight.parquet"))
    request = request_for("killed.parquet")
    dying(request, after)
    assert not list(request.output.parent.glob("*killed*"))
    done = prepare(request)
    assert done.sha256 == straight.sha256 and done.counts == straight.counts
    assert not list(request.output.parent.glob(".killed*"))


@pytest.mark.parametrize("name", ["out.parquet", "out.jsonl"])
def test_what_a_kill_left_is_overwritten(request_for, name):
    request = request_for(name)
    request.output.with_name(f".{name}.tmp").write_bytes(b"half of an older file" * 10_000)
    request.output.with_name(f".{name}.lock").touch()
    assert sha256(prepare(request).output) == prepare(request_for(f"straight-{name}")).sha256
    assert not list(request.output.parent.glob(".*"))


def test_rows_are_the_same_however_many_are_written_together(request_for, small_batches, rows, monkeypatch):
    small = prepare(request_for("small.parquet"))
    monkeypatch.undo()
    whole = prepare(request_for("whole.parquet"))
    assert rows(small.output) == rows(whole.output) and small.counts == whole.counts


def test_an_interrupted_overwrite_leaves_the_old_file(request_for, small_batches):
    old = prepare(replace(request_for("out.parquet"), limit=2))
    request = replace(request_for("out.parquet"), overwrite=True)
    dying(request, 1)
    assert sha256(old.output) == old.sha256
    assert prepare(request).counts.read == 18


def test_two_processes_do_not_prepare_the_same_file(request_for):
    request = request_for("out.parquet")
    with (
        lock(request.output.with_name(".out.parquet.lock"), "held"),
        pytest.raises(ArcherError, match="Another process is preparing"),
    ):
        prepare(request)
    assert not prepare(request).unchanged


def test_the_same_request_again_changes_nothing(write, prepared):
    source = write("a.jsonl", problem(1))
    first = prepared("gsm8k", source)
    before = first.output.stat().st_mtime_ns
    again = prepared("gsm8k", source)
    assert (again.unchanged, again.sha256, again.counts) == (True, first.sha256, first.counts)
    assert first.output.stat().st_mtime_ns == before


def test_another_file_is_only_overwritten_on_request(write, prepared, rows):
    prepared("gsm8k", write("a.jsonl", problem(1)))
    other = write("b.jsonl", problem(2))
    with pytest.raises(ArcherError, match=r"exists and was not made from this source.*--overwrite"):
        prepared("gsm8k", other)
    assert rows(prepared("gsm8k", other, overwrite=True).output)[0]["reward_model"]["ground_truth"] == "2"


def test_an_output_that_was_changed_by_hand_is_not_taken_for_the_same(write, prepared):
    source = write("a.jsonl", problem(1))
    prepared("gsm8k", source, "out.jsonl").output.write_text("edited")
    with pytest.raises(ArcherError, match="--overwrite"):
        prepared("gsm8k", source, "out.jsonl")


def test_a_source_without_a_usable_row_is_refused_with_the_reasons_and_its_fields(write, prepared, tmp_path):
    source = write("a.jsonl", *({"problem": f"P{i}", "answer": "1"} for i in range(3)))
    with pytest.raises(
        ArcherError, match=r"(?s)none of the first 3 rows.*3 rows: no field question.*problem, answer"
    ):
        prepared("gsm8k", source)
    assert not list(tmp_path.glob("*out*")) and not list(tmp_path.glob(".*out*"))


def test_a_hopeless_source_is_refused_before_all_of_it_is_read(write, prepared):
    with pytest.raises(ArcherError, match="none of the first 1,000 rows"):
        prepared("gsm8k", write("a.jsonl", *({"text": i} for i in range(1500))))


def test_an_empty_source_and_an_output_of_another_format_are_refused(write, prepared):
    with pytest.raises(ArcherError, match="there are no rows"):
        prepared("gsm8k", write("a.jsonl"))
    with pytest.raises(ArcherError, match=r"ends in \.parquet or \.jsonl"):
        prepared("gsm8k", write("b.jsonl", problem(1)), "out.csv")


def test_the_built_in_sums_keep_their_operands(tmp_path, rows):
    source = ArithmeticSource("train", digits=3, size=20)
    done = prepare(Request(find_set("arithmetic"), source, tmp_path / "sums.parquet", "train"))
    for row in rows(done.output):
        operands = json.loads(row["extra_info"]["meta"])
        assert row["prompt"] == [{"role": "user", "content": f"{operands['a']}+{operands['b']}="}]
        assert row["reward_model"]["ground_truth"] == str(operands["a"] + operands["b"])
    assert len(rows(done.output)) == 20
