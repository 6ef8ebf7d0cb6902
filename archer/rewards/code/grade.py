"""Judging a program by its tests."""

import json
import socket
import time
from dataclasses import dataclass
from enum import Enum

from archer.rewards.code.config import CodeConfig
from archer.rewards.code.output import outputs_agree
from archer.rewards.code.problem import AssertTests, CallTests, ScriptTests, Tests
from archer.rewards.code.sandbox import RunOutcome, Sandbox
from archer.rewards.types import RewardResult


class Ending(Enum):
    """What became of a program: that of its first failed test."""

    PASSED = "passed"
    WRONG = "wrong"
    """A wrong output or value, an exception in a call, or a name that it does not define."""
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT = "output"
    """It printed more than it may."""
    CRASH = "crash"
    """It ended with an error or by a signal."""
    NO_PROGRAM = "no_program"
    """The response holds no program."""


@dataclass(frozen=True)
class CodeVerdict:
    """The judgement of a program."""

    ending: Ending
    passed: int
    """Tests that it passed, of those that were run."""
    count: int
    """Tests that there are."""
    failed_test: int | None = None
    """Which test failed first, from 0."""
    reason: str | None = None
    """What was wrong with it, in a line."""

    def to_result(self, partial_credit: bool) -> RewardResult:
        """Return the reward: 1 for all tests passed, else 0 or, with partial credit, the share passed."""
        correct = self.ending is Ending.PASSED
        share = self.passed / self.count if partial_credit else 0.0
        extra = {"code_tests": float(self.count), "code_tests_passed": float(self.passed)}
        for ending in Ending:
            extra[f"code_{ending.value}"] = float(self.ending is ending)
        # Every result has every figure: engines make columns of them.
        extra["code_failed_test"] = float(self.count if correct else self.failed_test or 0)
        return RewardResult(1.0 if correct else share, correct, extra, detail=_one_line(self.reason))


def _one_line(text: str | None) -> str | None:
    """Return a program's message as text that any file or terminal takes."""
    if text is None:
        return None
    return " ".join(text.encode(errors="replace").decode().split())


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
    passed, first = 0, CodeVerdict(Ending.PASSED, 0, tests.count)
    for index, case in enumerate(tests.cases):
        allowed = min(config.test_timeout_s, deadline - time.monotonic())
        ending, reason = Ending.TIMEOUT, "no time was left"
        if allowed > 0:
            outcome = sandbox.run_script(program, case.stdin, allowed)
            ending, reason = _judge_output(outcome, case.stdout)
        passed += ending is Ending.PASSED
        if ending is not Ending.PASSED and first.ending is Ending.PASSED:
            first = CodeVerdict(ending, 0, tests.count, failed_test=index, reason=reason)
            if not config.partial_credit:
                break
        if allowed <= 0:
            break
    return CodeVerdict(first.ending, passed, tests.count, first.failed_test, first.reason)


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
    setup = tests.setup if isinstance(tests, AssertTests) else ""
    serve = {"source": program, "setup": setup}
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
    return {
        **common,
        "kind": "asserts",
        "source": tests.source,
        "setup": tests.setup,
        "entry_point": tests.entry_point,
    }


def _read_examination(examination: RunOutcome, program: RunOutcome, count: int) -> CodeVerdict:
    if examination.report.timed_out:
        return CodeVerdict(Ending.TIMEOUT, 0, count, reason="the tests took too long in all")
    if examination.report.exit_code != 0 or not examination.stdout:
        return CodeVerdict(Ending.CRASH, 0, count, reason=f"the tests ended: {examination.stderr[-200:]}")
    report = json.loads(examination.stdout)
    outcomes: list[bool] = report["outcomes"]
    reason: str | None = report["reason"]
    count = max(count, len(outcomes))
    # A test that expects an exception may succeed without reaching any assertion, but never without a call.
    if report["end"] is None and all(outcomes) and (outcomes or report["calls"]):
        return CodeVerdict(Ending.PASSED, count, count)
    ending = Ending.WRONG
    if report["end"] == "timeout":
        ending = Ending.TIMEOUT
    elif report["end"] == "ended":
        ending, reason = _trouble(program) or (Ending.CRASH, "it ended during the tests")
    elif reason is not None and reason.startswith("MemoryError"):
        ending = Ending.MEMORY
    failed_test = outcomes.index(False) if False in outcomes else len(outcomes)
    return CodeVerdict(ending, sum(outcomes), count, failed_test, reason or "no test was run")
