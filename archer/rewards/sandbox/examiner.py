"""The process that examines a program: it holds the tests and never runs the program's code.

The program lives in another sandbox. Here are its tests (a data set's code, hence a sandbox as well) and
proxies of what it defines. Only values come back, so nothing the program does can pass a test but the value
that the test expects.
"""

import ast
import builtins
import contextlib
import json
import os
import random
import socket
from collections.abc import Iterator
from typing import Any

from archer.rewards.sandbox import values
from archer.rewards.sandbox.values import values_agree

_CHANNEL = 3
_RECORDER = "__archer_cases__"
_MAX_REASON_CHARS = 300


class ProgramTimeoutError(BaseException):
    """The program took too long. No test's `except Exception` catches it."""


class ProgramEndedError(BaseException):
    """The program is gone, or says what no program says. No test's `except Exception` catches it."""


class ProgramError(Exception):
    """The program raised an exception of a kind of its own."""


class RemoteProgram:
    """Requests to a program, one at a time, each within `timeout_s`."""

    def __init__(self, channel: socket.socket, timeout_s: float) -> None:
        self._channel = channel
        self._timeout_s = timeout_s
        self.calls = 0

    def name(self, name: str) -> Any:
        """Return what the program calls `name`; NameError if nothing."""
        return self.ask({"do": "name", "name": name})

    def ask(self, request: dict[str, Any]) -> Any:
        """Make a request and return the program's answer as a value, or raise what it raised."""
        self.calls += request["do"] == "call"
        try:
            self._channel.settimeout(self._timeout_s)
            values.send(self._channel, request)
            reply = values.receive(self._channel, self._timeout_s)
            if set(reply) == {"value"}:
                return values.decode(reply["value"], lambda number: RemoteObject(self, number))
            name, message = map(str, reply["error"])
        except TimeoutError:
            raise ProgramTimeoutError from None
        except (EOFError, OSError):
            raise ProgramEndedError("it ended during a call") from None
        except Exception as error:
            raise ProgramEndedError(f"it sent what is no value: {type(error).__name__}") from None
        raise _exception(name, message)


def _exception(name: str, message: str) -> Exception:
    """Return the builtin exception of this name, so that tests can catch what they expect."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):  # it wants other arguments, as UnicodeDecodeError does
            return kind(message)
    return ProgramError(f"{name}: {message}")


class RemoteObject:
    """An object of the program: can be called, iterated over, asked for attributes, and equals nothing."""

    __slots__ = ("_archer_number", "_archer_program")

    def __init__(self, program: RemoteProgram, number: int) -> None:
        object.__setattr__(self, "_archer_program", program)
        object.__setattr__(self, "_archer_number", number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # for copy, pickle and their like, which would ask for more
            raise AttributeError(name)
        return self._archer_program.ask({"do": "get", "object": self._archer_number, "name": name})

    def __setattr__(self, name: str, value: Any) -> None:
        content = values.encode(value, _number)
        self._archer_program.ask(
            {"do": "set", "object": self._archer_number, "name": name, "content": content}
        )

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """Have the program call it."""
        content = values.encode([list(positional), named], _number)
        return self._archer_program.ask({"do": "call", "object": self._archer_number, "content": content})

    def __iter__(self) -> Iterator[Any]:
        return iter(self._archer_program.ask({"do": "items", "object": self._archer_number}))


def _number(value: Any) -> int:
    if not isinstance(value, RemoteObject):
        raise TypeError(f"a test gives the program a {type(value).__name__}, which cannot be sent")
    return value._archer_number


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
    program = RemoteProgram(socket.socket(fileno=_CHANNEL), task["timeout_s"])
    end = None
    try:
        if task["kind"] == "asserts":
            _run_asserts(task, program, cases)
        else:
            _run_calls(task, program, cases)
    except _EnoughError:
        pass
    except ProgramTimeoutError:
        end, cases.reason = "timeout", cases.reason or "a call took too long"
    except ProgramEndedError as error:
        end, cases.reason = "ended", cases.reason or str(error)
    except Exception as error:  # outside of any assertion: what follows it was not run
        end, cases.reason = "wrong", cases.reason or f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARS]
    findings = {"outcomes": cases.outcomes, "reason": cases.reason, "end": end, "calls": program.calls}
    os.write(report, json.dumps(findings).encode())
    os._exit(0)


def _run_calls(task: dict[str, Any], program: RemoteProgram, cases: Cases) -> None:
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


def _callable(program: RemoteProgram, function: str) -> Any:
    """Return the function, or the method of a new `Solution()` as LeetCode has it."""
    try:
        return getattr(program.name("Solution")(), function)
    except NameError:
        return program.name(function)


def _run_asserts(task: dict[str, Any], program: RemoteProgram, cases: Cases) -> None:
    tests = ast.parse(task["source"])
    names: dict[str, Any] = {"__name__": "tests", _RECORDER: cases}
    exec(compile(task["setup"], "setup", "exec"), names)
    entry_point = task["entry_point"]
    for name in _free_names(tests) - set(names):
        try:
            names[name] = program.name(name)
        except NameError:
            continue  # the tests may define it, or will fail without it
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
