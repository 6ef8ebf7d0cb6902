# ruff: noqa: E501
"""Right programs pass, whatever tests do with them: by kind of what crosses between program and tests."""

import textwrap
import tomllib
from pathlib import Path

import pytest

from archer.rewards.code import CallTests
from archer.rewards.code.grade import Ending
from archer.rewards.code.record import read_tests

# name -> (program, tests that pass, an assertion in their place that fails)
CASES = {
    "keeps its data sorted as LeetCode's judge lets it": (
        "from sortedcontainers import SortedList\ndef kth(xs, k): return SortedList(xs)[k]",
        "assert kth([3, 1, 2], 1) == 2",
        "assert kth([3, 1, 2], 1) == 1",
    ),
    "changes a list in place": (
        "def double(xs):\n    for i in range(len(xs)): xs[i] *= 2",
        "a = [1, 2]\ndouble(a)\nassert a == [2, 4]",
        "a = [1, 2]\ndouble(a)\nassert a == [1, 2]",
    ),
    "changes in place and returns a length": (
        "def dedupe(xs):\n    xs[:] = sorted(set(xs))\n    return len(xs)",
        "a = [1, 1, 2]\nk = dedupe(a)\nassert k == 2 and a[:k] == [1, 2]",
        "a = [1, 1, 2]\nk = dedupe(a)\nassert a[:k] == [1, 1]",
    ),
    "changes nested lists in place": (
        "def turn(m):\n    m[:] = [list(row) for row in zip(*m[::-1])]",
        "m = [[1, 2], [3, 4]]\nturn(m)\nassert m == [[3, 1], [4, 2]]",
        "m = [[1, 2], [3, 4]]\nturn(m)\nassert m == [[1, 2], [3, 4]]",
    ),
    "changes an inner list alone": (
        "def first(m):\n    m[0].append(9)",
        "row = [1]\nm = [row, row]\nfirst(m)\nassert row == [1, 9] and m[1] is row",
        "row = [1]\nfirst([row])\nassert row == [1]",
    ),
    "changes dicts, sets and deques in place": (
        "def fill(d, s, q):\n    d['a'] = 1\n    s.add(2)\n    q.appendleft(3)",
        "d, s, q = {}, set(), collections.deque()\nfill(d, s, q)\nassert (d, s, list(q)) == ({'a': 1}, {2}, [3])",
        "d, s, q = {}, set(), collections.deque()\nfill(d, s, q)\nassert not d",
    ),
    "is ordered by a heap of the test": (
        "class Task:\n    def __init__(self, p): self.p = p\n    def __lt__(self, other): return self.p < other.p",
        "h = []\nheapq.heappush(h, Task(2))\nheapq.heappush(h, Task(1))\nassert heapq.heappop(h).p == 1",
        "h = []\nheapq.heappush(h, Task(2))\nheapq.heappush(h, Task(1))\nassert heapq.heappop(h).p == 2",
    ),
    "is sorted by the test": (
        "class Task:\n    def __init__(self, p): self.p = p\n    def __lt__(self, other): return self.p < other.p",
        "tasks = [Task(3), Task(1)]\ntasks.append(Task(2))\ntasks.sort()\nassert [t.p for t in tasks] == [1, 2, 3]\nassert min([Task(4), Task(3)]).p == 3",
        "assert sorted([Task(3), Task(1)])[0].p == 3",
    ),
    "returns its argument": (
        "def same(xs):\n    xs.append(1)\n    return xs",
        "a = []\nassert same(a) is a\nassert a == [1]",
        "a = []\nassert same(a) is not a",
    ),
    "calls a function of the test": (
        "def apply(f, xs): return [f(x) for x in xs]",
        "assert apply(lambda x: x + 1, [1, 2]) == [2, 3]\nassert apply(len, ['ab']) == [2]",
        "assert apply(lambda x: x + 1, [1, 2]) == [1, 2]",
    ),
    "a function of the test calls the program": (
        "def twice(f, x): return f(f(x))\ndef inc(x): return x + 1",
        "def add(x): return inc(inc(x))\nassert twice(add, 0) == 4\nassert twice(inc, 0) == 2",
        "assert twice(inc, 0) == 3",
    ),
    "a function of the test raises": (
        "def safe(f):\n    try: return f()\n    except ValueError as e: return str(e)",
        "def bad(): raise ValueError('no')\nassert safe(bad) == 'no'",
        "def bad(): raise ValueError('no')\nassert safe(bad) == 'yes'",
    ),
    "a function of the test changes what it gets": (
        "def visit(f):\n    seen = []\n    f(seen)\n    return seen",
        "def put(xs): xs.append(7)\nassert visit(put) == [7]",
        "def put(xs): xs.append(7)\nassert visit(put) == []",
    ),
    "sorts by a key of the test": (
        "def order(xs, key): return sorted(xs, key=key)",
        "assert order(['bb', 'a'], key=len) == ['a', 'bb']\nassert order([1, -2], key=lambda x: -x) == [1, -2]",
        "assert order([1, -2], key=abs) == [-2, 1]",
    ),
    "returns a function": (
        "def adder(n): return lambda x: x + n",
        "assert adder(2)(3) == 5\nadd = adder(1)\nassert add(1) == 2",
        "assert adder(2)(3) == 6",
    ),
    "decorates a function of the test": (
        "def memo(f):\n    seen = {}\n    def g(x):\n        if x not in seen: seen[x] = f(x)\n        return seen[x]\n"
        "    return g",
        "calls = []\n@memo\ndef sq(x):\n    calls.append(x)\n    return x * x\nassert sq(3) == 9 and sq(3) == 9\n"
        "assert calls == [3]",
        "@memo\ndef sq(x): return x * x\nassert sq(3) == 6",
    ),
    "is given types": (
        "def only(xs, kind): return [x for x in xs if isinstance(x, kind)]",
        "assert only([1, 'a', 2.0], str) == ['a']\nassert only([1, 'a'], (int, list)) == [1]",
        "assert only([1, 'a'], int) == ['a']",
    ),
    "is given objects of the test's class": (
        "def oldest(people):\n    best = max(people, key=lambda p: p.age)\n    return best.name",
        "class P:\n    def __init__(self, name, age): self.name, self.age = name, age\n"
        "assert oldest([P('a', 3), P('b', 9)]) == 'b'",
        "class P:\n    def __init__(self, name, age): self.name, self.age = name, age\n"
        "assert oldest([P('a', 3), P('b', 9)]) == 'a'",
    ),
    "uses operators of the test's objects": (
        "def biggest(xs):\n    best = xs[0]\n    for x in xs[1:]:\n        if x > best: best = x\n    return best\n"
        "def text(x): return f'{x}!{len(x)}'",
        "class V:\n    def __init__(self, n): self.n = n\n    def __gt__(self, o): return self.n > o.n\n"
        "    def __str__(self): return 'V'\n    def __len__(self): return 4\n"
        "a, b = V(1), V(2)\nassert biggest([a, b]) is b\nassert text(a) == 'V!4'",
        "class V:\n    def __init__(self, n): self.n = n\n    def __gt__(self, o): return self.n > o.n\n"
        "a, b = V(1), V(2)\nassert biggest([a, b]) is a",
    ),
    "sets attributes of the test's objects": (
        "def rename(p): p.name = p.name.upper(); p.log('x')",
        "class P:\n    name = 'a'\n    seen = ()\n    def log(self, t): self.seen = (t,)\n"
        "p = P()\nrename(p)\nassert p.name == 'A' and p.seen == ('x',)",
        "class P:\n    name = 'a'\n    def log(self, t): pass\np = P()\nrename(p)\nassert p.name == 'a'",
    ),
    "operators of a class under test": (
        "class Vector:\n    def __init__(self, x, y): self.x, self.y = x, y\n"
        "    def __add__(self, o): return Vector(self.x + o.x, self.y + o.y)\n"
        "    def __mul__(self, k): return Vector(self.x * k, self.y * k)\n    __rmul__ = __mul__\n"
        "    def __eq__(self, o): return (self.x, self.y) == (o.x, o.y)\n    def __len__(self): return 2\n"
        "    def __getitem__(self, i): return (self.x, self.y)[i]\n    def __neg__(self): return self * -1\n"
        "    def __repr__(self): return f'Vector({self.x}, {self.y})'\n"
        "    def __lt__(self, o): return self.x < o.x\n    def __contains__(self, v): return v in (self.x, self.y)",
        "assert Vector(1, 2) + Vector(3, 4) == Vector(4, 6)\nassert 3 * Vector(1, 2) == Vector(3, 6)\n"
        "assert str(-Vector(1, 2)) == 'Vector(-1, -2)' and len(Vector(1, 2)) == 2\n"
        "assert repr(Vector(5, 6)) == 'Vector(5, 6)' and f'{Vector(5, 6)}' == 'Vector(5, 6)'\n"
        "v = Vector(1, 2)\nassert v[1] == 2 and list(v) == [1, 2] and v.x == 1 and 2 in v and 5 not in v\n"
        "assert sorted([Vector(2, 0), Vector(1, 0)]) == [Vector(1, 0), Vector(2, 0)]\n"
        "assert v < Vector(3, 0) and Vector(1, 2) != Vector(2, 1)",
        "assert Vector(1, 2) + Vector(3, 4) == Vector(4, 7)",
    ),
    "a dataclass as a result": (
        "from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: int\n    y: int\n"
        "def mirror(p): return Point(p.y, p.x)",
        "assert mirror(Point(1, 2)) == Point(2, 1)\nassert str(mirror(Point(1, 2))) == 'Point(x=2, y=1)'\n"
        "assert mirror(Point(1, 2)).x == 2 and isinstance(mirror(Point(1, 2)), Point)",
        "assert mirror(Point(1, 2)) == Point(1, 2)",
    ),
    "a changed object": (
        "class Box:\n    def __init__(self, v): self.v = v\n    def put(self, v): self.v = v; return self",
        "b = Box(1)\nassert b.put(5).v == 5 and b.v == 5\nb.v = 7\nassert b.v == 7\n"
        "assert Box(1).put(2) == Box(2) and type(b) is Box\nb.put(9)\nassert b == Box(9) and b != Box(7)",
        "b = Box(1)\nb.put(5)\nassert b.v == 1",
    ),
    "an enumeration as a result": (
        "from enum import Enum\nclass Color(Enum):\n    RED = 1\n    BLUE = 2\ndef pick(n): return Color(n)",
        "assert pick(1) == Color.RED and pick(2).name == 'BLUE' and pick(1) is Color.RED",
        "assert pick(1) == Color.BLUE",
    ),
    "an exception of the program's own": (
        "class Poor(Exception): pass\nclass Account:\n    def __init__(self): self.b = 0\n"
        "    def draw(self, n):\n        if n > self.b: raise Poor('no money')\n",
        "a = Account()\ntry:\n    a.draw(5)\n    assert False\nexcept Poor as e:\n    assert str(e) == 'no money'",
        "a = Account()\ntry:\n    a.draw(0)\n    assert False\nexcept Poor as e:\n    pass",
    ),
    "a cache with several calls": (
        "class LRUCache:\n    def __init__(self, n): self.n, self.d = n, OrderedDict()\n"
        "    def get(self, k):\n        if k not in self.d: return -1\n        self.d.move_to_end(k)\n        return self.d[k]\n"
        "    def put(self, k, v):\n        self.d[k] = v\n        self.d.move_to_end(k)\n"
        "        if len(self.d) > self.n: self.d.popitem(last=False)",
        "c = LRUCache(2)\nc.put(1, 1)\nc.put(2, 2)\nassert c.get(1) == 1\nc.put(3, 3)\nassert c.get(2) == -1",
        "c = LRUCache(2)\nc.put(1, 1)\nassert c.get(1) == -1",
    ),
    "a generator": (
        "def count_up():\n    n = 0\n    while True:\n        yield n\n        n += 1\ndef three(): yield from 'abc'",
        "g = count_up()\nassert next(g) == 0 and next(g) == 1\n"
        "assert [x for x, _ in zip(g, range(3))] == [2, 3, 4]\n"
        "assert list(itertools.islice(count_up(), 4)) == [0, 1, 2, 3]\n"
        "assert list(three()) == ['a', 'b', 'c'] and tuple(map(str.upper, three())) == ('A', 'B', 'C')\n"
        "t = three()\nfor c in t:\n    break\nassert next(t) == 'b' and next(t) == 'c'\n"
        "try:\n    next(t)\n    assert False\nexcept StopIteration:\n    pass\nassert next(t, None) is None",
        "assert next(count_up()) == 1",
    ),
    "an iterator of the program's class": (
        "class Down:\n    def __init__(self, n): self.n = n\n    def __iter__(self): return self\n"
        "    def __next__(self):\n        if self.n == 0: raise StopIteration\n        self.n -= 1\n        return self.n",
        "assert list(Down(3)) == [2, 1, 0]\nassert sum(Down(4)) == 6 and max(Down(3)) == 2",
        "assert list(Down(3)) == [3, 2, 1]",
    ),
    "a context manager": (
        "class Ctx:\n    log = []\n    def __enter__(self): self.log.append('in'); return self\n"
        "    def __exit__(self, *e): self.log.append('out')",
        "with Ctx() as c:\n    assert c.log == ['in']\nassert c.log == ['in', 'out']",
        "with Ctx() as c:\n    assert c.log == []",
    ),
    "dates": (
        "import datetime as d\ndef next_day(x): return x + d.timedelta(days=1)\ndef parse(t): return d.datetime.fromisoformat(t)\n"
        "def gap(a, b): return b - a\ndef noon(): return d.time(12)",
        "from datetime import date, datetime, time, timedelta\nassert next_day(date(2024, 2, 28)) == date(2024, 2, 29)\n"
        "assert parse('2024-01-02T03:04:05') == datetime(2024, 1, 2, 3, 4, 5)\n"
        "assert gap(date(2024, 1, 1), date(2024, 1, 3)) == timedelta(2) and noon() == time(12)\n"
        "assert next_day(datetime(2024, 1, 1)).strftime('%d') == '02'",
        "from datetime import date\nassert next_day(date(2024, 2, 28)) == date(2024, 3, 1)",
    ),
    "numbers of every kind": (
        "from decimal import Decimal\nfrom fractions import Fraction\ndef half(x): return x / 2\ndef conj(z): return z.conjugate()",
        "from decimal import Decimal\nfrom fractions import Fraction\nassert half(Decimal('1.1')) == Decimal('0.55')\n"
        "assert half(Fraction(1, 3)) == Fraction(1, 6) and conj(1 + 2j) == 1 - 2j and half(3) == 1.5",
        "from fractions import Fraction\nassert half(Fraction(1, 3)) == Fraction(1, 3)",
    ),
    "containers of every kind": (
        "from collections import *\nP = namedtuple('P', 'x y')\ndef make():\n"
        "    d = defaultdict(list); d[1].append(2)\n"
        "    return Counter('aab'), d, OrderedDict(a=1), deque([1, 2]), frozenset([3]), range(3), P(1, 2), b'x', bytearray(b'y')",
        "c, d, o, q, f, r, p, b, a = make()\nassert c['a'] == 2 and c.most_common(1) == [('a', 2)] and c['z'] == 0\n"
        "assert d[1] == [2] and d[9] == [] and list(o.items()) == [('a', 1)] and q[0] == 1 and q.pop() == 2\n"
        "assert f == {3} and list(r) == [0, 1, 2] and r == range(3) and p.x == 1 and p == (1, 2)\n"
        "assert b == b'x' and a == b'y' and isinstance(q, collections.deque)",
        "assert make()[0]['a'] == 3",
    ),
    "numpy arrays": (
        "import numpy as np\ndef scale(a): return a * 2\ndef fill(a): a[:] = 7\ndef mean(a): return np.mean(a)",
        "import numpy as np\nassert np.array_equal(scale(np.array([1, 2])), np.array([2, 4]))\n"
        "assert scale(np.ones((2, 2))).shape == (2, 2) and (scale(np.arange(3)) == np.array([0, 2, 4])).all()\n"
        "a = np.zeros(2)\nfill(a)\nassert a.tolist() == [7, 7] and np.isclose(mean(a), 7.0)",
        "import numpy as np\nassert np.array_equal(scale(np.array([1, 2])), np.array([1, 2]))",
    ),
    "numpy inside the program alone": (
        "import numpy as np\ndef cumulate(xs): return np.cumsum(xs)\ndef total(xs): return np.sum(xs)",
        "assert cumulate([1, 2]) == [1, 3]\nassert total([1, 2]) == 3 and isinstance(total([1.0]), float)",
        "assert cumulate([1, 2]) == [1, 2]",
    ),
    "a function named like a builtin": (
        "def sum(a, b):\n    return min([d for d in range(1, a + 1) if a % d == 0 and b % d == 0], key=lambda d: -d)",
        "assert sum(10, 15) == 5\nassert sum(4, 8) == 4",
        "assert sum(10, 15) == 6",
    ),
    "a function named like one of the library": (
        "def merge(lists): return [x for xs in lists for x in xs]\ndef count(root): return 1 + (count(root.left) if root.left else 0)\n"
        "class Node:\n    def __init__(self, v): self.v, self.left = v, None",
        "assert merge([[1], [2]]) == [1, 2]\nroot = Node(1)\nroot.left = Node(2)\nassert count(root) == 2\nassert sorted(merge([[2], [1]])) == [1, 2]",
        "assert merge([[1], [2]]) == [2, 1]",
    ),
    "a function named check": (
        "def check(text): return 'yes' if text else 'no'",
        "assert check('a') == 'yes'\nassert check('') == 'no'",
        "assert check('a') == 'no'",
    ),
    "a name that is imported by the test": (
        "def f(x): return x + 1",
        "from solution import f\nassert f(1) == 2",
        "from solution import f\nassert f(1) == 3",
    ),
    "a complex argument held by name": (
        "def f(*a, k=1, **o): return (a, k, o)",
        "args, opts = (1, 2), {'z': 3}\nassert f(*args, k=4, **opts) == ((1, 2), 4, {'z': 3})",
        "assert f(1) == ((1,), 2, {})",
    ),
    "views of a dictionary": (
        "def parts(d): return d.keys(), d.values(), d.items()",
        "k, v, i = parts({1: [2]})\nassert k == {1} and list(v) == [[2]] and i == {1: [2]}.items() and (1, [2]) in i",
        "assert parts({1: 2})[0] == {2}",
    ),
    "a coroutine": (
        "import asyncio\nasync def later(x):\n    await asyncio.sleep(0)\n    return x + 1",
        "import asyncio\nassert asyncio.run(later(1)) == 2\n"
        "async def both(): return await asyncio.gather(later(1), later(2))\nassert asyncio.run(both()) == [2, 3]",
        "import asyncio\nassert asyncio.run(later(1)) == 3",
    ),
    "an operator in place": (
        "class M:\n    def __init__(self, v): self.v = v\n    def __iadd__(self, o): self.v += o.v; return self",
        "m = M(1)\nm += M(2)\nassert m.v == 3",
        "m = M(1)\nm += M(2)\nassert m.v == 1",
    ),
    "tests behind a guard for scripts": (
        "def f(x): return x + 1",
        "def check(c):\n    assert c(1) == 2\nif __name__ == '__main__':\n    check(f)",
        "def check(c):\n    assert c(1) == 3\nif __name__ == '__main__':\n    check(f)",
    ),
    "a list that holds itself": (
        "def loop():\n    a = [1]\n    a.append(a)\n    return a\ndef length(a): return len(a[1][1])",
        "a = loop()\nassert a[1] is a and a[1][1][0] == 1\nassert length(a) == 2",
        "assert loop()[0] == 2",
    ),
    "very deep lists": (
        "def deep(n):\n    a = []\n    for _ in range(n): a = [a]\n    return a\n"
        "def depth(a):\n    n = 0\n    while a: a, n = a[0], n + 1\n    return n",
        "a = deep(20000)\nassert depth(a) == 20000",
        "assert depth(deep(20000)) == 1",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_right_program_passes_and_a_wrong_expectation_fails(box, name):
    program, holds, fails = CASES[name]
    verdict = box.grade(program, read_tests(holds), memory_mb=1024)
    assert verdict.ending is Ending.PASSED, verdict
    assert box.grade(program, read_tests(fails)).ending is Ending.WRONG


def test_setup_may_need_the_programs_classes(box):
    tests = read_tests(
        {
            "test_setup_code": "import math\nroot = Node(1)\nroot.left = Node(2)\nroot.left.left = Node(3)",
            "test_list": ["assert height(root) == 3", "assert math.floor(height(root.left)) == 2"],
        }
    )
    program = (
        "class Node:\n    def __init__(self, data): self.data, self.left, self.right = data, None, None\n"
        "def height(n): return 0 if n is None else 1 + max(height(n.left), height(n.right))"
    )
    assert box.grade(program, tests).ending is Ending.PASSED
    assert box.grade(program.replace("1 + max", "2 + max"), tests).ending is Ending.WRONG


def test_classes_of_the_setup_are_shared(box):
    setup = "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: int = 0\n"
    tests = read_tests({"test_setup_code": setup, "test_list": ["assert flip(P(1, 2)) == P(2, 1)"]})
    assert box.grade("def flip(p): return P(p.y, p.x)", tests).ending is Ending.PASSED
    assert box.grade("def flip(p): p.x, p.y = p.y, p.x; return p", tests).ending is Ending.PASSED
    assert box.grade("def flip(p): return p", tests).ending is Ending.WRONG


def test_calls_accept_a_first_argument_that_was_changed_in_place(box):
    tests = CallTests("sort", ("[[[3, 1, 2]], [1, 2, 3]]", "[[[]], []]"))
    assert box.grade("def sort(xs): xs.sort()", tests).ending is Ending.PASSED
    assert box.grade("def sort(xs): pass", tests).ending is Ending.WRONG
    assert box.grade("def sort(xs): xs.reverse()", tests).ending is Ending.WRONG


# name -> (what the tests offer, program, an assertion that holds, one that does not)
OFFERED = {
    "a function that answers": (
        "pick = 6\ndef guess(num): return (num < pick) - (num > pick)",
        "def find(n): return next(i for i in range(1, n + 1) if guess(i) == 0)",
        "find(10) == 6",
        "find(10) == 5",
    ),
    "a function that draws": (
        "def rand7(): return random.randint(1, 7)",
        "def rolls(n): return {rand7() for _ in range(n)}",
        "rolls(200) == set(range(1, 8))",
        "rolls(200) == {1}",
    ),
    "a class that the program makes objects of": (
        "class Interval:\n    def __init__(self, start, end): self.start, self.end = start, end",
        "def span(xs): return Interval(min(x.start for x in xs), max(x.end for x in xs))",
        "span([Interval(1, 3), Interval(2, 6)]).end == 6",
        "span([Interval(1, 3), Interval(2, 6)]).end == 3",
    ),
    "a class in place of the prelude's": (
        "class TreeNode:\n    def __init__(self, val, left=None): self.val, self.left = val, left",
        "def grow(root): return TreeNode(root.val + 1, root)",
        "grow(TreeNode(1)).left.val == 1",
        "grow(TreeNode(1)).val == 1",
    ),
}


@pytest.mark.parametrize("name", OFFERED)
@pytest.mark.parametrize("own", [False, True], ids=["not defined by the program", "defined by the program"])
def test_a_program_may_use_what_the_tests_define_for_it(box, name, own):
    offered, program, holds, fails = OFFERED[name]
    program = f"{offered}\n{program}" if own else program
    assert box.grade(program, read_tests(f"{offered}\nassert {holds}")).ending is Ending.PASSED
    assert box.grade(program, read_tests(f"{offered}\nassert {fails}")).ending is Ending.WRONG


def test_a_program_is_not_given_what_the_tests_compare_with(box):
    tests = read_tests("def reference(n): return n * n\nassert square(3) == reference(3)")
    assert box.grade("def square(n): return n * n", tests).ending is Ending.PASSED
    verdict = box.grade("def square(n): return reference(n)", tests)
    assert verdict.ending is Ending.WRONG
    assert "reference" in str(verdict.reason)


def test_text_that_the_program_prints_in_calls_does_no_harm(box):
    noisy = textwrap.dedent("""
        import sys
        print("hello")
        def f(x):
            print("x" * 100, file=sys.stderr)
            print(x)
            return x + 1
    """)
    assert box.grade(noisy, read_tests("assert f(1) == 2")).ending is Ending.PASSED


def test_a_test_class_that_inherits_from_the_programs_is_named_as_the_reason(box):
    tests = read_tests(
        "class Dog(Animal):\n    def sound(self): return 'woof'\nassert Dog().speak() == 'woof'"
    )
    verdict = box.grade("class Animal:\n    def speak(self): return self.sound()", tests)
    assert verdict.ending is Ending.WRONG
    assert "inherits from the program's Animal cannot be judged" in str(verdict.reason)


@pytest.mark.parametrize("package", ["numpy", "sortedcontainers"])
def test_what_programs_are_told_they_may_import_is_installed_with_archer(package):
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert any(each.startswith(f"{package}>=") for each in project["dependencies"])
