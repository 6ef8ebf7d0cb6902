"""Judging a program by its tests."""

import json
import math
import re
import socket
import time
from dataclasses import asdict, dataclass, replace
from enum import Enum

from archer.rewards.code import AssertTests, CallTests, ScriptTests, Tests
from archer.rewards.config import CodeConfig
from archer.rewards.rules import RewardResult
from archer.rewards.sandbox import RunOutcome, Sandbox
from archer.rewards.sandbox.agreement import numbers_agree

_INTEGER = re.compile(r"[+-]?[0-9]{1,400}")
_DECIMAL = re.compile(
    r"[+-]?(?:[0-9]{1,400}\.[0-9]{0,400}|\.[0-9]{1,400}|[0-9]{1,400}(?=[eE]))(?:[eE][+-]?[0-9]{1,4})?"
)


class Ending(Enum):
    """What became of a program: that of its first failed test."""

    PASSED = "passed"
    WRONG = "wrong"  # a wrong output or value, an exception in a call, or a name that it does not define
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT = "output"  # it printed more than it may
    CRASH = "crash"  # it ended with an error or by a signal
    NO_PROGRAM = "no_program"  # the response holds no program


@dataclass(frozen=True)
class CodeVerdict:
    """The judgement of a program."""

    ending: Ending
    passed: int  # tests that it passed, of those that were run
    count: int  # tests that there are
    failed_test: int | None = None  # which test failed first, from 0
    reason: str | None = None  # what was wrong with it, in a line

    def to_result(self, partial_credit: bool) -> RewardResult:
        """Return the reward: 1 for all tests passed, else 0 or, with partial credit, the share passed."""
        correct = self.ending is Ending.PASSED
        share = self.passed / self.count if partial_credit else 0.0
        extra = {"code_tests": float(self.count), "code_tests_passed": float(self.passed)}
        for ending in Ending:
            extra[f"code_{ending.value}"] = float(self.ending is ending)
        # Every result has every figure: engines make columns of them.
        extra["code_failed_test"] = float(self.count if correct else self.failed_test or 0)
        # A program's message as text that any file or terminal takes.
        detail = self.reason and " ".join(self.reason.encode(errors="replace").decode().split())
        return RewardResult(
            1.0 if correct else share,
            correct,
            extra,
            detail=detail,
            states_verdict=True,  # part of the tests is not right, whatever the score
            reason=self._why(detail),
        )

    def _why(self, detail: str | None) -> str:
        if self.ending is Ending.PASSED:
            return f"all {self.count} tests passed"
        if self.failed_test is None:
            return detail or self.ending.value
        return f"test {self.failed_test + 1} of {self.count} failed" + (f": {detail}" if detail else "")


def no_program(tests: Tests) -> CodeVerdict:
    """Return the verdict on a response without a program."""
    return CodeVerdict(Ending.NO_PROGRAM, 0, tests.count, reason="no closed block of Python in the answer")


def grade(program: str, tests: Tests, config: CodeConfig, sandbox: Sandbox) -> CodeVerdict:
    """Run the tests; without partial credit, up to the first that fails."""
    if isinstance(tests, ScriptTests):
        return _grade_script(program, tests, config, sandbox)
    return _grade_by_examiner(program, tests, config, sandbox)


def _grade_script(program: str, tests: ScriptTests, config: CodeConfig, sandbox: Sandbox) -> CodeVerdict:
    deadline = time.monotonic() + config.total_timeout_s
    verdict = CodeVerdict(Ending.PASSED, 0, tests.count)
    for index, case in enumerate(tests.cases):
        allowed = min(config.test_timeout_s, deadline - time.monotonic())
        ending, reason = Ending.TIMEOUT, "no time was left"
        if allowed > 0:
            outcome = sandbox.run_script(program, case.stdin, allowed)
            ending, reason = _judge_output(outcome, case.stdout)
        if ending is Ending.PASSED:
            verdict = replace(verdict, passed=verdict.passed + 1)
        elif verdict.ending is Ending.PASSED:
            verdict = replace(verdict, ending=ending, failed_test=index, reason=reason)
        if allowed <= 0 or (verdict.failed_test is not None and not config.partial_credit):
            break
    return verdict


def _judge_output(outcome: RunOutcome, expected: str) -> tuple[Ending, str]:
    trouble = _trouble(outcome)
    if trouble is not None:
        return trouble
    printed = outcome.stdout.decode(errors="replace")
    if outputs_agree(printed, expected):
        return Ending.PASSED, ""
    return Ending.WRONG, f"expected {expected.strip()!r:.100}, printed {printed.strip()!r:.100}"


