"""Programs judged by tests of every form: honest ones pass, and no trick but the right value does."""

import textwrap

import pytest

from archer.rewards.code import CallTests, ScriptCase, ScriptTests
from archer.rewards.code.grade import Ending, no_program
from archer.rewards.code.record import read_tests

SUM = ScriptTests((ScriptCase("1 2", "3"), ScriptCase("10 20", "30"), ScriptCase("-1 1", "0")))
DOUBLE = CallTests("double", ("[[1], 2]", "[[4], 8]", "[[0], 0]"))
HUMANEVAL = read_tests(
    {
        "prompt": 'HELPER = 2\n\ndef double(x: int) -> int:\n    """Twice x."""\n',
        "entry_point": "double",
        "test": "def check(candidate):\n    assert candidate(1) == HELPER\n    assert candidate(4) == 8\n",
    }
)
LEETCODE = read_tests(
    {"functional": "def check(candidate):\n    assert candidate(x = 4) == 8\n\ncheck(Solution().double)"}
)
ASSERTS = read_tests("assert double(4) == 8\nassert double(0) == 0")
CLASS = "class Solution:\n    def double(self, x: int) -> int:\n        return 2 * x\n"
FUNCTION = "def double(x):\n    return 2 * x\n"


def test_a_script_that_prints_what_is_expected_passes(box):
    verdict = box.grade("print(sum(map(int, input().split())))", SUM)
    assert (verdict.ending, verdict.passed, verdict.count, verdict.failed_test) == (Ending.PASSED, 3, 3, None)


@pytest.mark.parametrize(
    ("program", "tests"),
    [(FUNCTION, DOUBLE), (CLASS, DOUBLE), (FUNCTION, HUMANEVAL), (CLASS, LEETCODE), (FUNCTION, ASSERTS)],
    ids=["call", "method", "humaneval", "leetcode", "asserts"],
)
def test_a_right_function_passes(each_box, program, tests):
    verdict = each_box.grade(program, tests)
    assert verdict.ending is Ending.PASSED, verdict
    assert verdict.passed == verdict.count == tests.count


@pytest.mark.parametrize(
    "tests", [DOUBLE, HUMANEVAL, LEETCODE, ASSERTS], ids=lambda tests: type(tests).__name__
)
@pytest.mark.parametrize(
    "wrong", ["return x + 1", "return None", "pass", "raise ValueError(x)", "return '8'"]
)
def test_a_wrong_function_fails(box, tests, wrong):
    program = f"class Solution:\n    def double(self, x): {wrong}\ndef double(x): {wrong}\n"
    assert box.grade(program, tests).ending is Ending.WRONG


@pytest.mark.parametrize(
    ("program", "ending", "reason"),
    [
        ("print(3)", Ending.WRONG, "expected '30', printed '3'"),
        (
            "a, b = map(int, input().split())\nprint(30 // (10 - a) and a + b)",
            Ending.CRASH,
            "ZeroDivisionError",
        ),
        ("a, b = map(int, input().split())\nwhile a == 10: pass\nprint(a + b)", Ending.TIMEOUT, "too long"),
        (
            "a, b = map(int, input().split())\nx = [0] * (a * 10**8 - 10**8)\nprint(a + b)",
            Ending.MEMORY,
            "Memory",
        ),
        (
            "a, b = map(int, input().split())\nprint('x' * 10**7 if a > 9 else a + b)",
            Ending.OUTPUT,
            "too much",
        ),
        (
            "a, b = map(int, input().split())\nimport os\nif a > 9: os.abort()\nprint(a + b)",
            Ending.CRASH,
            "signal",
        ),
    ],
    ids=["wrong", "crash", "timeout", "memory", "output", "signal"],
)
def test_a_verdict_tells_which_test_failed_and_how(box, program, ending, reason):
    verdict = box.grade(program, SUM, test_timeout_s=2.0)
    assert (verdict.ending, verdict.failed_test, verdict.passed) == (ending, 1, 1), verdict
    assert reason in verdict.reason


@pytest.mark.parametrize(
    ("body", "ending", "reason"),
    [
        ("return 2 * x if x < 4 else 0", Ending.WRONG, "expected 8, got 0"),
        ("return 2 * x if x < 4 else x / 0", Ending.WRONG, "ZeroDivisionError"),
        ("while x == 4: pass\n    return 2 * x", Ending.TIMEOUT, "too long"),
        ("import os\n    if x == 4: os._exit(0)\n    return 2 * x", Ending.CRASH, "ended"),
        ("import os\n    if x == 4: os.abort()\n    return 2 * x", Ending.CRASH, "signal"),
        ("y = [0] * (10**9 * (x == 4))\n    return 2 * x", Ending.MEMORY, "MemoryError"),
        ("return 2 * x if x < 4 else [0] * 10**8", Ending.MEMORY, "MemoryError"),
    ],
    ids=["wrong", "raises", "timeout", "exit", "signal", "memory", "huge value"],
)
def test_a_verdict_on_calls_tells_which_failed_and_how(box, body, ending, reason):
    verdict = box.grade(f"def double(x):\n    {body}\n", DOUBLE, test_timeout_s=2.0)
    assert verdict.ending is ending, verdict
    assert reason in verdict.reason
    assert (verdict.failed_test, verdict.passed) == (1, 1)


