import base64
import json
import os
import pickle
import zlib

import pytest

from archer.errors import ArcherError
from archer.rewards.code import AssertTests, CallTests, ScriptCase, ScriptTests, record, sample_tests
from archer.rewards.code.record import read_tests

STDIN_CASES = [
    {"input": "1 2\n", "output": "3\n", "testtype": "stdin"},
    {"input": "5 6\n", "output": "11\n", "testtype": "stdin"},
]
CALL_CASES = [{"input": '[1, 2]\n"x"', "output": "true", "testtype": "functional"}]


def packed(value: object, protocol: int = 4) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value, protocol))).decode()


def test_humaneval_has_a_test_an_entry_point_and_a_prompt():
    tests = read_tests(
        {
            "task_id": "HumanEval/0",
            "prompt": "def twice(x):\n    '''Double it.'''\n",
            "entry_point": "twice",
            "canonical_solution": "    return 2 * x",
            "test": "def check(candidate):\n    assert candidate(1) == 2\n    assert True, 'idle'\n",
        }
    )
    assert isinstance(tests, AssertTests)
    assert (tests.entry_point, tests.count) == ("twice", 1)
    assert tests.setup.startswith("def twice")


def test_a_prompt_that_is_no_python_is_left_out():
    record = {"prompt": "Write a function.", "entry_point": "f", "test": "def check(c): assert c() == 1"}
    assert read_tests(record).setup == ""


def test_rllm_leetcode_rows_and_their_tests_are_read():
    source = "def check(candidate):\n    assert candidate(n = 1) == 2\n\n\ncheck(Solution().twice)"
    expected = AssertTests(source, 1)
    assert read_tests({"problem": "...", "solutions": "...", "tests": {"functional": source}}) == expected
    assert read_tests(json.dumps({"functional": source})) == expected


def test_plain_assertions_are_read_from_text_lists_and_mbpp():
    lines = ["assert f(1) == 2", "assert f(2) == 4"]
    assert read_tests("\n".join(lines)) == AssertTests("\n".join(lines), 2)
    assert read_tests(lines) == AssertTests("\n".join(lines), 2)
    mbpp = read_tests({"test_list": lines, "test_setup_code": "import math", "test_imports": ["import re"]})
    assert mbpp == AssertTests("\n".join(lines), 2, setup="import re\nimport math")


def test_inputs_and_outputs_are_scripts_or_calls():
    scripts = read_tests('{"inputs": ["1\\n", ["2", "3"]], "outputs": ["1", ["2", "3"]]}')
    assert scripts == ScriptTests((ScriptCase("1\n", "1"), ScriptCase("2\n3", "2\n3")))
    calls = read_tests({"inputs": [[1, [2]], '[3]\n"x"'], "outputs": [5, "7"], "fn_name": "add"})
    assert calls == CallTests("add", ("[[1, [2]], 5]", '[[[3], "x"], 7]'))


def test_expected_values_that_all_stand_in_lists_may_be_meant_without():
    assert read_tests({"inputs": [[1], [2]], "outputs": [[1], [2]], "fn_name": "f"}).unwrap
    assert not read_tests({"inputs": [[1], [2]], "outputs": [[1], [2, 3]], "fn_name": "f"}).unwrap


@pytest.mark.parametrize("private", [json.dumps(STDIN_CASES[1:]), packed(json.dumps(STDIN_CASES[1:]))])
def test_livecodebench_gives_public_then_private_cases(private):
    record = {
        "question_content": "...",
        "public_test_cases": json.dumps(STDIN_CASES[:1]),
        "private_test_cases": private,
        "metadata": "{}",
    }
    tests = read_tests(record)
    assert tests == ScriptTests((ScriptCase("1 2\n", "3\n"), ScriptCase("5 6\n", "11\n")))
    assert read_tests(json.dumps(record)) == tests
    assert read_tests(STDIN_CASES) == tests


