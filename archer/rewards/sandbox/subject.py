"""The examiner's end of the link: what tests see of the program, and what it may ask of them."""

import builtins
import contextlib
import copy
import functools
import socket
from collections import deque
from collections.abc import Iterator
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import Any

from archer.rewards.sandbox import prelude
from archer.rewards.sandbox.link import Link, receive
from archer.rewards.sandbox.remote import OPERATIONS, Remote, Subject
from archer.rewards.sandbox.values import Incoming, Outgoing

_NEVER_LENT = (ModuleType, FrameType, CodeType, TracebackType, Link)
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, functools.partial)
TESTS_MODULE = "__main__"  # as whom tests run, so that a guard for scripts lets them
_COMPARISONS = ("lt", "le", "gt", "ge")
_ATTRIBUTES = ("getattr", "setattr", "delattr")
_PLAIN_CONTAINERS = (list, dict, set, deque, bytearray)


class ProgramTimeoutError(BaseException):
    """The program took too long. No test's `except Exception` catches it."""


class ProgramEndedError(BaseException):
    """The program is gone, or says what no program says. No test's `except Exception` catches it."""


class ProgramError(Exception):
    """The program raised an exception of a kind of its own."""


class ProgramLink(Link):
    """Requests to a program, one at a time, each within `timeout_s`."""

    arrays = False

    def __init__(self, channel: socket.socket, timeout_s: float) -> None:
        super().__init__(channel)
        self._timeout_s = timeout_s
        self.calls = 0
        self.end: BaseException | None = None  # once the program has ended or stopped answering
        self.objects: frozenset[str] = frozenset()  # classes whose objects are what is tested
        self.compares = False  # whether tests compare such objects
        self._classes = dict(prelude.SHARED)
        self._exceptions: dict[str, type[Exception]] = {}
        self._originals: dict[int, tuple[Any, Any]] = {}

    # What tests ask of the program

    def name(self, name: str) -> Any:
        """Return what the program calls `name`; NameError if nothing."""
        return self.ask("name", name)

    def find(self, name: str) -> tuple[Any] | None:
        """Return what the program calls `name`, or None if nothing."""
        try:
            found = self.name(name)
        except NameError:
            return None
        if isinstance(found, Subject):
            found._archer_about["entry"] = name
        return (found,)

    def call(self, target: Subject, positional: list[Any], named: dict[str, Any]) -> Any:
        """Have the program call an object of its own."""
        self.calls += 1
        value = self.ask("call", target, positional, named)
        if "owner" in target._archer_about:
            self.look_again(target._archer_about["owner"])
        if isinstance(value, Subject) and target._archer_about.get("entry") in self.objects:
            object.__setattr__(value, "_archer_made", [*positional, *named.values()])
        return value

    def offer(self, name: str, value: Any) -> None:
        """Let the program use what the tests define for it, under the name that it has there."""
        self.ask("offer", name, value)

    def look_again(self, subject: Subject) -> None:
        """Take note of what an object holds after it was used, before the test tells what it expects."""
        if self.compares and subject._archer_made is not None:
            try:
                subject._archer_about["state"] = self._read_state(self.ask("state", subject))
            except Exception as error:
                raise self._no_value(error) from None
            object.__setattr__(subject, "_archer_made", [])

    def is_object(self, subject: Subject) -> bool:
        """Tell whether the test has made this object, of a class that it uses as such."""
        return subject._archer_made is not None

    def combine(self, name: str, one: Any, other: Any) -> Any:
        """Have the program carry out an operator, unless that told it what the test expects."""
        subjects = [each for each in (one, other) if isinstance(each, Subject)]
        trusted = any(map(self.is_object, subjects))
        if not trusted and (len(subjects) < 2 or name in _COMPARISONS):
            kinds = " and ".join(repr(_kind_name(each)) for each in (one, other))
            raise TypeError(f"unsupported operand types for {name}: {kinds}")
        value = self.ask(name, one, other)
        if trusted and isinstance(value, Subject):
            object.__setattr__(value, "_archer_made", [])
        return value

    def type_of(self, value: Any, *more: Any) -> Any:
        """Do what `type` does, for objects of the program as well."""
        if more or not isinstance(value, Subject):
            return type(value, *more)
        kind = self.ask("type", value)
        return kind if isinstance(kind, Subject) else Subject  # never a type of data

    def original(self, value: Any) -> Any:
        """Return a value as it was before the program, given it last, has changed it."""
        if id(value) in self._originals:
            value = self._originals[id(value)][1]
        if type(value) in (list, tuple):
            return type(value)(map(self.original, value))
        if type(value) is dict:
            return {key: self.original(item) for key, item in value.items()}
        return copy.copy(value) if type(value) in _PLAIN_CONTAINERS else value

    def share_classes(self, names: dict[str, Any]) -> None:
        """Send objects of the setup's classes by what they hold: the program has these classes too."""
        for name, value in names.items():
            if (
                isinstance(value, type)
                and value.__module__ == TESTS_MODULE
                and not issubclass(value, Exception)
            ):
                self._classes.setdefault(name, value)

    # The link

    def ask(self, name: str, *arguments: Any) -> Any:
        """Make a request and return the program's answer as a value, or raise what it raised."""
        if self.end is not None:
            raise self.end
        return super().ask(name, *arguments)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._channel.settimeout(self._timeout_s)
            super()._send(message)
        except TimeoutError:
            raise self._ended(ProgramTimeoutError()) from None
        except OSError:
            raise self._ended(ProgramEndedError("it ended during a call")) from None

    def next_message(self) -> Any:
        """Return what the program says next; anything but an object is the end of it."""
        try:
            return {**receive(self._channel, self._timeout_s)}
        except TimeoutError:
            raise self._ended(ProgramTimeoutError()) from None
        except (EOFError, OSError):
            raise self._ended(ProgramEndedError("it ended during a call")) from None
        except Exception as error:
            raise self._no_value(error) from None

    def read_error(self, told: Any) -> BaseException:
        """Return the exception that the program tells of."""
        try:
            return super().read_error(told)
        except Exception as error:
            return self._no_value(error)

    def read_value(self, reply: dict[str, Any], sent: Outgoing) -> Any:
        """Return the value in a reply."""
        for value in sent.objects:
            self._originals.pop(id(value), None)
        try:
            return super().read_value(reply, sent)
        except Exception as error:
            raise self._no_value(error) from None

    def _no_value(self, error: Exception) -> BaseException:
        return self._ended(ProgramEndedError(f"it sent what is no value: {type(error).__name__}"))

    def _ended(self, end: BaseException) -> BaseException:
        self.end = end
        return end

    def before_change(self, value: Any) -> None:
        """Keep a value as it was."""
        if type(value) in _PLAIN_CONTAINERS:
            self._originals[id(value)] = (value, copy.copy(value))

    def stand_in(self, number: int, about: dict[str, Any]) -> Any:
        """Return a stand-in of an object of the program; exceptions become classes that can be caught."""
        if "exception" in about:
            return self._exception_class([str(name) for name in about["exception"]])
        kind, iterator = str(about.get("class")), bool(about.get("iterator"))
        state = self._read_state(about.get("state"))
        if about.get("coroutine"):
            return self._coroutine(Subject(self, number, {"class": kind}))
        return Subject(self, number, {"class": kind, "iterator": iterator, "state": state})

    async def _coroutine(self, subject: Subject) -> Any:
        return self.ask("await", subject)

    def _read_state(self, told: Any) -> Any:
        if told is None:
            return None
        incoming = Incoming(lambda row: ("opaque", str(row[1])), self.class_of, arrays=False)
        incoming.add(told[1])
        return incoming.value(told[0])

    def _exception_class(self, names: list[str]) -> type[Exception]:
        if names[0] not in self._exceptions:
            base = next(filter(None, map(self._known_exception, names[1:])), Exception)
            self._exceptions[names[0]] = type(names[0], (base,), {})
        return self._exceptions[names[0]]

    def _known_exception(self, name: str) -> type[Exception] | None:
        kind = self._exceptions.get(name) or getattr(builtins, name, None)
        return kind if isinstance(kind, type) and issubclass(kind, Exception) else None

    def raised(self, names: list[str], message: str) -> Exception:
        """Return the nearest exception that tests know, so that they can catch what they expect."""
        kind = next(filter(None, map(self._known_exception, names)), Exception)
        if kind is not Exception or names[0] == "Exception":
            with contextlib.suppress(TypeError):  # it wants other arguments, as UnicodeDecodeError does
                return kind(message)
        return ProgramError(f"{names[0]}: {message}")

    # What the program may ask of the test

    def class_name(self, value: Any) -> str | None:
        """Return the name of a class that the program has as well."""
        name = type(value).__name__
        return name if self._classes.get(name) is type(value) else None

    def class_of(self, name: str) -> type:
        """Return the examiner's own class of this name."""
        return self._classes[name]

    def describe(self, value: Any) -> dict[str, Any]:
        """Tell the program what it was given."""
        if isinstance(value, _NEVER_LENT):
            raise TypeError(f"a test gives the program a {type(value).__name__}, which cannot be sent")
        return {
            "class": getattr(value, "__name__", type(value).__name__),
            "callable": callable(value),
            "iterator": isinstance(value, Iterator),
        }

    def perform(self, name: str, arguments: list[Any]) -> Any:
        """Do what the program asks: call what it was given, and use objects that the test has made."""
        operation, target = OPERATIONS[name], arguments[0]
        given = [each for each in arguments if self.is_lent(each) and not isinstance(each, Remote)]
        if not given or (name == "call" and given[0] is not target):
            raise TypeError("the program asks about what it was not given")
        if name in _ATTRIBUTES:
            self._check_attribute(name, target, str(arguments[1]))
        return operation(*arguments)

    def _check_attribute(self, name: str, target: Any, attribute: str) -> None:
        kind = target if isinstance(target, type) else type(target)
        own = kind.__module__ == TESTS_MODULE and not isinstance(target, _FUNCTIONS)
        if not own or attribute.startswith("_"):
            raise AttributeError(f"{kind.__name__!r} object has no attribute {attribute!r}")
        if name != "getattr" and callable(getattr(kind, attribute, None)):
            raise AttributeError(f"the program may not replace {attribute} of the test's {kind.__name__}")


def _kind_name(value: Any) -> str:
    return str(value._archer_about.get("class")) if isinstance(value, Subject) else type(value).__name__
