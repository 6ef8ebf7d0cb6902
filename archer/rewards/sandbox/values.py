"""Values as plain data between a program's process and its examiner's.

A value is sent as a table of rows, one for every object in it, that name each other by number: so lists that
contain themselves, arguments that share an element, and linked lists of any length arrive as they were. What
arrives is data of known types and nothing else: a program cannot send an object with an equality of its own.
Nodes of trees and lists arrive as the receiver's own nodes. Other objects stay where they are and travel as a
number.
"""

import importlib
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

_LARGEST_PLAIN_INT = 2**1000  # far below the number of digits that Python converts to text
_ATOMS = frozenset((type(None), bool, str, float))
_TYPES = (int, float, str, bool, complex, bytes, list, tuple, dict, set, frozenset, object, type(None))
TYPES: dict[str, type] = {each.__name__: each for each in (*_TYPES, Counter, deque, Fraction, Decimal)}
_BASES: tuple[type[Any], ...] = (
    *(int, float, str, list, tuple, Counter, OrderedDict, dict, set, frozenset, deque, bytes, bytearray),
    *(Fraction, Decimal, datetime, date, complex),
)
_NUMPY_KINDS = "biufcSU"
LEAVES: dict[str, Callable[[Any], Any]] = {
    "plain": lambda value: value,
    "int": lambda digits: int(digits, 16),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda parts: complex(*parts),
    "Fraction": lambda parts: Fraction(int(parts[0], 16), int(parts[1], 16)),
    "Decimal": Decimal,
    "date": date.fromisoformat,
    "datetime": datetime.fromisoformat,
    "time": time.fromisoformat,
    "timedelta": lambda parts: timedelta(*parts),
    "range": lambda parts: range(*(int(part, 16) for part in parts)),
    "type": TYPES.__getitem__,
}
_FROZEN = ("tuple", "frozenset", "namedtuple", "slice", "view")
_VIEWS: dict[type, str] = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}
_MAPPINGS = {"dict": dict, "Counter": Counter, "OrderedDict": OrderedDict}
_SHELLS: dict[str, Callable[[], Any]] = {"list": list, "set": set, "deque": deque, **_MAPPINGS}
MUTABLE = frozenset((*_SHELLS, "defaultdict", "bytearray", "instance", "array"))

Row = list[Any]
"""`[tag, content, ...]`; inside, plain values stand for themselves and `[number]` for a row."""


