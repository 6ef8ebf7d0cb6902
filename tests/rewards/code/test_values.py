import json
import socket
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archer.rewards.sandbox import link, prelude
from archer.rewards.sandbox.values import Incoming, Outgoing

Point = namedtuple("Point", "x y")


class Colour(IntEnum):
    RED = 1


def shared(value):
    return type(value).__name__ if type(value) in prelude.SHARED.values() else None


def arrive(mark, rows, resolve=lambda row: pytest.fail(f"object {row}")):
    incoming = Incoming(resolve, prelude.SHARED.__getitem__)
    incoming.add(rows)
    return incoming.value(mark)


def over_the_wire(value):
    outgoing = Outgoing(lambda each: pytest.fail(f"not sent: {each!r}"), shared)
    mark = outgoing.add(value)
    return arrive(*json.loads(json.dumps([mark, outgoing.rows])))


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
        (Counter("aab"), Counter(a=2, b=1)),
        (defaultdict(list, {1: [2]}), defaultdict(list, {1: [2]})),
        (OrderedDict(a=1, b=2), OrderedDict(a=1, b=2)),
        (date(2024, 2, 29), date(2024, 2, 29)),
        (datetime(2024, 1, 2, 3, 4, 5, 6), datetime(2024, 1, 2, 3, 4, 5, 6)),
        (datetime(2024, 1, 2, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC)),
        (timedelta(-1, 5, 7), timedelta(-1, 5, 7)),
        (range(10**400, 0, -3), range(10**400, 0, -3)),
        (slice(1, None, 2), slice(1, None, 2)),
        (int, int),
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


def test_named_tuples_keep_their_names():
    arrived = over_the_wire(Point(1, [2]))
    assert arrived == (1, [2])
    assert (arrived.x, arrived._fields, type(arrived).__name__) == (1, ("x", "y"), "Point")


def test_what_is_shared_or_loops_arrives_so():
    inner = [1]
    outer = [inner, (inner, {"a": inner})]
    outer.append(outer)
    arrived = over_the_wire(outer)
    assert arrived[0] is arrived[1][0] is arrived[1][1]["a"]
    assert arrived[2] is arrived


def test_depth_is_no_matter():
    deep = []
    for _ in range(20_000):
        deep = [deep]
    arrived = over_the_wire(deep)
    for _ in range(20_000):
        (arrived,) = arrived
    assert arrived == []


def test_nodes_arrive_as_the_receivers_own():
    tree = over_the_wire(prelude.tree_node([1, None, 2, 3]))
    assert type(tree) is prelude.TreeNode
    assert prelude.tree_values(tree) == [1, None, 2, 3]
    head = over_the_wire(prelude.list_node(range(50_000)))
    assert prelude.list_values(head) == list(range(50_000))
    head.next = head
    assert over_the_wire(head).next.next.val == 0


def test_what_was_changed_comes_back():
    given = {"a": [1], "b": {2}}
    outgoing = Outgoing(lambda each: pytest.fail("not sent"), shared)
    outgoing.add(given)
    incoming = Incoming(lambda row: None, prelude.SHARED.__getitem__)
    incoming.add(outgoing.rows)
    incoming.objects[0]["a"].append(5)
    changed = Outgoing(lambda each: pytest.fail("not sent"), shared).resume(incoming.objects, outgoing.rows)
    assert [row for _, row in changed] == [["list", [1, 5]]]


def test_other_objects_stay_behind_and_travel_by_number():
    kept = []

    def refer(value):
        kept.append(value)
        return ["mine", len(kept) - 1, {}]

    outgoing = Outgoing(refer, shared)
    mark = outgoing.add([test_depth_is_no_matter, 5, print])
    assert kept == [test_depth_is_no_matter, print]
    assert arrive(mark, outgoing.rows, lambda row: f"object {row[1]}") == ["object 0", 5, "object 1"]


@pytest.mark.parametrize(
    "rows",
    [
        [[]],
        [["int", "1; 2"]],
        [["tuple", 5]],
        [["set", [[1]]], ["list", []]],
        [["tuple", [[0]]]],
        [["list", [[7]]]],
        [["list", [[-1]]]],
        [["list", [{"a": 1}]]],
        [["dict", [1]]],
        [["complex", ["a"]]],
        [["Fraction", ["0x1", "0x0"]]],
        [["instance", "Popen", []]],
        [["type", "Popen"]],
        [["namedtuple", [1], "a b", ["x; y"]]],
        [["defaultdict", [], "eval"]],
    ],
)
def test_what_is_no_value_raises(rows):
    with pytest.raises((ValueError, TypeError, ZeroDivisionError, KeyError, IndexError)):
        arrive([0], rows, lambda row: (_ for _ in ()).throw(ValueError("unknown")))


def test_messages_are_framed_and_bounded(monkeypatch):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link.send(ours, {"a": [1]})
        link.send(ours, "second")
        assert link.receive(theirs) == {"a": [1]}
        assert link.receive(theirs) == "second"
        with pytest.raises(TimeoutError):
            link.receive(theirs, 0.01)
        monkeypatch.setattr(link, "MAX_MESSAGE_BYTES", 10)
        with pytest.raises(ValueError, match="too large"):
            link.send(ours, "x" * 11)
        ours.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(ValueError, match="too large"):
            link.receive(theirs)
        ours.close()
        with pytest.raises(EOFError):
            link.receive(theirs)