def test_partial_credit_is_the_share_of_tests_passed(box):
    zeros = ScriptTests(tuple(ScriptCase(str(number), "0") for number in range(4)))
    verdict = box.grade("print(int(input()) % 2)", zeros, partial_credit=True)
    assert (verdict.passed, verdict.count, verdict.failed_test) == (2, 4, 1)
    result = verdict.to_result(partial_credit=True)
    assert (result.score, result.correct, result.failure) == (0.5, False, None)
    assert verdict.to_result(partial_credit=False).score == 0.0


def test_partial_credit_of_assertions_goes_on_after_a_failure(box):
    tests = read_tests("\n".join(f"assert double({number}) == {2 * number}" for number in range(4)))
    verdict = box.grade("def double(x): return 2 * x if x != 1 else 0", tests, partial_credit=True)
    assert (verdict.passed, verdict.count, verdict.failed_test) == (3, 4, 1)


def test_without_partial_credit_the_first_failure_is_the_last_test(box):
    slow = ScriptTests((ScriptCase("", "1"), *(ScriptCase("", "2") for _ in range(500))))
    assert box.grade("print(2)", slow).failed_test == 0  # five hundred runs more would show


def test_the_total_time_ends_the_tests(box):
    tests = ScriptTests(tuple(ScriptCase("", "1") for _ in range(50)))
    program = "import time; time.sleep(0.2); print(1)"
    for partial_credit in (False, True):
        verdict = box.grade(program, tests, total_timeout_s=0.5, partial_credit=partial_credit)
        assert verdict.ending is Ending.TIMEOUT
        assert verdict.failed_test < 5


def test_tests_that_never_end_are_ended(box):
    tests = read_tests("while True: pass\nassert double(1) == 2")
    assert box.grade(FUNCTION, tests, total_timeout_s=0.5).ending is Ending.TIMEOUT


def test_a_result_carries_counters_for_metrics(box):
    extra = box.grade("import time; time.sleep(60)", SUM, test_timeout_s=0.2).to_result(False).extra
    assert extra["code_timeout"] == 1.0
    assert extra["code_passed"] == extra["code_memory"] == extra["code_crash"] == extra["code_wrong"] == 0.0
    assert (extra["code_tests"], extra["code_tests_passed"], extra["code_failed_test"]) == (3.0, 0.0, 0.0)
    assert no_program(SUM).to_result(False).extra["code_no_program"] == 1.0
    passed = box.grade("print(sum(map(int, input().split())))", SUM).to_result(False).extra
    assert passed["code_failed_test"] == 3.0
    assert passed.keys() == extra.keys() == no_program(SUM).to_result(False).extra.keys()


@pytest.mark.parametrize(
    "source",
    [
        "import math\nassert math.isclose(f(2), 1.4142135623730951)",
        "assert isinstance(f(4), float)",
        "for x in range(5):\n    assert f(x) ** 2 == x or abs(f(x) ** 2 - x) < 1e-9",
        "def check(candidate):\n    assert candidate(4) == 2\ncheck(f)",
        "try:\n    f('a')\n    assert False, 'should raise'\nexcept TypeError:\n    pass",
        "queue = Queue()\nqueue.push(3)\nqueue.push(4)\nassert queue.pop() == 3\nassert queue.size == 1",
        "assert list(numbers(3)) == [0, 1, 2]\nassert [x for x in numbers(2)] == [0, 1]",
        "node = Node(1)\nnode.next = Node(2)\nassert total(node) == 3\nassert node.next.value == 2",
        "assert LIMIT == 7 and POINT == (1, 2)",
        "assert sorted(f(x) for x in [9, 4]) == [2, 3]",
        "assert counts('aab') == {'a': 2, 'b': 1}\nassert unique([1, 1]) == {1}",
    ],
)
def test_tests_can_use_all_that_a_program_defines(box, source):
    program = """
        def f(x): return sqrt(x)
        LIMIT, POINT = 7, (1, 2)
        class Queue:
            def __init__(self): self.items, self.size = [], 0
            def push(self, item): self.items.append(item); self.size += 1
            def pop(self): self.size -= 1; return self.items.pop(0)
        def numbers(n): yield from range(n)
        class Node:
            def __init__(self, value): self.value, self.next = value, None
        def total(node): return node.value + (total(node.next) if node.next else 0)
        def counts(text): return Counter(text)
        def unique(items): return set(items)
    """
    verdict = box.grade(program, read_tests(source))
    assert verdict.ending is Ending.PASSED, verdict