def _trouble(outcome: RunOutcome) -> tuple[Ending, str] | None:
    """Return how a run went wrong, or None if it ended well."""
    report = outcome.report
    last_line = (outcome.stderr.strip().splitlines() or ["without a message"])[-1][:300]
    if report.timed_out:
        return Ending.TIMEOUT, "it took too long"
    if outcome.output_full:
        return Ending.OUTPUT, "it printed too much"
    if outcome.out_of_memory:
        return Ending.MEMORY, last_line
    if report.exit_code < 0:
        return Ending.CRASH, f"killed by signal {-report.exit_code}"
    if report.exit_code > 0:
        return Ending.CRASH, f"exit code {report.exit_code}: {last_line}"
    return None


def _grade_by_examiner(
    program: str, tests: CallTests | AssertTests, config: CodeConfig, sandbox: Sandbox
) -> CodeVerdict:
    """Have the program served by one run and examined by another, which alone knows the tests."""
    serve = {"source": program, "setup": tests.setup if isinstance(tests, AssertTests) else ""}
    total_s = config.total_timeout_s
    ours, theirs = socket.socketpair()
    with (
        ours,
        theirs,
        sandbox.start("serve", serve, total_s, channel=theirs.fileno()) as served,
        sandbox.start("examine", _examination(tests, config), total_s, channel=ours.fileno()) as examined,
    ):
        ours.close()
        theirs.close()
        examination = examined.finish()
        served.stop()
        outcome = served.finish()
    return _read_examination(examination, outcome, tests.count)


def _examination(tests: CallTests | AssertTests, config: CodeConfig) -> dict[str, object]:
    common = {"timeout_s": config.test_timeout_s, "stop_early": not config.partial_credit}
    if isinstance(tests, CallTests):
        cases = [json.loads(case) for case in tests.cases]
        return {**common, "kind": "calls", "function": tests.function, "cases": cases, "unwrap": tests.unwrap}
    return {**common, "kind": "asserts", **asdict(tests)}


def _read_examination(examination: RunOutcome, program: RunOutcome, count: int) -> CodeVerdict:
    if examination.report.timed_out:
        return CodeVerdict(Ending.TIMEOUT, 0, count, reason="the tests took too long in all")
    if examination.report.exit_code != 0 or not examination.stdout:
        return CodeVerdict(Ending.CRASH, 0, count, reason=f"the tests ended: {examination.stderr[-200:]}")
    report = json.loads(examination.stdout)
    outcomes: list[bool] = report["outcomes"]
    reason: str | None = report["reason"]
    count = max(count, len(outcomes))
    # A test that expects an exception may succeed without reaching any assertion.
    if report["end"] is None and all(outcomes) and (outcomes or report["expected_error"]):
        return CodeVerdict(Ending.PASSED, count, count)
    ending = Ending.TIMEOUT if report["end"] == "timeout" else Ending.WRONG
    if report["end"] == "ended":
        ending, reason = _trouble(program) or (Ending.CRASH, "it ended during the tests")
    elif ending is Ending.WRONG and (reason or "").startswith("MemoryError"):
        ending = Ending.MEMORY
    failed_test = outcomes.index(False) if False in outcomes else len(outcomes)
    return CodeVerdict(ending, sum(outcomes), count, failed_test, reason or "no test was run")


def outputs_agree(printed: str, expected: str) -> bool:
    """Compare line by line and word by word.

    White space counts only as what separates words and lines; empty lines at the ends do not count. Where a
    decimal fraction is expected, a number may differ by 1e-6 (relative above 1); where an integer is
    expected, `3.0` is as good as `3`.
    """
    if printed == expected:
        return True
    printed_lines, expected_lines = printed.strip().split("\n"), expected.strip().split("\n")
    return len(printed_lines) == len(expected_lines) and all(map(_lines_agree, printed_lines, expected_lines))


def _lines_agree(printed: str, expected: str) -> bool:
    printed_words, expected_words = printed.split(), expected.split()
    return len(printed_words) == len(expected_words) and all(map(_words_agree, printed_words, expected_words))


def _words_agree(printed: str, expected: str) -> bool:
    if printed == expected:
        return True
    if _INTEGER.fullmatch(expected):
        whole, point, fraction = printed.partition(".")
        return point == "." and whole == expected and not fraction.strip("0")
    if _DECIMAL.fullmatch(expected) and (_DECIMAL.fullmatch(printed) or _INTEGER.fullmatch(printed)):
        return math.isfinite(float(expected)) and numbers_agree(float(printed), float(expected))
    return False
