"""Running a program: as a script on its standard input, or as definitions that an examiner calls."""

import atexit
import builtins
import importlib
import itertools
import json
import os
import site
import socket
import sys
import threading
import traceback
from types import ModuleType
from typing import Any

from archer.rewards.sandbox import values

_CHANNEL = 3
_MAX_ITEMS = 1_000_000
# What online judges have ready for a solution: modules imported, and the names of many of them defined.
_OPEN_MODULES = (
    "bisect collections copy dataclasses datetime decimal fractions functools heapq itertools math operator "
    "random statistics string typing"
)
_CLOSED_MODULES = "abc array cmath enum io json os re sys time"


def _prelude() -> dict[str, Any]:
    modules = {name: importlib.import_module(name) for name in f"{_OPEN_MODULES} {_CLOSED_MODULES}".split()}
    names: dict[str, Any] = {}
    for module in (modules[name] for name in _OPEN_MODULES.split()):
        public = getattr(module, "__all__", None) or [name for name in vars(module) if name[0] != "_"]
        for name in public:
            if not hasattr(builtins, name):  # math.pow is no replacement for pow
                names.setdefault(name, getattr(module, name))
    return {**names, **modules}


site.setquit()  # exit() and quit(), which an interpreter without `site` lacks
_PRELUDE = _prelude()


def _fresh_module(name: str) -> ModuleType:
    for descriptor, stream in enumerate(("stdin", "stdout", "stderr")):
        mode, errors = ("r", "strict") if descriptor == 0 else ("w", "backslashreplace")
        buffering = 1 if stream == "stderr" else -1
        file = open(descriptor, mode, buffering, "utf-8", errors, closefd=False)  # noqa: SIM115
        setattr(sys, stream, file)
        setattr(sys, f"__{stream}__", file)
    sys.argv = ["program.py"]
    module = ModuleType(name)
    vars(module).update(_PRELUDE)
    sys.modules[name] = module
    return module


def run_script(job: bytes) -> None:
    """Run the program as `python program.py` would, and end this process with its exit code."""
    module = _fresh_module("__main__")
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
    module = _fresh_module("solution")
    task = json.loads(job)
    objects: list[Any] = []  # what stays in this process and is known to the examiner by number

    def refer(value: Any) -> int:
        objects.append(value)
        return len(objects) - 1

    failure: BaseException | None = None
    try:
        for part in (task["setup"], task["source"]):
            exec(compile(part, "program.py", "exec", dont_inherit=True), vars(module))
    except BaseException as error:  # also SystemExit: an examiner is waiting for an answer
        traceback.print_exc()
        failure = error
    while True:
        try:
            request = values.receive(channel)
        except EOFError:
            os._exit(0)
        try:
            if failure is not None:
                raise failure
            value = _perform(request, vars(module), objects)
            values.send(channel, {"value": values.encode(value, refer)})
        except BaseException as error:
            values.send(channel, {"error": [type(error).__name__, str(error)[:500]]})


def _perform(request: dict[str, Any], names: dict[str, Any], objects: list[Any]) -> Any:
    if request["do"] == "name":
        if request["name"] not in names:
            raise NameError(f"name {request['name']!r} is not defined")
        return names[request["name"]]
    target = objects[request["object"]]
    content = values.decode(request.get("content"), objects.__getitem__)
    match request["do"]:
        case "get":
            return getattr(target, request["name"])
        case "set":
            return setattr(target, request["name"], content)
        case "call":
            positional, named = content
            return target(*positional, **named)
        case "items":
            return list(itertools.islice(target, _MAX_ITEMS))
    raise ValueError(request["do"])