def test_tests_that_never_call_the_program_pass_nobody(box):
    tests = read_tests("def check(candidate):\n    assert candidate(1) == 2\n")
    verdict = box.grade(FUNCTION, tests)
    assert (verdict.ending, verdict.reason) == (Ending.WRONG, "no test was run")


def test_random_inputs_of_tests_are_the_same_for_every_response(box):
    tests = read_tests("import random\nassert seen(random.random()) == 0")
    program = "def seen(x): return x"
    assert box.grade(program, tests).reason == box.grade(program, tests).reason


FORGERIES = {
    "leaves at once": "import sys; sys.exit(0)",
    "leaves hard": "import os; os._exit(0)",
    "leaves in the call": "import os\ndef double(x): os._exit(0)",
    "leaves at exit": "import atexit, os\natexit.register(os._exit, 0)\ndef double(x): raise SystemExit(0)",
    "equals everything": """
        class Any:
            def __eq__(self, other): return True
            def __ne__(self, other): return False
            def __hash__(self): return 0
        def double(x): return Any()
    """,
    "a number that equals everything": """
        class Any(int):
            def __eq__(self, other): return True
            def __ne__(self, other): return False
            __hash__ = int.__hash__
        def double(x): return Any(5)
    """,
    "a list that equals everything": """
        class Any(list):
            def __eq__(self, other): return True
        def double(x): return Any()
    """,
    "replaces builtins": """
        import builtins, math
        builtins.AssertionError = ValueError
        builtins.all = builtins.any = lambda *a, **k: True
        builtins.isinstance = lambda *a: True
        def double(x): return 0
    """,
    "replaces the check": """
        def check(candidate): pass
        def double(x): return 0
    """,
    "prints a report": """
        import json, os
        report = json.dumps({"outcomes": [True] * 9, "reason": None, "end": None})
        print(report, flush=True)
        for descriptor in (1, 2, 3):
            try: os.write(descriptor, report.encode())
            except OSError: pass
        def double(x):
            print(report, flush=True)
            os._exit(0)
    """,
    "answers for the tests": """
        import json, os, struct
        def double(x):
            for answer in ({"value": True}, {"value": {"object": 0}}, {"outcomes": [True]}):
                data = json.dumps(answer).encode()
                os.write(3, struct.pack("!I", len(data)) + data)
            return 0
    """,
    "sends garbage": "import os\ndef double(x): os.write(3, b'\\xff' * 1000); return 8",
    "sends a bomb": """
        import os, struct
        def double(x):
            data = b"[" * (10**6)
            os.write(3, struct.pack("!I", len(data)))
            while data: data = data[os.write(3, data):]
            return 8
    """,
    "searches its memory": """
        import gc, sys
        def double(x):
            frame = sys._getframe()
            while frame:
                for name, value in frame.f_locals.items():
                    if name in ("expected", "cases", "tests"): return value
                frame = frame.f_back
            for thing in gc.get_objects():
                if isinstance(thing, dict) and ("expected" in thing or "cases" in thing): return thing
            return 0
    """,
    "searches files": """
        import glob
        def double(x):
            for path in glob.glob("/**/*test*", recursive=True)[:1000] + ["/proc/self/environ"]:
                try: text = open(path).read()
                except (OSError, UnicodeDecodeError): continue
                if "double" in text: return 8
            return 0
    """,
    "raises what tests catch": "def double(x): raise AssertionError",
    "raises to stop": "def double(x): raise StopIteration",
    "raises to exit": "def double(x): raise KeyboardInterrupt",
    "returns itself": "def double(x): return double",
    "returns a lazy value": "def double(x): return (y for y in [8])",
    "never answers": "import time\ndef double(x): time.sleep(60)",
    "syntax": "def double(x) return 8",
    "other name": "def triple(x): return 8",
    "no code": "double = 8",
}


@pytest.mark.parametrize("program", FORGERIES.values(), ids=FORGERIES)
@pytest.mark.parametrize("tests", [DOUBLE, HUMANEVAL, ASSERTS], ids=["calls", "humaneval", "asserts"])
def test_no_trick_passes_a_test(box, tests, program):
    verdict = box.grade(program, tests, test_timeout_s=1.0)
    assert verdict.ending is not Ending.PASSED
    assert verdict.passed == 0
    assert box.grade(FUNCTION, tests).ending is Ending.PASSED  # and the next program is judged as ever


@pytest.mark.parametrize("name", ["leaves at once", "leaves hard", "prints a report", "replaces builtins"])
def test_no_trick_passes_a_script_test(box, name):
    assert box.grade(textwrap.dedent(FORGERIES[name]), SUM).ending is not Ending.PASSED


def test_code_inside_tests_cannot_reach_the_host_either(box, tmp_path):
    target = tmp_path / "hostile"
    tests = read_tests(f"open({str(target)!r}, 'w')\nassert double(1) == 2")
    assert box.grade(FUNCTION, tests).ending is Ending.WRONG
    assert not target.exists()
