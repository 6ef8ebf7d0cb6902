"""`--where` and `--exclude`: which records of a source become prompts."""

from pathlib import Path

import pytest

from archer.data.prepare.choice import Choice, RecordCondition, same_question
from archer.errors import ArcherError


def math(number: int, **fields: object) -> dict[str, object]:
    return {"problem": f"What is {number}?", "answer": str(number), **fields}


@pytest.mark.parametrize(
    ("condition", "value", "holds"),
    [
        ("level=3..5", 3, True),
        ("level=3..5", 5.0, True),
        ("level=3..5", 2.9, False),
        ("level=3..5", "Level 4", True),
        ("level=3..5", "4", True),
        ("level=..0", -1e3, True),
        ("level=2020..", 2019, False),
        ("level=-.5..-0.25", -0.3, True),
        ("level=3,4", 3.0, True),
        ("level=3,4", "4", True),
        ("level=3,4", "Level 4", False),
        ("level=Level 3, Level 4", "Level 4", True),
        ("level=a=b", "a=b", True),
        ("level=True", True, True),
    ],
)
def test_a_condition_is_a_range_of_numbers_or_a_list_of_texts(condition, value, holds):
    assert RecordCondition.parse(condition).holds({"level": value}) is holds


@pytest.mark.parametrize("text", ["level", "=3", "level=", "level=3,,4", "level=.."])
def test_a_condition_that_says_nothing_is_refused_with_the_form_expected(text):
    with pytest.raises(ArcherError, match=r"expected FIELD=VALUE\[,VALUE\] or FIELD=LOW\.\.HIGH"):
        RecordCondition.parse(text)


def test_an_empty_range_is_refused():
    with pytest.raises(ArcherError, match="no number is at least 5 and at most 3"):
        RecordCondition.parse("level=5..3")


def test_records_that_cannot_be_judged_are_counted_as_invalid(write, prepared):
    file = write(
        "a.jsonl",
        math(1, level=4),
        math(2),
        math(3, level="hard"),
        math(4, level=True),
        math(5, level="1 or 2"),
    )
    counts = prepared("math", file, choice=Choice.of(["level=3..5"], [])).counts
    assert counts.kept == 1
    assert dict(counts.invalid) == {
        "no field level, which --where asks for": 1,
        "level holds no number, which --where asks for": 3,
    }


def test_all_conditions_have_to_hold(write, prepared, rows):
    file = write("a.jsonl", *(math(n, level=n % 3, type="ab"[n % 2]) for n in range(6)))
    done = prepared("math", file, choice=Choice.of(["level=1..", "type=b"], []))
    assert [row["reward_model"]["ground_truth"] for row in rows(done.output)] == ["1", "5"]
    assert done.counts.not_chosen == 4


def test_held_out_questions_are_left_out_whatever_their_spacing_and_whoever_wrote_the_file(
    write, prepared, rows
):
    held_out = prepared("math500", write("test.jsonl", math(1)), "test.parquet").output
    own = write("own.jsonl", {"question": " What  is\n3?"})
    file = write("a.jsonl", *map(math, range(5)))
    done = prepared("math", file, choice=Choice.of([], [held_out, own]))
    assert [row["reward_model"]["ground_truth"] for row in rows(done.output)] == ["0", "2", "4"]
    assert done.counts.excluded == 2


def test_the_manifest_knows_what_was_chosen_so_that_another_choice_is_another_file(write, prepared):
    file = write("a.jsonl", math(1, level=1), math(2, level=2))
    assert prepared("math", file, choice=Choice.of(["level=1.."], [])).counts.kept == 2
    assert prepared("math", file, choice=Choice.of(["level=1.."], [])).unchanged
    with pytest.raises(ArcherError, match="not made from this source with these options"):
        prepared("math", file, choice=Choice.of(["level=2.."], []))


def test_nothing_left_says_what_left_nothing(write, prepared):
    file = write("a.jsonl", math(1, level=1), math(2, level=2))
    held_out = write("b.jsonl", math(1))
    with pytest.raises(ArcherError, match=r"--where level=1\.\.1 does not hold for 1, --exclude holds out 1"):
        prepared("math", file, choice=Choice.of(["level=1..1"], [held_out]))


def test_a_file_to_exclude_has_to_be_there_and_to_hold_questions(write, prepared):
    with pytest.raises(ArcherError, match=r"--exclude nothing\.jsonl is not a file"):
        Choice.of([], [Path("nothing.jsonl")])
    wrong = write("wrong.jsonl", {"text": "What is 1?"})
    with pytest.raises(ArcherError, match=r"wrong\.jsonl, line 1: no field problem or question"):
        prepared("math", write("a.jsonl", math(1)), choice=Choice.of([], [wrong]))


def test_questions_are_the_same_by_their_text():
    assert same_question("caf\u00e9  au\nlait") == same_question(" cafe\u0301 au lait")
    assert same_question("x^2") != same_question("x2")
