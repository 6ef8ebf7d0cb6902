"""Rows of the public math sets, as their files have them, and rows that cannot be used."""

import pytest

from archer.data.prepare.catalogue import DATA_SETS, find_set
from archer.data.prepare.example import RowError
from archer.errors import ArcherError
from archer.rewards.rules import find_rule

DAPO_HEAD = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_TAIL = '\n\nRemember to put your answer on its own line after "Answer:".'


def converted(name: str, **values) -> tuple[str, str]:
    example = find_set(name).convert(values)
    return example.question, example.ground_truth


def test_every_data_set_has_a_reward():
    for data_set in DATA_SETS.values():
        find_rule(data_set.data_source)


def test_an_unknown_name_is_an_error_that_lists_the_names():
    with pytest.raises(ArcherError, match="no data set 'gsm9k'; there are: arithmetic, dapo-math-17k, gsm8k"):
        find_set("gsm9k")


@pytest.mark.parametrize(
    ("final", "truth"),
    [("72", "72"), ("1,234", "1234"), ("-5", "-5"), ("$18", "18"), ("0.5", "0.5"), ("2,125,000", "2125000")],
)
def test_gsm8k_takes_the_number_after_the_last_hashes(final, truth):
    row = find_set("gsm8k").convert(
        {"question": " How? ", "answer": f"48/2 = <<48/2=24>>24 clips.\n#### {final}"}
    )
    assert (row.question, row.ground_truth) == ("How?", truth)
    assert row.meta == {"solution": "48/2 = 24 clips."}  # calculator annotations are no part of a solution


def test_dapo_as_the_hub_has_it():
    assert converted(
        "dapo-math-17k",
        prompt="Find $a + b$.",
        solution="34",
        data_source="math_dapo",
        source_prompt=[{"role": "user", "content": f"{DAPO_HEAD}Find $a + b$.{DAPO_TAIL}"}],
        ability="MATH",
        reward_model={"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
        extra_info={"index": "9a9b6eb4"},
    ) == ("Find $a + b$.", "34")


def test_dapo_as_verl_reads_it_loses_the_wrapped_instruction():
    wrapped = [{"role": "user", "content": f"{DAPO_HEAD}Find\n\n$a + b$.{DAPO_TAIL}"}]
    truth = {"ground_truth": "34", "style": "rule"}
    assert converted("dapo-math-17k", prompt=wrapped, reward_model=truth) == ("Find\n\n$a + b$.", "34")


def test_aime_answers_are_integers_without_leading_zeros():
    assert converted("aime24", problem="P", answer="025") == ("P", "25")
    assert converted("aime25", question="P", answer="0") == ("P", "0")


def test_amc_answers_come_as_floats():
    assert converted("amc", problem="P", answer=142.0) == ("P", "142")
    assert converted("amc", problem="P", answer=-0.5) == ("P", "-0.5")


def test_math_takes_the_answer_field_or_the_solutions_last_box():
    assert converted("math", problem="P", solution="so $\\boxed{1}$, no: $\\boxed{\\frac{1}{2}}$.") == (
        "P",
        "\\frac{1}{2}",
    )
    assert converted("math500", problem="P", solution="\\boxed{1}", answer="2") == ("P", "2")


def test_olympiadbench_has_a_list_of_one_answer_and_sometimes_a_context():
    row = {"question": "Q", "final_answer": ["$(1,2)$"], "id": 1606}
    assert converted("olympiadbench", **row) == ("Q", "$(1,2)$")
    assert converted("olympiadbench", **row, context="C") == ("C\n\nQ", "$(1,2)$")
    assert find_set("olympiadbench").convert(row).id == "1606"


def test_word_problems_with_input_and_target():
    assert converted("mawps", input="Q", target=39) == ("Q", "39")


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("gsm8k", {"question": "Q"}, "no field answer"),
        ("gsm8k", {"question": "Q", "answer": "42"}, "answer has no #### line"),
        ("gsm8k", {"question": "Q", "answer": "#### many"}, "what follows #### is not a number"),
        ("gsm8k", {"question": "  ", "answer": "#### 1"}, "question is empty"),
        ("math", {"problem": "P", "solution": "obvious"}, "no answer, and the solution has no closed"),
        ("math", {"problem": "P", "answer": ""}, "answer is empty"),
        ("math", {"problem": "P", "answer": {"a": 1}}, "answer is dict, not text or a number"),
        ("math", {"problem": "P", "answer": float("nan")}, "answer is not finite"),
        ("math", {"problem": "P", "answer": True}, "answer is bool"),
        ("math", {"problem": "P", "answer": "9" * 2001}, "answer has more than 2000 characters"),
        ("math", {"problem": 3, "answer": "1"}, "problem is int, not text"),
        ("aime24", {"problem": "P", "answer": "1/2"}, "answer is not an integer"),
        ("aime24", {"problem": "P", "answer": "1000"}, r"answer is not in 0 \.\.\. 999"),
        ("olympiadbench", {"question": "Q", "final_answer": ["1", "2"]}, "not a list of one answer"),
        ("dapo-math-17k", {"prompt": []}, "prompt is not one user message"),
        ("dapo-math-17k", {"prompt": DAPO_HEAD + DAPO_TAIL, "solution": "1"}, "prompt is empty"),
    ],
)
def test_rows_that_cannot_be_used_say_why(name, values, reason):
    with pytest.raises(RowError, match=reason):
        find_set(name).convert(values)
