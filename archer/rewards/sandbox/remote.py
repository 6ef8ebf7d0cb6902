"""What can be done with an object of the other process, and what stands for one.

`Subject` stands for an object of the program in its examiner's process. What the program's classes say about
equality does not count: two objects are equal if they held the same when they arrived. Nor is an object that
a function returned asked about an expected value, as in `f(x) - 3.14`, `3 in f(x)`, `f(x).startswith("a")`:
it would learn the value and could answer what the test wants to hear. Objects that the test itself has made
of the program's class, and uses as objects, are what is tested, so their operators are the program's.

`Loan` stands for an object of the test in the program's process.
"""

import importlib
import operator
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from time import monotonic
from typing import Any

from archer.rewards.sandbox.link import Remote
from archer.rewards.sandbox.values import State

_UNARY = tuple(
    "str repr len int float complex bool abs neg pos invert index round trunc format reversed".split()  # noqa: SIM905
)
_ARITHMETIC = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift divmod".split()  # noqa: SIM905
_COMPARISONS = "lt le gt ge".split()  # noqa: SIM905
_ITEMS = "getitem setitem delitem".split()  # noqa: SIM905
_CHUNK_S = 0.05
_LARGEST_CHUNK = 1024


def _items(iterator: Any, count: int) -> list[Any]:
    """Return the next items, and whether there are more; fewer where they come slowly."""
    items, end = [], monotonic() + _CHUNK_S
    for item in islice(iterator, count):
        items.append(item)
        if monotonic() > end:
            return [items, True]
    return [items, len(items) == count]


def _finish(coroutine: Any) -> Any:
    """Run a coroutine to its end."""
    return importlib.import_module("asyncio").run(coroutine)


OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, f"__{name}__", divmod) for name in _ARITHMETIC},
    **{f"i{name}": getattr(operator, f"__i{name}__", divmod) for name in _ARITHMETIC},
    **{name: getattr(operator, name) for name in (*_COMPARISONS, *_ITEMS, "eq", "ne", "contains")},
    **{name: getattr(operator, name) for name in ("neg", "pos", "invert", "index")},
    **{each.__name__: each for each in (str, repr, len, int, float, complex, bool, abs, round)},
    "trunc": lambda value: type(value).__trunc__(value),
    "format": format,
    "reversed": reversed,
    "hash": hash,
    "iter": iter,
    "items": _items,
    "isinstance": isinstance,
    "issubclass": issubclass,
    "type": type,
    "getattr": getattr,
    "setattr": setattr,
    "delattr": delattr,
    "call": lambda target, positional, named: target(*positional, **named),
    "await": _finish,
    "enter": lambda value: type(value).__enter__(value),
    "exit": lambda value: type(value).__exit__(value, None, None, None),
}

_PLAIN = (str, bytes, int, float, complex, set, frozenset, Fraction, Decimal)
_CONTAINERS = (list, dict, deque)
_CHANGES = {"add", "discard", "update", "union", "intersection", "difference", "symmetric_difference"}
ANSWERS_OF_DATA = (
    {name for kind in _PLAIN for name in dir(kind) if name[0] != "_"}
    - {name for kind in _CONTAINERS for name in dir(kind)}
    - _CHANGES
)
"""Methods of data that a test would ask about an expected value: `startswith`, `issubset`, ..."""


class Subject(Remote):
    """An object of the program, in the examiner's process."""

    __slots__ = ("_archer_about", "_archer_ahead", "_archer_made")

    def __init__(self, link: Any, number: int, about: dict[str, Any]) -> None:
        for name, value in (
            ("_archer_link", link),
            ("_archer_number", number),
            ("_archer_about", about),
            ("_archer_made", None),  # the arguments, if the test made it
            ("_archer_ahead", None),  # items that were fetched and not used yet
        ):
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__annotations__", "__dict__"):
            raise AttributeError(name)  # for copy, pickle and their like, which would ask for more
        if name in ANSWERS_OF_DATA and not self._archer_link.is_object(self):
            kind = self._archer_about.get("class")
            raise AttributeError(f"{kind!r} object, which is no data, has no attribute {name!r}")
        value = self._archer_link.ask("getattr", self, name)
        if isinstance(value, Subject):
            value._archer_about["owner"] = self
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        self._archer_link.ask("setattr", self, name, value)
        self._archer_link.look_again(self)

    def __delattr__(self, name: str) -> None:
        self._archer_link.ask("delattr", self, name)

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """Have the program call it."""
        return self._archer_link.call(self, list(positional), named)

    def __hash__(self) -> int:
        return hash(self._archer_about.get("class"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subject) and same_state(self, other)

    def __contains__(self, item: Any) -> bool:
        if self._archer_link.is_object(self):
            return bool(self._archer_link.ask("contains", self, item))
        return any(each is item or each == item for each in self)

    def __iter__(self) -> Any:
        if self._archer_about.get("iterator"):
            return self
        return self._archer_link.ask("iter", self)

    def __next__(self) -> Any:
        ahead = self._archer_ahead or [deque(), True, 1]
        items, more, count = ahead
        if not items and more:
            fresh, more = self._archer_link.ask("items", self, count)
            items.extend(fresh)
        object.__setattr__(self, "_archer_ahead", [items, more, min(2 * count, _LARGEST_CHUNK)])
        if not items:
            raise StopIteration
        return items.popleft()

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        """Refuse to be the base of a class of the test: its methods would have to run in two processes."""
        name = self._archer_about.get("entry") or self._archer_about.get("class")
        raise TypeError(f"a test that inherits from the program's {name} cannot be judged")

    def __enter__(self) -> Any:
        return self._archer_link.ask("enter", self)

    def __exit__(self, *exception: object) -> None:
        self._archer_link.ask("exit", self)  # it has no say in whether a test's failure is passed over

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Subject) and bool(self._archer_link.ask("isinstance", instance, self))

    def __subclasscheck__(self, subclass: Any) -> bool:
        return isinstance(subclass, Subject) and bool(self._archer_link.ask("issubclass", subclass, self))


