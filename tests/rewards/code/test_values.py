import json
import socket
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archer.rewards.sandbox import values

Point = namedtuple("Point", "x y")


class Colour(IntEnum):
    RED = 1


def over_the_wire(value):
    data = json.loads(json.dumps(values.encode(value, lambda each: pytest.fail(f"not sent: {each!r}"))))
    return values.decode(data, lambda number: pytest.fail(f"object {number}"))


keys = (
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.tuples(st.integers(), st.text())
)
leaves = keys | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False) | st.fractions()
any_values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.sets(keys)
        | st.frozensets(keys)
        | st.lists(inner).map(deque)
    ),
    max_leaves=20,
)


@given(any_values)
def test_values_arrive_as_they_were(value):
    arrived = over_the_wire(value)
    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize(
    ("value", "arrived"),
    [
        (Decimal("1.10"), Decimal("1.10")),
        (Fraction(1, 3), Fraction(1, 3)),
        (bytearray(b"ab"), bytearray(b"ab")),
        (Counter("aab"), {"a": 2, "b": 1}),
        (defaultdict(list, {1: [2]}), {1: [2]}),
        (OrderedDict(a=1), {"a": 1}),
        (Point(1, 2), (1, 2)),
        (Colour.RED, 1),
        ("\ud800", "\ud800"),
    ],
)
def test_kinds_of_builtin_values_arrive_as_those(value, arrived):
    assert over_the_wire(value) == arrived
    assert type(over_the_wire(value)) is type(arrived)


def test_integers_beyond_what_python_prints_arrive():
    assert over_the_wire([10**5000, -(10**5000)]) == [10**5000, -(10**5000)]


def test_infinities_and_not_a_number_arrive():
    assert str(over_the_wire([float("inf"), float("-inf"), float("nan")])) == "[inf, -inf, nan]"


def test_other_objects_stay_behind_and_travel_by_number():
    kept = []

    def refer(value):
        kept.append(value)
        return len(kept) - 1

    sent = values.encode([object, 5, print], refer)
    assert kept == [object, print]
    assert values.decode(sent, lambda number: f"object {number}") == ["object 0", 5, "object 1"]


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"eval": "1"},
        {"int": "1; 2"},
        {"tuple": 5},
        {"set": [[1]]},
        {"list": [], "tuple": []},
        {"dict": [[[1], 2]]},
        {"complex": ["a"]},
        {"fraction": ["0x1", "0x0"]},
    ],
)
def test_what_is_no_value_raises(data):
    with pytest.raises((ValueError, TypeError, ZeroDivisionError)):
        values.decode(data, lambda number: number)


def test_messages_are_framed_and_bounded(monkeypatch):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        values.send(ours, {"a": [1]})
        values.send(ours, "second")
        assert values.receive(theirs) == {"a": [1]}
        assert values.receive(theirs) == "second"
        with pytest.raises(TimeoutError):
            values.receive(theirs, 0.01)
        monkeypatch.setattr(values, "MAX_MESSAGE_BYTES", 10)
        with pytest.raises(ValueError, match="too large"):
            values.send(ours, "x" * 11)
        ours.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(ValueError, match="too large"):
            values.receive(theirs)
        ours.close()
        with pytest.raises(EOFError):
            values.receive(theirs)
