"""The process that examines a program: it holds the tests and never runs the program's code.

The program lives in another sandbox. Here are its tests (a data set's code, hence a sandbox as well) and
proxies of what it defines. Only values come back, so nothing the program does can pass a test but the value
that the test expects.
"""

import ast
import builtins
import json
import os
import random
import socket
from typing import Any

from archer.rewards.code.inside import remote
from archer.rewards.code.inside.agreement import values_agree

_CHANNEL = 3
_RECORDER = "__archer_cases__"
_MAX_REASON_CHARS = 300


class _EnoughError(BaseException):
    """A test failed, and the others need not be run."""


class Cases:
    """What became of the tests so far."""

    def __init__(self, stop_early: bool) -> None:
        self.outcomes: list[bool] = []
        self.reason: str | None = None
        self._stop_early = stop_early

    def passed(self) -> None:
        """Note a test that passed."""
        self.outcomes.append(True)

    def failed(self, reason: str) -> None:
        """Note a test that did not; with `stop_early` it was the last."""
        self.outcomes.append(False)
        self.reason = self.reason or reason[:_MAX_REASON_CHARS]
        if self._stop_early:
            raise _EnoughError

    def raised(self, error: Exception) -> None:
        """Note a test that raised."""
        kind = type(error).__name__
        text = str(error)
        self.failed(
            "an assertion does not hold" if kind == "AssertionError" and not text else f"{kind}: {text}"
        )


def examine(job: bytes) -> None:
    """Run the tests on the program at the other end of the channel, and write a report to standard output."""
    task = json.loads(job)
    report = os.dup(1)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)  # what tests print is not the report
    random.seed(0)  # tests that draw their inputs draw the same for every response
    cases = Cases(task["stop_early"])
    program = remote.RemoteProgram(socket.socket(fileno=_CHANNEL), task["timeout_s"])
    end = None
    try:
        if task["kind"] == "asserts":
            _run_asserts(task, program, cases)
        else:
            _run_calls(task, program, cases)
    except _EnoughError:
        pass
    except remote.ProgramTimeoutError:
        end, cases.reason = "timeout", cases.reason or "a call took too long"
    except remote.ProgramEndedError as error:
        end, cases.reason = "ended", cases.reason or str(error)
    except Exception as error:  # outside of any assertion: what follows it was not run
        end, cases.reason = "wrong", cases.reason or f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARS]
    findings = {"outcomes": cases.outcomes, "reason": cases.reason, "end": end, "calls": program.calls}
    os.write(report, json.dumps(findings).encode())
    os._exit(0)


def _run_calls(task: dict[str, Any], program: remote.RemoteProgram, cases: Cases) -> None:
    for arguments, expected in task["cases"]:
        try:
            value = _callable(program, task["function"])(*arguments)
        except Exception as error:
            cases.raised(error)
            continue
        alternatives = [expected, expected[0]] if task["unwrap"] else [expected]
        if any(values_agree(value, alternative) for alternative in alternatives):
            cases.passed()
        else:
            cases.failed(f"expected {_shown(expected)}, got {_shown(value)}")


def _shown(value: Any) -> str:
    try:
        return repr(value)[:100]
    except Exception:  # an integer of more digits than Python prints, or a list too deep
        return f"a {type(value).__name__}"


def _callable(program: remote.RemoteProgram, function: str) -> Any:
    """Return the function, or the method of a new `Solution()` as LeetCode has it."""
    try:
        return getattr(program.name("Solution")(), function)
    except NameError:
        return program.name(function)


def _run_asserts(task: dict[str, Any], program: remote.RemoteProgram, cases: Cases) -> None:
    tests = ast.parse(task["source"])
    names: dict[str, Any] = {"__name__": "tests", _RECORDER: cases}
    exec(compile(task["setup"], "setup", "exec"), names)
    entry_point = task["entry_point"]
    for name in _free_names(tests) - set(names):
        try:
            names[name] = program.name(name)
        except NameError:
            continue  # the tests may define it, or will fail for want of it
    if entry_point is not None:
        names[entry_point] = program.name(entry_point)
    exec(compile(ast.fix_missing_locations(_Recording().visit(tests)), "tests", "exec"), names)
    if entry_point is not None and "check" in names:
        names["check"](names[entry_point])


def _free_names(tests: ast.Module) -> set[str]:
    """Return the names that tests use and that are neither builtin nor assigned anywhere in them."""
    used: set[str] = set()
    defined = set(dir(builtins))
    for node in ast.walk(tests):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else defined).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.alias):
            defined.add((node.asname or node.name).partition(".")[0])
    return used - defined


class _Recording(ast.NodeTransformer):
    """Makes every assertion a test of its own, noted and passed over instead of ending the others."""

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        if isinstance(node.test, ast.Constant) and node.test.value:
            return ast.Pass()  # says nothing about the program
        caught = ast.Name("__archer_error__", ast.Load())
        return ast.Try(
            body=[node],
            handlers=[
                ast.ExceptHandler(ast.Name("Exception", ast.Load()), caught.id, [_note("raised", caught)])
            ],
            orelse=[_note("passed")],
            finalbody=[],
        )


def _note(method: str, *arguments: ast.expr) -> ast.Expr:
    recorder = ast.Attribute(ast.Name(_RECORDER, ast.Load()), method, ast.Load())
    return ast.Expr(ast.Call(recorder, list(arguments), []))
