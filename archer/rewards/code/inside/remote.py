"""A program seen from its examiner: names and objects that live in another process."""

import builtins
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from archer.rewards.code.inside import wire


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
            wire.send(self._channel, request)
            reply = wire.receive(self._channel, self._timeout_s)
            if set(reply) == {"value"}:
                return wire.decode(reply["value"], lambda number: RemoteObject(self, number))
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
        content = wire.encode(value, _number)
        self._archer_program.ask(
            {"do": "set", "object": self._archer_number, "name": name, "content": content}
        )

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """Have the program call it."""
        content = wire.encode([list(positional), named], _number)
        return self._archer_program.ask({"do": "call", "object": self._archer_number, "content": content})

    def __iter__(self) -> Iterator[Any]:
        return iter(self._archer_program.ask({"do": "items", "object": self._archer_number}))


def _number(value: Any) -> int:
    if not isinstance(value, RemoteObject):
        raise TypeError(f"a test gives the program a {type(value).__name__}, which cannot be sent")
    return value._archer_number
