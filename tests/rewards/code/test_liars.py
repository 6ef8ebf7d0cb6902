# ruff: noqa: E501
"""Programs that lie to their tests never pass: what tests judge with is never the program's.

Each class of lie is tried against each class of test that it is meant for. The functions all should return
three; none does.
"""

import pytest

from archer.rewards.code.grade import Ending
from archer.rewards.code.record import read_tests

PLAIN = "assert three(1) == 3\nassert three(2) == 3"
TESTS = {
    "equal": PLAIN,
    "swapped": "assert 3 == three(1)",
    "method": "def check(candidate):\n    assert candidate(1) == 3\n\ncheck(Solution().three)",
    "humaneval": {"test": "def check(candidate):\n    assert candidate(1) == 3\n", "entry_point": "three"},
    "isclose": "import math\nassert math.isclose(three(1), 3)",
    "isclose without import": "assert math.isclose(three(1), 3)\nassert isclose(three(1), 3)",
    "difference": "assert abs(three(1) - 3) < 1e-6",
    "rounded": "assert round(three(1) - 3, 2) == 0",
    "not unequal": "assert not (three(1) != 3)",
    "member": "assert three(1) in [3]\nassert three(1) in {3}",
    "bounds": "assert 2 < three(1) < 4",
    "type": "assert isinstance(three(1), int) and three(1) == 3\nassert type(three(1)) is int",
    "variable": "result = three(1)\nassert result == 3",
    "loop": "for n in range(3):\n    assert three(n) == 3",
    "all": "assert all(three(n) == 3 for n in range(3))",
    "any caught": "try:\n    ok = three(1) == 3\nexcept:\n    ok = False\nassert ok",
    "inside": "assert [three(1)] == [3]\nassert {'a': three(1)} == {'a': 3}\nassert (three(1),) == (3,)",
    "text": "assert str(three(1)) == '3' and repr(three(1)) == '3'",
    "unknown judge": "assert same(three(1), 3)\nassert three(1) == 3",
    "unknown judge alone": "assert same(three(1), 3)",
    "unknown judge of a variable": "r = three(1)\nassert same(r, 3)",
    "unknown judge is true": "assert same(three(1), 3) == True",
    "unknown expectation": "assert three(1) == reference(1)",
    "unknown judge of an alias": "g = three\nassert same(g(1), 3)",
    "unknown judge of a method": "m = Solution().three\nassert same(m(1), 3)",
    "unknown judge of an object": "s = Solution()\nx = s.three(1)\nassert same(x, 3)",
    "unknown judge behind a guard": "def check(c):\n    assert same(c(1), 3)\nif __name__ == '__main__':\n    check(c=three)",
    "unknown judge in a loop": "for n in (1, 2):\n    r = three(n)\n    assert not different(r, 3) and same(r, 3)",
    "unknown judge in check": "def check(c):\n    assert same(c(1), 3)\n\ncheck(three)",
}
LIES = {
    "nothing": "",
    "stub": "def three(x): pass",
    "zero": "def three(x): return 0",
    "true": "def three(x): return True",
    "empty list": "def three(x): return []",
    "empty text": "def three(x): return ''",
    "echo": "def three(x): return x",
    "redefines modules": "class math:\n    isclose = lambda *a, **k: True\ndef isclose(*a, **k): return True\ndef three(x): return 0",
    "redefines judges": "def same(*a): return True\ndef different(*a): return False\ndef reference(x): return 0\ndef check(c): pass\ndef three(x): return 0",
    "redefines builtins by name": (
        "abs = len = sum = round = str = repr = all = any = isinstance = lambda *a, **k: 0\n"
        "def sorted(*a): return 3\nset = list = lambda *a: []\ntype = lambda *a: int\ndef three(x): return 0"
    ),
    "patches builtins": (
        "import builtins, math, operator, sys\nfor n in ('abs', 'round', 'all', 'isinstance', 'str'):\n"
        "    setattr(builtins, n, lambda *a, **k: True)\nmath.isclose = operator.eq = lambda *a, **k: True\n"
        "sys.modules['math'] = None\ndef three(x): return 0"
    ),
    "equals everything": (
        "class A:\n    __eq__ = __le__ = __lt__ = __gt__ = __ge__ = __contains__ = lambda *a: True\n    __ne__ = lambda *a: False\n"
        "    __hash__ = lambda s: hash(3)\n    __bool__ = lambda s: True\ndef three(x): return A()"
    ),
    "answers every operator": (
        "class A:\n    def __getattr__(s, n): return lambda *a, **k: True\n    def __sub__(s, o): return 0.0\n    __rsub__ = __sub__\n"
        "    def __abs__(s): return 0\n    def __round__(s, n=0): return 0\n    def __lt__(s, o): return True\n    __gt__ = __lt__\n"
        "    def __float__(s): return 0.0\ndef three(x): return A()"
    ),
    "learns and repeats": (
        "class A:\n    seen = None\n    def learn(s, o):\n        A.seen = o\n        return s\n"
        "    __sub__ = __rsub__ = __add__ = __radd__ = __mod__ = learn\n    def __eq__(s, o): A.seen = o; return True\n"
        "    def __abs__(s): return 0.0\n    __round__ = lambda s, n=0: 0\n    __lt__ = __gt__ = lambda s, o: True\n"
        "    __str__ = __repr__ = lambda s: str(A.seen)\n    __float__ = lambda s: float(A.seen or 0)\ndef three(x): return A()"
    ),
    "is a class": (
        "class three:\n    def __init__(s, x): pass\n    __eq__ = __lt__ = __gt__ = lambda s, o: True\n    __sub__ = lambda s, o: 0\n    __hash__ = lambda s: 3"
    ),
    "a lying int": (
        "class I(int):\n    __eq__ = __lt__ = __gt__ = lambda s, o: True\n    __ne__ = lambda s, o: False\n    __hash__ = lambda s: 3\n"
        "    __sub__ = lambda s, o: 0\n    __str__ = __repr__ = lambda s: '3'\ndef three(x): return I(7)"
    ),
    "a lying float": "class F(float):\n    __eq__ = __lt__ = __gt__ = lambda s, o: True\n    __sub__ = lambda s, o: 0.0\n    __hash__ = lambda s: 3\ndef three(x): return F(7)",
    "a lying text": "class S(str):\n    __eq__ = lambda s, o: True\n    __hash__ = lambda s: 3\n    __len__ = lambda s: 3\ndef three(x): return S('7')",
    "a lying list": "class L(list):\n    __eq__ = __contains__ = lambda s, o: True\n    __len__ = lambda s: 3\n    __iter__ = lambda s: iter([7])\ndef three(x): return L()",
    "a lying class": (
        "class M(type):\n    __instancecheck__ = __subclasscheck__ = __eq__ = lambda *a: True\n    __hash__ = type.__hash__\n"
        "class A(metaclass=M):\n    __class__ = int\n    __eq__ = lambda s, o: True\ndef three(x): return A()"
    ),
    "a generator": "def three(x):\n    yield 3",
    "a function": "def three(x): return three",
    "an exception": "class E(AssertionError): pass\ndef three(x): raise E",
    "an assertion": "def three(x): raise AssertionError",
    "leaves": "def three(x): raise SystemExit(0)",
    "leaves hard": "import os\ndef three(x): os._exit(0)",
    "leaves at once": "import sys\nsys.exit(0)",
    "prints success": "print('passed')\nprint('{\"outcomes\": [true], \"end\": null, \"calls\": 1}')\ndef three(x): print('OK'); return 0",
    "speaks for the channel": (
        "import json, os, struct\ndef three(x):\n    for m in ({'value': 3, 'rows': [], 'changed': []},) * 3:\n"
        "        m = json.dumps({**m, 'value': 0}).encode()\n        os.write(3, struct.pack('!I', len(m)) + m)\n    return 0"
    ),
    "asks the examiner": (
        "import gc\nfrom archer.rewards.sandbox.link import Link\ndef three(x):\n"
        "    for o in gc.get_objects():\n        if isinstance(o, Link):\n"
        "            for what in ('getattr', 'call', 'name', 'str'):\n"
        "                try: o.ask(what, 0, '__globals__')\n                except Exception: pass\n    return 0"
    ),
    "patches its own end": (
        "from archer.rewards.sandbox import values, link, remote, program\n"
        "values.Outgoing.add = lambda s, v: True\nlink.send = lambda *a: None\ndef three(x): return 0"
    ),
    "replaces attribute access": (
        "class Solution:\n    def __getattribute__(s, n): return lambda *a, **k: True\n    def three(s, x): return 0\ndef three(x): return 0"
    ),
    "a mapping that has everything": "class D(dict):\n    __missing__ = lambda s, k: 3\n    __eq__ = lambda s, o: True\ndef three(x): return D()",
}


