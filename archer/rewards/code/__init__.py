"""Rewards for code: the tests of a problem, in the three forms that data sets have, and a choice of them.

record.py  reads them from the ground truth of a data row
grade.py   judges a program by them, in the sandbox
"""

import ast
import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class ScriptCase:
    """What a script reads and what it must print."""

    stdin: str
    stdout: str


@dataclass(frozen=True)
class ScriptTests:
    """The program is a script: each test is a run of it on an input."""

    cases: tuple[ScriptCase, ...]

    @property
    def count(self) -> int:
        """How many tests there are."""
        return len(self.cases)


@dataclass(frozen=True)
class CallTests:
    """The program defines a function, or a method of `Solution`: each test is a call."""

    function: str
    cases: tuple[str, ...]  # each as JSON: `[[argument, ...], expected]`
    unwrap: bool = False  # whether every expected value stands in a list of its own, as in some data sets

    @property
    def count(self) -> int:
        """How many tests there are."""
        return len(self.cases)


@dataclass(frozen=True)
class AssertTests:
    """Python code with assertions about what the program defines: each assertion is a test."""

    source: str
    count: int  # of assertions; one in a loop counts once here, and as often as it runs when it does
    setup: str = ""  # code that both the tests and the program may build on, such as HumanEval's prompt
    entry_point: str | None = None  # the function that `check` in the source is to be called with


Tests = ScriptTests | CallTests | AssertTests


def sample_tests(tests: Tests, at_most: int | None) -> Tests:
    """Return at most so many of the tests, in their order; which ones is decided by the tests alone.

    Of assertions, those are counted that stand by themselves in the code or in its `check`; what stands in
    loops and helpers is kept.
    """
    if at_most is None or tests.count <= at_most:
        return tests
    if not isinstance(tests, AssertTests):
        chosen_cases: Any = _choose(tests.cases, at_most, tests)
        return replace(tests, cases=chosen_cases)
    tree = ast.parse(tests.source)
    bodies = [
        tree.body,
        *(each.body for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "check"),
    ]
    plain = [each for body in bodies for each in body if isinstance(each, ast.Assert) and not is_idle(each)]
    fixed = tests.count - len(plain)
    chosen = set(map(id, _choose(tuple(plain), max(1, at_most - fixed), tests)))
    for body in bodies:
        body[:] = [each for each in body if not isinstance(each, ast.Assert) or id(each) in chosen]
    return replace(tests, source=ast.unparse(tree), count=fixed + len(chosen))


def _choose(items: tuple[_Item, ...], count: int, tests: Tests) -> tuple[_Item, ...]:
    """Return `count` items in their order: those whose place, hashed with the tests, comes first."""
    content = hashlib.sha256(json.dumps(asdict(tests), sort_keys=True).encode()).digest()
    places = sorted(range(len(items)), key=lambda place: hashlib.sha256(content + b"%d" % place).digest())
    return tuple(items[place] for place in sorted(places[:count]))


def is_idle(node: ast.Assert) -> bool:
    """Tell whether an assertion is `assert True`, which says nothing."""
    return isinstance(node.test, ast.Constant) and bool(node.test.value)
