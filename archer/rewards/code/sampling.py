"""Choosing some of a problem's tests: the same ones for every response, in every process and run."""

import ast
import hashlib
import json
from dataclasses import asdict, replace
from typing import TypeVar

from archer.rewards.code.problem import AssertTests, CallTests, ScriptTests, Tests
from archer.rewards.code.record import is_idle

_Item = TypeVar("_Item")


def sample_tests(tests: Tests, at_most: int | None) -> Tests:
    """Return at most so many of the tests, in their order; which ones is decided by the tests alone.

    Of assertions, those are counted that stand by themselves in the code or in its `check`; what stands in
    loops and helpers is kept.
    """
    if at_most is None or tests.count <= at_most:
        return tests
    if isinstance(tests, ScriptTests):
        return replace(tests, cases=_choose(tests.cases, at_most, tests))
    if isinstance(tests, CallTests):
        return replace(tests, cases=_choose(tests.cases, at_most, tests))
    return _sample_asserts(tests, at_most)


def _sample_asserts(tests: AssertTests, at_most: int) -> AssertTests:
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