class State:
    """What the attributes of an object of the program held when it was sent; compared as plain data."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and vars(self) == vars(other)


class Outgoing:
    """Values on their way out; `refer` makes the row of an object that is no data, `shared` names a class."""

    def __init__(
        self,
        refer: Callable[[Any], Row],
        shared: Callable[[Any], str | None],
        most_rows: int | None = None,
    ) -> None:
        self.rows: list[Row] = []
        self.objects: list[Any] = []  # of each row; held, so that no other gets its id
        self._refer, self._shared, self._most_rows = refer, shared, most_rows
        self._places: dict[int, int] = {}
        self._held: list[Any] = []  # what was made on the way

    def _hold(self, value: Any) -> Any:
        self._held.append(value)
        return value

    def add(self, value: Any) -> Any:
        """Add a value with all it holds, and return what stands for it."""
        start = len(self.rows)
        mark = self._mark(value)
        self._complete(start)
        return mark

    def resume(self, objects: list[Any], rows: list[Row]) -> list[tuple[int, Row]]:
        """Take over what was received, and return the rows that have changed since."""
        self.objects, self.rows = list(objects), list(rows)
        self._places = {id(value): place for place, value in enumerate(objects)}
        changed = []
        for place, row in enumerate(rows):
            if row[0] in MUTABLE:
                now = self._row(objects[place])
                if now != row:
                    changed.append((place, now))
        self._complete(len(rows))
        return changed

    def _complete(self, place: int) -> None:
        while place < len(self.objects):
            self.rows[place] = self._row(self.objects[place])
            place += 1

    def _mark(self, value: Any) -> Any:
        kind = type(value)
        if kind in _ATOMS or (kind is int and -_LARGEST_PLAIN_INT < value < _LARGEST_PLAIN_INT):
            return value
        place = self._places.get(id(value))
        if place is None:
            place = self._places[id(value)] = len(self.objects)
            if place == self._most_rows:
                raise OverflowError("the value holds more than is wanted")
            self.objects.append(value)
            self.rows.append([])
        return [place]

    def _marks(self, values: Any) -> list[Any]:
        return [self._mark(value) for value in values]

    def attributes(self, value: Any) -> list[Any]:
        """Return what stands for an object's attributes: names and values by turns."""
        return self._marks(_attributes(value))

    def _row(self, value: Any) -> Row:
        kind = type(value)
        leaf = _leaf(kind, value)
        if leaf is not None:
            return leaf
        name = self._shared(value)
        if name is not None:
            return ["instance", name, self.attributes(value)]
        if kind is defaultdict:
            factory = getattr(value.default_factory, "__name__", None)
            known = factory if TYPES.get(str(factory)) is value.default_factory else None
            return ["defaultdict", self._marks(_flat(value)), known]
        if kind in _MAPPINGS.values():
            return [kind.__name__, self._marks(_flat(value))]
        if kind in (list, tuple, set, frozenset, deque):
            return [kind.__name__, self._marks(value)]
        if kind in _VIEWS:
            return ["view", self._marks(self._hold(list(value))), _VIEWS[kind]]
        if kind is slice:
            return ["slice", self._marks((value.start, value.stop, value.step))]
        if isinstance(value, tuple) and all(isinstance(name, str) for name in getattr(kind, "_fields", [0])):
            return ["namedtuple", self._marks(tuple.__iter__(value)), kind.__name__, list(kind._fields)]
        if kind.__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
            if getattr(value, "dtype", None) is not None and value.dtype.kind in _NUMPY_KINDS:
                flat = self._hold(value.reshape(-1).tolist())
                return ["array", self._marks(flat), value.dtype.str, list(value.shape)]
            return self._row(self._hold(value.tolist()))
        for base in _BASES:  # an IntEnum is sent as an int, a list of a class of its own as a list
            if isinstance(value, base):
                return _leaf(base, value) or self._row(self._hold(base(value)))
        return self._refer(value)


def _flat(mapping: Mapping[Any, Any]) -> Iterator[Any]:
    for key, value in dict(mapping).items():
        yield key
        yield value


def _attributes(value: Any) -> Iterator[Any]:
    """Yield names and values of an object's attributes, by turns."""
    held = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                held[name] = getattr(value, name)
    return _flat({str(name): each for name, each in held.items() if not str(name).startswith("__")})


def _leaf(kind: Any, value: Any) -> Row | None:
    """Return the row of a value that holds no others."""
    if kind in _ATOMS:
        return ["plain", value]
    if kind is int:
        return ["int", hex(value)]
    if kind in (bytes, bytearray):
        return [kind.__name__, value.hex()]
    if kind is complex:
        return ["complex", [value.real, value.imag]]
    if kind is Fraction:
        return ["Fraction", [hex(value.numerator), hex(value.denominator)]]
    if kind is Decimal:
        return ["Decimal", str(value)]
    if kind in (date, datetime, time):
        return [kind.__name__, value.isoformat()]
    if kind is timedelta:
        return ["timedelta", [value.days, value.seconds, value.microseconds]]
    if kind is range:
        return ["range", [hex(value.start), hex(value.stop), hex(value.step)]]
    if isinstance(value, type) and TYPES.get(value.__name__) is value:
        return ["type", value.__name__]
    return None