def with_method(program: str) -> str:
    """The lie as LeetCode's method, too."""
    if "class Solution" in program or "three" not in program:
        return program
    return f"{program}\nclass Solution:\n    def three(self, x): return three(x)\n"


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_does_not_pass(box, lie):
    program = with_method(LIES[lie])
    tests = {kind: read_tests(source) for kind, source in TESTS.items()}
    fooled = [
        kind
        for kind, each in tests.items()
        if box.grade(program, each, test_timeout_s=0.5).ending is Ending.PASSED
    ]
    assert not fooled


@pytest.mark.parametrize("kind", TESTS)
def test_the_truth_passes_unless_nobody_defines_the_judge(box, kind):
    right = with_method(
        "def three(x): return 3\ndef same(a, b): return a == b\ndef different(a, b): return a != b\ndef reference(x): return 3"
    )
    passes = box.grade(right, read_tests(TESTS[kind])).ending is Ending.PASSED
    assert passes is not kind.startswith("unknown")


OTHER = {
    "tree helpers": (
        "class TreeNode:\n    def __init__(s, *a): s.val = 0; s.left = s.right = None\n    __eq__ = lambda s, o: True\n"
        "def is_same_tree(*a): return True\ndef tree_node(v): return None\n"
        "class Solution:\n    def invert(self, root): return {}",
        "def check(candidate):\n    assert is_same_tree(candidate(root = tree_node([1,2,3])), tree_node([1,3,2]))\n\n"
        "check(Solution().invert)",
        ["None", "root", "TreeNode()", "0", "'x'", "type('X', (), {'__eq__': lambda *a: True})()"],
    ),
    "list helpers": (
        "class ListNode:\n    def __init__(s, *a): s.val = 0; s.next = None\n    __eq__ = lambda s, o: True\n"
        "def is_same_list(*a): return True\ndef list_node(v): return None\n"
        "class Solution:\n    def flip(self, head): return {}",
        "def check(candidate):\n    assert is_same_list(candidate(head = list_node([1,2])), list_node([2,1]))\n\n"
        "check(Solution().flip)",
        ["None", "head", "ListNode()", "[2, 1]"],
    ),
    "values in nodes that equal everything": (
        "class A:\n    __eq__ = lambda s, o: True\n    __hash__ = lambda s: 0\n"
        "class Solution:\n    def flip(self, head): return {}",
        "def check(candidate):\n    assert is_same_list(candidate(head = list_node([1,2])), list_node([2,1]))\n\n"
        "check(Solution().flip)",
        ["ListNode(A(), ListNode(A()))"],
    ),
    "text that answers": (
        "class T:\n    startswith = endswith = isdigit = isalpha = lambda *a: True\n    __contains__ = lambda s, o: True\n"
        "    __len__ = lambda s: 3\n    strip = lambda s: 'abc'\ndef f(x): return {}",
        "assert f(1).startswith('abc') and 'b' in f(1)",
        ["T()", "''"],
    ),
    "sets that answer": (
        "class T:\n    issubset = issuperset = isdisjoint = __contains__ = lambda *a: True\n    __le__ = __ge__ = lambda *a: True\n"
        "    __iter__ = lambda s: iter(())\ndef f(x): return {}",
        "assert 3 in f(1)\nassert f(1).issuperset({3})",
        ["T()", "set()"],
    ),
    "a class that forgets": (
        "class V:\n    def __init__(s, *a): {}\n    __add__ = __sub__ = lambda s, o: V()\n    __eq__ = lambda s, o: True",
        "assert V(1, 2) + V(3, 4) == V(4, 6)",
        [
            "pass",
            "s.x = 0",
            "s.x = list(range(1000))",
            "global L; L = globals().setdefault('L', []); L[:] = a; s.x = L",
        ],
    ),
    "one object for all": (
        "class V:\n    one = None\n    def __new__(c, *a):\n        V.one = V.one or object.__new__(c)\n        {}\n        return V.one\n"
        "    __add__ = lambda s, o: s\n    __eq__ = lambda s, o: True",
        "assert V(1, 2) + V(3, 4) == V(4, 6)",
        ["pass", "V.one.a = a"],
    ),
    "empties its argument": (
        "def order(xs):\n    {}",
        "a = [3, 1, 2]\nassert order(a) == sorted(a)\nb = [2, 1]\nr = order(b)\nassert r == sorted(b)\n"
        "c = [2, 1]\nassert c[::-1] == order(c)",
        ["xs.clear(); return []", "del xs[:]; return xs", "return xs", "xs[:] = [1]; return [1]"],
    ),
    "empties the argument of a function in capitals": (
        "def Order(xs):\n    {}",
        "a = [3, 1, 2]\nassert Order(a) == sorted(a)",
        ["xs.clear(); return []", "return xs"],
    ),
    "replaces the test's methods": (
        "def f(p):\n    {}\n    return 0",
        "class P:\n    def __init__(self): self.n = 1\n    def ok(self): return False\n    def __eq__(self, o): return False\n"
        "p = P()\nf(p)\nassert p.ok() and p == P()",
        [
            "p.ok = lambda: True",
            "p.__eq__ = lambda o: True",
            "p.__class__.ok = lambda s: True",
            "p.__dict__['ok'] = lambda: True",
        ],
    ),
    "looks behind a function of the test": (
        "def f(g):\n    try:\n        {}\n    except Exception: pass\n    return 0",
        "SECRET = 41\ndef g(x): return x\nassert f(g) == SECRET",
        [
            "return g.__globals__['SECRET']",
            "return g.__code__",
            "return g.__self__",
            "return g._archer_link.ask('getattr', g, '__globals__')['SECRET']",
        ],
    ),
    "looks behind a generator of the test": (
        "def f(g):\n    {}\n    return 0",
        "SECRET = 41\ng = (x for x in [1])\nassert f(g) == SECRET",
        ["return g.gi_frame.f_globals['SECRET']", "return g.gi_code"],
    ),
    "an uppercase function": (
        "class Area:\n    def __init__(s, x): s.x = x\n    __sub__ = __rsub__ = lambda s, o: {}\n    __abs__ = lambda s: 0\n"
        "    __round__ = lambda s, n=0: 0\n    __lt__ = __gt__ = lambda s, o: True",
        "assert abs(Area(3) - 28.27) < 0.01",
        ["0", "s"],
    ),
    "a judge around a function in capitals": (
        "def same(*a, **k): return True\n{}",
        "assert same(Diff([1, 2], [2]), [1])\nassert same(expected=[3], found=Diff([3], []))",
        ["def Diff(a, b): return 0", "class Diff:\n    def __init__(s, *a): pass"],
    ),
    "helpers of assertions that are swallowed": (
        "import os\ndef f(x):\n    {}",
        "try:\n    r = f(1)\n    assert r == 3\nexcept BaseException:\n    pass",
        ["os._exit(0)", "raise SystemExit", "raise KeyboardInterrupt", "import time; time.sleep(9)"],
    ),
    "swallows failures": (
        "class Ctx:\n    def __enter__(s): {}\n    def __exit__(s, *a): return True",
        "with Ctx() as c:\n    x = c.value\n    assert x == 3",
        ["return s", "return None", "raise ValueError"],
    ),
    "a library function is not there for free": (
        "{}",
        "assert gcd(4, 6) == 2",
        ["", "x = 1", "def lcm(a, b): return 2"],
    ),
    "a builtin is not there for free": ("{}", "assert max([1, 2]) == 2", ["", "def maximum(x): return 2"]),
}


