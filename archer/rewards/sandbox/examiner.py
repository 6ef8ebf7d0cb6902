"""The process that examines a program: it holds the tests and never runs the program's code.

The program lives in another sandbox. Here are its tests (a data set's code, hence a sandbox as well) and
stand-ins of what it defines. Only values come back, so nothing the program does can pass a test but the value
that the test expects. Names that tests use come from the prelude and from the tests; from the program come
only those under test (testcode.py).
"""

import ast
import builtins
import json
import os
import random
import socket
from functools import partial
from typing import Any

from archer.rewards.sandbox import prelude
from archer.rewards.sandbox.agreement import values_agree
from archer.rewards.sandbox.remote import Subject
from archer.rewards.sandbox.subject import (
    TESTS_MODULE,
    ProgramEndedError,
    ProgramLink,
    ProgramTimeoutError,
)
from archer.rewards.sandbox.testcode import TestCode, has_result, read_test_code

_CHANNEL = 3
_RECORDER = "__archer_cases__"
_ORIGINAL = "__archer_original__"
_SAME = "__archer_same__"
_OFFER = "__archer_offer__"
_MAX_REASON_CHARS = 300
_ANY_KIND = ("Exception", "BaseException")


class _EnoughError(BaseException):
    """A test failed, and the others need not be run."""


class Cases:
    """What became of the tests so far."""

    def __init__(self, stop_early: bool) -> None:
        self.outcomes: list[bool] = []
        self.reason: str | None = None
        self.expects_errors = False  # whether an error of the program, too, may be what tests want
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
    prelude.compare_nodes_by_value()
    cases = Cases(task["stop_early"])
    program = ProgramLink(socket.socket(fileno=_CHANNEL), task["timeout_s"])
    end = None
    try:
        if task["kind"] == "asserts":
            _run_asserts(task, program, cases)
        else:
            _run_calls(task, program, cases)
        if program.end is not None:  # a test caught it
            raise program.end
    except _EnoughError:
        pass
    except ProgramTimeoutError:
        end, cases.reason = "timeout", cases.reason or "a call took too long"
    except ProgramEndedError as error:
        end, cases.reason = "ended", cases.reason or str(error)
    except BaseException as error:  # outside of any assertion: what follows it was not run
        end, cases.reason = "wrong", cases.reason or f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARS]
    findings = {
        "outcomes": cases.outcomes,
        "reason": cases.reason,
        "end": end,
        "expected_error": cases.expects_errors and program.calls > 0,
    }
    os.write(report, json.dumps(findings).encode())
    os._exit(0)


def _run_calls(task: dict[str, Any], program: ProgramLink, cases: Cases) -> None:
    for arguments, expected in task["cases"]:
        try:
            value = _callable(program, task["function"])(*arguments)
        except Exception as error:
            cases.raised(error)
            continue
        if value is None and expected is not None and arguments:
            value = arguments[0]  # a function that changes its argument in place and returns nothing
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


def _callable(program: ProgramLink, function: str) -> Any:
    """Return the function, or the method of a new `Solution()` as LeetCode has it."""
    try:
        return getattr(program.name("Solution")(), function)
    except NameError:
        return program.name(function)


def _run_asserts(task: dict[str, Any], program: ProgramLink, cases: Cases) -> None:
    entry_point = task["entry_point"]
    code = read_test_code(task["source"], task["setup"], entry_point)
    program.objects, program.compares = code.objects, code.compares
    cases.expects_errors = _catches_one_kind(code.tree)
    program.arrays = "numpy" in task["source"] or "numpy" in task["setup"]
    names: dict[str, Any] = {
        **prelude.FOR_TESTS,
        "__name__": TESTS_MODULE,
        _RECORDER: cases,
        _ORIGINAL: program.original,
        _SAME: _same,
        _OFFER: program.offer,
    }
    for name in code.entries:
        found = program.find(name)
        if found is not None:
            names[name] = found[0]
        elif hasattr(builtins, name):  # neither a builtin nor the library's stands in for what is tested
            names[name] = partial(_missing, name)
        elif name != "Node":
            names.pop(name, None)
    if _only_calls(code.tree, "type"):
        names["type"] = program.type_of
    entry = names.get(entry_point) if entry_point is not None else None
    exec(compile(task["setup"], "setup", "exec"), names)
    program.share_classes(names)
    if entry_point is not None:
        # A function of the prompt is not the answer; a builtin stays what it is inside `check`.
        names.pop(entry_point, None)
        if entry is not None and not hasattr(builtins, entry_point):
            names[entry_point] = entry
    tests = _Recording(code).visit(code.tree)
    exec(compile(ast.fix_missing_locations(tests), "tests", "exec"), names)
    if entry_point is not None and "check" in names:
        names["check"](program.name(entry_point))


