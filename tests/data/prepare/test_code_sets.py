"""Rows of the public programming sets: their tests arrive in shapes that the rewards read."""

import base64
import json
import pickle
import zlib

import pytest

from archer.data.prepare.catalogue import find_set
from archer.data.prepare.code_sets import FUNCTION, STDIN
from archer.data.prepare.example import RowError
from archer.rewards.code.record import read_tests

STDIN_CASES = [{"input": "3\n", "output": "9\n", "testtype": "stdin"}]
CALL_CASES = [{"input": "[1, 2]\n3", "output": "6", "testtype": "functional"}]


def packed(cases) -> str:
    """LiveCodeBench's packing of private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


def truth(name: str, **values):
    example = find_set(name).convert(values)
    read_tests(example.ground_truth)  # raises where the rewards could not use it
    return json.loads(example.ground_truth), example.instruction


def test_humaneval_keeps_prompt_test_and_entry_point():
    row = {
        "task_id": "HumanEval/0",
        "prompt": 'def add(a, b):\n    """Add."""\n',
        "entry_point": "add",
        "canonical_solution": "    return a + b\n",
        "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    }
    found, instruction = truth("humaneval", **row)
    assert found["entry_point"] == "add" and "candidate(1, 2)" in found["test"]
    assert instruction == FUNCTION
    assert '```python\ndef add(a, b):\n    """Add."""\n```' in find_set("humaneval").convert(row).question


def test_leetcode_asserts():
    tests = {"functional": "def check(candidate):\n    assert candidate(s = '1') == 1\n\ncheck(Solution().f)"}
    assert truth("leetcode", problem="P", tests=tests) == (tests, FUNCTION)


def test_leetcode_dataset_is_judged_by_its_asserts_and_asks_its_description():
    row = {
        "task_id": "two-sum",
        "problem_description": "Find two numbers.",
        "starter_code": "class Solution:\n    def twoSum(self, nums, target):",
        "prompt": "from typing import *\n",
        "entry_point": "Solution().twoSum",
        "test": "def check(candidate):\n    assert candidate(nums = [3, 3], target = 6) == [0, 1]\n",
        "input_output": [{"input": "nums = [3,3], target = 6", "output": "[0, 1]"}],
    }
    found, instruction = truth("leetcode", **row)
    assert (found["entry_point"], instruction) == ("Solution().twoSum", FUNCTION)
    question = find_set("leetcode").convert(row).question
    assert question.startswith("Find two numbers.") and "def twoSum" in question


def test_livecodebench_joins_public_and_packed_private_tests():
    found, instruction = truth(
        "livecodebench",
        question_content="Square it.",
        public_test_cases=json.dumps(STDIN_CASES),
        private_test_cases=packed([{"input": "4\n", "output": "16\n", "testtype": "stdin"}]),
        metadata="{}",
        starter_code="",
    )
    assert found == {"inputs": ["3\n", "4\n"], "outputs": ["9\n", "16\n"]}
    assert instruction == STDIN


def test_livecodebench_functions_have_a_name_and_starter_code():
    row = {
        "question_content": "Sum it.",
        "public_test_cases": json.dumps(CALL_CASES),
        "private_test_cases": "[]",
        "metadata": json.dumps({"func_name": "total"}),
        "starter_code": "class Solution:\n    def total(self, a, b):\n        ",
    }
    found, instruction = truth("livecodebench", **row)
    assert found == {"inputs": ["[1, 2]\n3"], "outputs": ["6"], "fn_name": "total"}
    assert instruction == FUNCTION
    assert (
        "```python\nclass Solution:\n    def total(self, a, b):\n```"
        in find_set("livecodebench").convert(row).question
    )


def test_the_lists_of_rllm_and_the_columns_of_apps():
    cases = [{**CALL_CASES[0], "metadata": {"func_name": "total"}}]
    assert truth("livecodebench", problem="P", tests=json.dumps(cases))[0]["fn_name"] == "total"
    columns = {"inputs": ["1\n"], "outputs": ["2\n"]}
    assert truth("livecodebench", question="P", input_output=json.dumps(columns)) == (columns, STDIN)


class Bomb:
    def __reduce__(self):
        return (print, ("ran a stranger's code",))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"problem": "P"}, "no tests"),
        ({"problem": "P", "tests": []}, "no tests"),
        ({"problem": "P", "tests": {"inputs": ["1"], "outputs": []}}, "not as many outputs"),
        ({"problem": "P", "tests": [{"input": "1"}]}, "not a list of {input, output}"),
        ({"problem": "P", "tests": CALL_CASES}, "functional tests name no function"),
        ({"problem": "P", "tests": CALL_CASES + STDIN_CASES}, "partly for stdin"),
        ({"problem": "P", "tests": "garbage"}, "tests cannot be unpacked"),
        ({"problem": "P", "tests": {"functional": "def check(:"}}, "the tests cannot be used"),
        ({"problem": "P", "tests": {"functional": "check(f)"}}, "the tests cannot be used"),
    ],
)
def test_problems_without_usable_tests_say_why(values, reason):
    with pytest.raises(RowError, match=reason):
        find_set("livecodebench").convert(values)


def test_a_packed_object_is_refused_and_never_run(capsys):
    bomb = base64.b64encode(zlib.compress(pickle.dumps(Bomb()))).decode()
    with pytest.raises(RowError, match="cannot be unpacked"):
        find_set("livecodebench").convert({"problem": "P", "tests": bomb})
    assert capsys.readouterr().out == ""