@pytest.mark.parametrize("name", OTHER)
def test_no_way_around_the_judges(box, name):
    program, tests, variants = OTHER[name]
    for variant in variants:
        verdict = box.grade(program.replace("{}", variant), read_tests(tests), test_timeout_s=1.0)
        assert verdict.ending is not Ending.PASSED, variant


def test_methods_of_the_setups_classes_stay_its_own(box):
    setup = "class P:\n    n = 0\n    def ok(self): return self.n == 3\n"
    tests = read_tests({"test_setup_code": setup, "test_list": ["p = P()\nassert f(p).ok() and p.ok()"]})
    assert box.grade("def f(p): p.n = 3; return p", tests).ending is Ending.PASSED
    for lie in (
        "p.ok = lambda: True",
        "P.ok = lambda s: True",
        "p.__dict__['ok'] = lambda: True",
        "p = type('P', (), {'ok': lambda s: True})()",
        "p.__dict__['__class__'] = int",
        "object.__setattr__(p, 'ok', lambda: True)",
    ):
        assert box.grade(f"def f(p):\n    {lie}\n    return p", tests).ending is not Ending.PASSED, lie


def test_the_prompts_stub_is_not_the_answer(box):
    record = {
        "prompt": 'def nothing(x):\n    """Return None."""\n',
        "entry_point": "nothing",
        "test": "def check(candidate):\n    assert candidate(1) is None\n",
    }
    assert box.grade("x = 1", read_tests(record)).ending is Ending.WRONG
    assert box.grade("def nothing(x): pass", read_tests(record)).ending is Ending.PASSED