@pytest.mark.parametrize(
    "where",
    [
        {"metadata": '{"func_name": "holds"}'},
        {"metadata": {"func_name": "holds"}},
        {"starter_code": "class Solution:\n    def holds(self, xs: List[int], s: str) -> bool:\n        "},
    ],
)
def test_livecodebench_calls_name_their_function(where):
    tests = read_tests({"public_test_cases": CALL_CASES, "private_test_cases": "", **where})
    assert tests == CallTests("holds", ('[[[1, 2], "x"], true]',))


@pytest.mark.parametrize("protocol", range(6))
def test_packed_cases_are_read_whatever_the_pickle_protocol(protocol):
    record = {"private_test_cases": packed(json.dumps(STDIN_CASES), protocol)}
    assert read_tests(record) == read_tests(STDIN_CASES)


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("/tmp/hostile-pickle",)


@pytest.mark.parametrize("content", [Evil(), ["[]"], {"a": 1}, b"[]", 5, ("[]", "[]")])
def test_a_pickle_of_more_than_a_text_is_refused_and_never_loaded(content):
    with pytest.raises(ArcherError, match="pickle"):
        read_tests({"private_test_cases": packed(content)})
    assert not os.path.exists("/tmp/hostile-pickle")  # noqa: PTH110


def test_a_packed_bomb_does_not_unpack(monkeypatch):
    monkeypatch.setattr(record, "_MAX_UNPACKED_BYTES", 2**20)
    bomb = base64.b64encode(zlib.compress(bytes(2**24))).decode()
    with pytest.raises(ArcherError, match="more than 1 MiB"):
        read_tests({"private_test_cases": bomb})


@pytest.mark.parametrize(
    "ground_truth",
    [
        None,
        "",
        "42",
        "x ==",
        [],
        {},
        7,
        {"answer": "5"},
        "{broken",
        '{"inputs": [], "outputs": []}',
        {"inputs": ["1"], "outputs": []},
        {"functional": "print(1)"},
        {"functional": "assert True"},
        {"private_test_cases": "%%%"},
        {"public_test_cases": [], "private_test_cases": []},
        {"public_test_cases": [*STDIN_CASES, *CALL_CASES]},
        {"public_test_cases": CALL_CASES},
        {"public_test_cases": [{"input": "1"}]},
        {"public_test_cases": [{"input": "1", "output": "1", "testtype": "telepathy"}]},
        {"inputs": ["not json"], "outputs": [1], "fn_name": "f"},
    ],
)
def test_a_ground_truth_that_no_program_could_be_judged_by_is_refused(ground_truth):
    with pytest.raises(ArcherError, match=r"Expected|expected|JSON"):
        read_tests(ground_truth)


def many(count: int) -> ScriptTests:
    return ScriptTests(tuple(ScriptCase(str(number), str(number)) for number in range(count)))


def test_sampling_takes_the_same_tests_every_time_and_keeps_their_order():
    chosen = sample_tests(many(100), 10)
    assert chosen == sample_tests(many(100), 10)
    numbers = [int(case.stdin) for case in chosen.cases]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 10
    # Fixed: another version or machine must draw the same, or rewards of resumed runs would change.
    assert numbers == [15, 25, 27, 45, 53, 57, 60, 74, 83, 89]


def test_sampling_differs_between_problems():
    drawn = {tuple(case.stdin for case in sample_tests(many(size), 5).cases) for size in range(50, 60)}
    assert len(drawn) > 5


def test_few_tests_are_all_kept():
    assert sample_tests(many(3), 3) == many(3)
    assert sample_tests(many(3), None) == many(3)


def test_assertions_are_sampled_where_they_stand_alone():
    lines = [f"    assert candidate({number}) == {number}" for number in range(20)]
    loop = "    for x in range(3):\n        assert candidate(x) == x"
    source = "\n".join(["def check(candidate):", *lines, loop, "check(f)"])
    chosen = sample_tests(read_tests(source), 5)
    assert chosen.count == 5
    assert chosen.source.count("assert") == 5
    assert "for x in range(3)" in chosen.source
    assert chosen.source.endswith("check(f)")
    assert chosen == sample_tests(read_tests(source), 5)