def same_state(one: Subject, other: Subject) -> bool:
    """Tell whether two objects of the program held the same when they arrived.

    An object that the test made holds what it was made of: a class that forgets its arguments would make all
    objects equal. And it holds little else, or it might hold every value that a test could ask for.
    """
    states = [each._archer_about.get("state") for each in (one, other)]
    if None in states:
        return one._archer_number == other._archer_number and not (one._archer_made or other._archer_made)
    for each, state in zip((one, other), states, strict=True):
        if each._archer_made:
            given, held = _atoms(each._archer_made), _atoms(state)
            if not all(atom in held for atom in given) or len(held) > 4 * len(given) + 8:
                return False
    try:
        return bool(states[0] == states[1])
    except RecursionError:
        return False


def _atoms(value: Any) -> list[Any]:
    """Return the plain values in a value."""
    atoms, waiting, seen = [], [value], set()
    while waiting:
        each = waiting.pop()
        if isinstance(each, Subject):
            each = each._archer_about.get("state")
        if isinstance(each, State | list | tuple | dict | set | frozenset | deque):
            if id(each) not in seen:
                seen.add(id(each))
                inner = vars(each).values() if isinstance(each, State) else each
                waiting += [*inner, *(each.values() if isinstance(each, dict) else ())]
        else:
            atoms.append(each)
    return atoms


class Loan(Remote):
    """An object of the test, in the program's process: used as if it were here."""

    __slots__ = ("__name__", "_archer_about")

    def __init__(self, link: Any, number: int, about: dict[str, Any]) -> None:
        object.__setattr__(self, "_archer_link", link)
        object.__setattr__(self, "_archer_number", number)
        object.__setattr__(self, "_archer_about", about)
        object.__setattr__(self, "__name__", str(about.get("class")))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._archer_link.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._archer_link.ask("setattr", self, name, value)

    def __hash__(self) -> int:
        return hash(self._archer_number)

    def __iter__(self) -> Any:
        return self if self._archer_about.get("iterator") else self._archer_link.ask("iter", self)

    def __next__(self) -> Any:
        items, _ = self._archer_link.ask("items", self, 1)
        if not items:
            raise StopIteration
        return items[0]

    def __contains__(self, item: Any) -> bool:
        return bool(self._archer_link.ask("contains", self, item))


class LoanedFunction(Loan):
    """A function or another callable of the test."""

    __slots__ = ()

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """Have the examiner call it."""
        return self._archer_link.ask("call", self, list(positional), named)


def _unary(name: str) -> Any:
    return lambda self, *more: self._archer_link.ask(name, self, *more)


def _binary(name: str, reflected: bool) -> Any:
    def combine(self: Any, other: Any) -> Any:
        pair = (other, self) if reflected else (self, other)
        return self._archer_link.combine(name, *pair)

    return combine


for _kind in (Subject, Loan):
    for _name in (*_UNARY, *_ITEMS):
        setattr(_kind, f"__{_name}__", _unary(_name))
    for _name in _ARITHMETIC:
        setattr(_kind, f"__{_name}__", _binary(_name, reflected=False))
        setattr(_kind, f"__r{_name}__", _binary(_name, reflected=True))
        if _name != "divmod":
            setattr(_kind, f"__i{_name}__", _binary(f"i{_name}", reflected=False))
    for _name in (*_COMPARISONS, *(("eq", "ne") if _kind is Loan else ())):
        setattr(_kind, f"__{_name}__", _binary(_name, reflected=False))