def _missing(name: str, *_: Any, **__: Any) -> None:
    raise NameError(f"name {name!r} is not defined by the program")


def _catches_one_kind(tree: ast.Module) -> bool:
    """Tell whether tests catch an exception that they name, and not just any."""
    kinds = [each.type for each in ast.walk(tree) if isinstance(each, ast.ExceptHandler)]
    return any(not isinstance(kind, ast.Name) or kind.id not in _ANY_KIND for kind in kinds if kind)


def _only_calls(tree: ast.Module, name: str) -> bool:
    """Tell whether tests call this and do nothing else with it."""
    nodes = list(ast.walk(tree))
    called = {id(each.func) for each in nodes if isinstance(each, ast.Call)}
    return all(id(each) in called for each in nodes if isinstance(each, ast.Name) and each.id == name)


def _same(one: Any, other: Any) -> bool:
    """Do what `is` does, for objects of the program as well."""
    if isinstance(one, Subject) and isinstance(other, Subject):
        return one._archer_number == other._archer_number
    return one is other


class _Recording(ast.NodeTransformer):
    """Makes every assertion a test of its own, noted and passed over instead of ending the others."""

    def __init__(self, code: TestCode) -> None:
        self._code = code

    def visit_Module(self, node: ast.Module) -> ast.AST:
        """Offer the program what is there for it, as soon as it is defined."""
        for each in [each for each in node.body if getattr(each, "name", None) in self._code.offers]:
            name = each.name  # type: ignore[attr-defined]
            given: list[ast.expr] = [ast.Constant(name), ast.Name(name, ast.Load())]
            call = ast.Call(ast.Name(_OFFER, ast.Load()), given, [])
            node.body.insert(node.body.index(each) + 1, ast.Expr(call))
        self.generic_visit(node)
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        if isinstance(node.test, ast.Constant) and node.test.value:
            return ast.Pass()  # says nothing about the program
        self.generic_visit(node)
        caught = ast.Name("__archer_error__", ast.Load())
        return ast.Try(
            body=[node],
            handlers=[
                ast.ExceptHandler(ast.Name("Exception", ast.Load()), caught.id, [_note("raised", caught)])
            ],
            orelse=[_note("passed")],
            finalbody=[],
        )

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Have expected values made of arguments as they were before the program changed them."""
        sides = [node.left, *node.comparators]
        from_program = [has_result(side, self._code.results, self._code.objects) for side in sides]
        identity = isinstance(node.ops[0], ast.Is | ast.IsNot)
        if any(from_program) and not identity:
            before = _AsBefore(self._code.arguments)
            sides = [
                side if result else before.visit(side)
                for side, result in zip(sides, from_program, strict=True)
            ]
        node.left, *node.comparators = sides
        self.generic_visit(node)
        if len(node.ops) == 1 and identity:
            same = ast.Call(ast.Name(_SAME, ast.Load()), [node.left, *node.comparators], [])
            return same if isinstance(node.ops[0], ast.Is) else ast.UnaryOp(ast.Not(), same)
        return node


class _AsBefore(ast.NodeTransformer):
    """Replaces variables that the program was given by what they held before."""

    def __init__(self, arguments: frozenset[str]) -> None:
        self._arguments = arguments

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self._arguments or not isinstance(node.ctx, ast.Load):
            return node
        return ast.Call(ast.Name(_ORIGINAL, ast.Load()), [node], [])


def _note(method: str, *arguments: ast.expr) -> ast.Expr:
    recorder = ast.Attribute(ast.Name(_RECORDER, ast.Load()), method, ast.Load())
    return ast.Expr(ast.Call(recorder, list(arguments), []))
