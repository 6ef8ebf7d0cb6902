"""Running a program: as a script on its standard input, or as definitions that an examiner calls."""

import ast
import atexit
import builtins
import json
import os
import site
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from types import CoroutineType, ModuleType
from typing import Any

from archer.rewards.sandbox import prelude
from archer.rewards.sandbox.link import Link
from archer.rewards.sandbox.remote import OPERATIONS, Loan, LoanedFunction
from archer.rewards.sandbox.values import Outgoing

_CHANNEL = 3
_MODULE = "solution"
_MAX_STATE_ROWS = 100

site.setquit()  # exit() and quit(), which an interpreter without `site` lacks


def _fresh_module(name: str) -> ModuleType:
    for descriptor, stream in enumerate(("stdin", "stdout", "stderr")):
        mode, errors = ("r", "strict") if descriptor == 0 else ("w", "backslashreplace")
        buffering = 1 if stream == "stderr" else -1
        file = open(descriptor, mode, buffering, "utf-8", errors, closefd=False)  # noqa: SIM115
        setattr(sys, stream, file)
        setattr(sys, f"__{stream}__", file)
    sys.argv = ["program.py"]
    module = ModuleType(name)
    sys.modules[name] = module
    return module


def run_script(job: bytes) -> None:
    """Run the program as `python program.py` would, and end this process with its exit code."""
    module = _fresh_module("__main__")
    vars(module).update(prelude.LIBRARY)
    printed = sys.stdout
    code = 0
    try:
        exec(compile(json.loads(job)["source"], "program.py", "exec", dont_inherit=True), vars(module))
    except SystemExit as stop:
        code = _exit_code(stop.code)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # wait for the program's threads, as Python does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, printed):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:  # the program may have put anything in its place
            code = code or 120  # as Python does when the last output cannot be written
    os._exit(code)


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def serve(job: bytes) -> None:
    """Define what the program defines, then answer the examiner's requests until it hangs up."""
    channel = socket.socket(fileno=_CHANNEL)
    module = _fresh_module(_MODULE)
    task = json.loads(job)
    # What judges have ready lies beneath, as builtins do: the module's names are the program's alone.
    ready: dict[str, Any] = {**vars(builtins), **prelude.FOR_PROGRAMS, "__name__": _MODULE}
    ready["__builtins__"] = ready
    vars(module)["__builtins__"] = ready
    _run_setup(task["setup"], ready)
    link = ExaminerLink(channel, vars(module), ready)
    try:
        exec(compile(task["source"], "program.py", "exec", dont_inherit=True), vars(module))
    except BaseException as error:  # also SystemExit: an examiner is waiting for an answer
        traceback.print_exc()
        link.failure = error
    while True:
        try:
            request = link.next_message()
        except EOFError:
            os._exit(0)
        link.serve(request)


def _run_setup(source: str, names: dict[str, Any]) -> None:
    """Run what tests and program build on, up to where it needs the program: the rest is for the tests."""
    for statement in ast.parse(source).body:
        try:
            exec(compile(ast.Module([statement], []), "setup", "exec", dont_inherit=True), names)
        except Exception:  # setup is code of the data set's, and may need the program
            traceback.print_exc()
            return


class ExaminerLink(Link):
    """The program's end: it does whatever the examiner asks, for that is what it is here for."""

    def __init__(self, channel: socket.socket, names: dict[str, Any], ready: dict[str, Any]) -> None:
        super().__init__(channel)
        self.failure: BaseException | None = None  # of the program's own code, told at every request
        self._names, self._ready = names, ready
        own = (name for name, each in ready.items() if getattr(each, "__module__", None) == _MODULE)
        self._shared = {*prelude.SHARED, *(name for name in own if isinstance(ready[name], type))}

    def perform(self, name: str, arguments: list[Any]) -> Any:
        """Do what a test asks for."""
        if name == "offer":
            self._ready.setdefault(*arguments)  # beneath the program's own names
            return None
        if self.failure is not None:
            raise self.failure
        if name == "name":
            if arguments[0] not in self._names or arguments[0].startswith("__"):
                raise NameError(f"name {arguments[0]!r} is not defined")
            return self._names[arguments[0]]
        if name == "state":
            return self._state(arguments[0])
        return OPERATIONS[name](*arguments)

    def combine(self, name: str, one: Any, other: Any) -> Any:
        """Have the test's object carry out an operator."""
        return self.ask(name, one, other)

    def stand_in(self, number: int, about: dict[str, Any]) -> Any:
        """Return a stand-in of an object of the test."""
        return (LoanedFunction if about["callable"] else Loan)(self, number, about)

    def class_name(self, value: Any) -> str | None:
        """Return the name of a class that the examiner has as well."""
        name = type(value).__name__
        if name == "Node" and type(value) is not prelude.Node:
            return None  # a program's own may be anything, with methods that are tested
        return name if name in self._shared else None

    def class_of(self, name: str) -> type:
        """Return the program's own class of this name, or the one it was given."""
        kind: Any = self._names.get(name)
        return kind if isinstance(kind, type) else self._ready[name]

    def raised(self, names: list[str], message: str) -> BaseException:
        """Return what a function of the test has raised."""
        kinds = (getattr(builtins, name, None) for name in names)
        kind = next(
            (each for each in kinds if isinstance(each, type) and issubclass(each, Exception)), Exception
        )
        return kind(message)

    def may_tell(self, error: BaseException) -> bool:
        """Tell the examiner of everything, even of an attempt to exit."""
        return True

    def describe(self, value: Any) -> dict[str, Any]:
        """Tell the examiner about an object: its class, and what it holds if it is the program's own."""
        kind = type(value)
        if isinstance(value, type) and issubclass(value, BaseException):
            return {"exception": [each.__name__ for each in value.__mro__]}
        about: dict[str, Any] = {"class": kind.__name__, "iterator": isinstance(value, Iterator)}
        if kind is CoroutineType:
            about["coroutine"] = True
        elif kind.__module__ == _MODULE and not isinstance(value, type):
            about["state"] = self._state(value)
        return about

    def _state(self, value: Any) -> Any:
        """Return what an object holds, as rows; None if that is much."""

        def refer(each: Any) -> Any:
            kind = type(each)
            if kind.__module__ == _MODULE and not isinstance(each, type):
                return ["state", kind.__name__, outgoing.attributes(each)]
            return ["opaque", getattr(each, "__qualname__", kind.__name__)]

        outgoing = Outgoing(refer, self.class_name, _MAX_STATE_ROWS)
        try:
            return [outgoing.add(value), outgoing.rows]
        except OverflowError:
            return None