class Incoming:
    """Values that arrive; `resolve` gives what stands for a row that is no data, `classes` a shared one."""

    def __init__(
        self, resolve: Callable[[Row], Any], classes: Callable[[str], type], arrays: bool = True
    ) -> None:
        self.objects: list[Any] = []
        self._resolve, self._classes, self._arrays = resolve, classes, arrays
        self._rows: list[Row] = []

    def add(self, rows: list[Row]) -> None:
        """Build the values of these rows; they may name each other and those that came before."""
        start = len(self.objects)
        self._rows = [*([[]] * start), *rows]
        self.objects += [self._shell(row) for row in rows]
        done = set(range(start))
        for place in range(start, len(self._rows)):
            self._freeze(place, done)
        for place in range(start, len(self._rows)):
            if self._rows[place][0] in MUTABLE or self._rows[place][0] == "state":
                self.refill(self.objects[place], self._rows[place])

    def value(self, mark: Any) -> Any:
        """Return what a mark stands for."""
        if isinstance(mark, list):
            (place,) = mark
            if place < 0:
                raise ValueError("a row before the first")
            return self.objects[place]
        if isinstance(mark, dict):
            raise ValueError("an object where a value was expected")
        return mark

    def _values(self, marks: list[Any]) -> list[Any]:
        return [self.value(mark) for mark in marks]

    def _shell(self, row: Row) -> Any:
        tag, content, *more = row
        if tag in _SHELLS:
            return _SHELLS[tag]()
        if tag == "defaultdict":
            return defaultdict(TYPES[more[0]] if more[0] is not None else None)
        if tag in LEAVES:
            return LEAVES[tag](content)
        if tag == "instance":
            kind: Any = self._classes(str(content))
            return kind.__new__(kind)
        if tag == "state":
            return State(str(content))
        if tag == "array":
            return self._array(content, *more)
        return None if tag in _FROZEN else self._resolve(row)

    def _array(self, flat: list[Any], kind: str, shape: list[int]) -> Any:
        """Return an array, or nested lists where nobody asked for numpy."""
        if self._arrays and kind[1:2] in _NUMPY_KINDS:
            numpy = sys.modules.get("numpy") or importlib.import_module("numpy")
            return numpy.array(self._leaves(flat), dtype=kind).reshape(shape)[()]
        values = self._leaves(flat)
        for size in reversed(shape[1:]):
            values = [values[at : at + size] for at in range(0, len(values), size)] if size else []
        return values if shape else values[0]

    def _leaves(self, marks: list[Any]) -> list[Any]:
        return [
            LEAVES[self._rows[mark[0]][0]](self._rows[mark[0]][1]) if isinstance(mark, list) else mark
            for mark in marks
        ]

    def _freeze(self, first: int, done: set[int]) -> None:
        """Build a tuple or another value that never changes, after those it holds."""
        waiting, open_places = [first], set()
        while waiting:
            place = waiting[-1]
            row = self._rows[place]
            if place in done or row[0] not in _FROZEN:
                done.add(waiting.pop())
                continue
            needed = [mark[0] for mark in row[1] if isinstance(mark, list) and mark[0] not in done]
            if not needed:
                self.objects[place] = _frozen(row, self._values(row[1]))
                done.add(waiting.pop())
            elif place in open_places:
                raise ValueError("a tuple that contains itself")
            else:
                open_places.add(place)
                waiting += needed

    def refill(self, target: Any, row: Row) -> None:
        """Give an object the content of a row."""
        tag, content, *more = row
        if tag == "list":
            target[:] = self._values(content)
        elif tag in ("set", "deque"):
            target.clear()
            (target.update if tag == "set" else target.extend)(self._values(content))
        elif tag in _MAPPINGS or tag == "defaultdict":
            target.clear()
            pairs = self._values(content)
            for key, value in zip(pairs[::2], pairs[1::2], strict=True):
                target[key] = value
        elif tag == "bytearray":
            target[:] = bytes.fromhex(content)
        elif tag in ("instance", "state"):
            pairs = self._values(more[0])
            for name, value in zip(pairs[::2], pairs[1::2], strict=True):
                if str(name).startswith("__"):
                    raise ValueError("an attribute that is Python's own")
                if not callable(getattr(type(target), str(name), None)):  # methods are the receiver's
                    object.__setattr__(target, str(name), value)
        elif tag == "array" and hasattr(target, "flat") and target.shape:
            target.flat = self._leaves(content)


def _frozen(row: Row, values: list[Any]) -> Any:
    if row[0] == "namedtuple":
        return _named(row[2], tuple(row[3]))._make(values)
    if row[0] == "slice":
        return slice(*values)
    if row[0] == "view":
        if row[2] == "values":
            return dict(enumerate(values)).values()
        return dict(values).items() if row[2] == "items" else dict.fromkeys(values).keys()
    return tuple(values) if row[0] == "tuple" else frozenset(values)


@lru_cache(64)
def _named(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields)
