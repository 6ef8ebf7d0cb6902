"""How many right programs pass, and how many wrong ones: gold solutions, stubs, and programs that lie.

    python benchmarks/code_gold.py DATA.jsonl ... --workers 2

Each file holds problems with solutions, in any form that `archer data check-gold` reads. For every problem
these are judged:

- its own solution
- stubs of what the tests name: no body, constants, the first argument back
- liars: what the tests name returns an object that says yes to everything, or empties its arguments, and
  every other name that the tests use (modules, builtins, helpers) is redefined to say yes as well

A stub may be right for every test of a problem: such problems are listed to be looked at.
"""

import argparse
import ast
import time
from pathlib import Path

from archer.data.gold import GoldRow, check_gold, read_gold
from archer.rewards import RewardConfig, RewardRequest, RewardScorer
from archer.rewards.code import AssertTests, CallTests
from archer.rewards.code.record import read_tests
from archer.rewards.config import CodeConfig
from archer.rewards.sandbox.testcode import read_test_code

STUBS = ("pass", "return 0", "return True", "return []", "return ''", "return a[0] if a else None")
YES = """
class Yes:
    def __call__(self, *a, **k): return self
    def __getattr__(self, name): return self
    def __iter__(self): return iter(())
    def __index__(self): return 1
    def __float__(self): return 1.0
    def __hash__(self): return 1
    def __str__(self): return "yes"
    __int__ = __len__ = __index__
for _name in "eq lt le gt ge bool contains instancecheck".split():
    setattr(Yes, f"__{_name}__", lambda self, *a: True)
for _name in "add sub mul truediv mod pow radd rsub rmul abs neg round getitem".split():
    setattr(Yes, f"__{_name}__", lambda self, *a: self)
Yes.__ne__ = lambda self, other: False
yes = Yes()
"""
LIES = (
    "return yes",
    "for each in a:\n        if hasattr(each, 'clear'): each.clear()\n    return a[0] if a else yes",
)


def names_of(request: RewardRequest) -> tuple[set[str], set[str], str]:
    """(what the tests name, what else they use, the name of the method of `Solution`)."""
    tests = read_tests(request.ground_truth)
    if isinstance(tests, CallTests):
        return {tests.function}, set(), tests.function
    if not isinstance(tests, AssertTests):
        return set(), set(), ""
    code = read_test_code(tests.source, tests.setup, tests.entry_point)
    tree = ast.parse(f"{tests.setup}\n{tests.source}")
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    methods = [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Solution()"
    ]
    return set(code.entries), used - code.entries, (methods or [""])[0]


def program(request: RewardRequest, body: str, lie: bool) -> str:
    """Every name under test with this body, as a function, a class or a method."""
    entries, others, method = names_of(request)
    # `each` and its like are Python's own in a program that is to run at all.
    safe = {name for name in others if name.isidentifier() and name not in ("setattr", "iter", "hasattr")}
    lines = [YES if lie else ""]
    for name in sorted(entries):
        if name == "Solution":
            own = body.replace("a[0] if a", "a[1] if a[1:]").replace("in a:", "in a[1:]:")
            head = (
                f"class Solution:\n    def {method or 'f'}(*a, **k):\n        a += (*k.values(),)\n        "
            )
            lines.append(head + own.replace("\n", "\n    "))
        else:
            lines.append(f"def {name}(*a, **k):\n    a += (*k.values(),)\n    {body}")
    if lie:
        lines += [f"{name} = yes" for name in sorted(safe)]
    return "\n".join(lines)


def passes(rows: list[GoldRow], bodies: tuple[str, ...], lie: bool, workers: int) -> dict[int, list[str]]:
    """Judge wrong programs; return those that pass, by row."""
    asked = [(row, body) for row in rows if row.request is not None for body in bodies]
    requests = [
        RewardRequest(
            row.request.data_source,
            f"````python\n{program(row.request, body, lie)}\n````",
            row.request.ground_truth,
        )
        for row, body in asked
        if row.request is not None
    ]
    config = RewardConfig(num_workers=workers, code=CodeConfig(test_timeout_s=2.0))
    with RewardScorer(config) as scorer:
        results = scorer.score(requests)
    found: dict[int, list[str]] = {}
    for (row, body), result in zip(asked, results, strict=True):
        if result.correct:
            found.setdefault(row.index, []).append(body)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    print("| file | problems | gold passed | stubs passed | liars passed | ms per program |")
    print("|---|---|---|---|---|---|")
    notes = []
    for path in options.data:
        rows = read_gold(path, None, None, None)
        start = time.perf_counter()
        verdicts = check_gold(rows, options.workers, 6.0, lambda done: None)
        each_ms = (time.perf_counter() - start) * 1000 / len(rows)
        gold = sum(verdict.passed for verdict in verdicts)
        stubs = passes(rows, STUBS, False, options.workers)
        liars = passes(rows, LIES, True, options.workers)
        counts = [
            f"{gold} ({gold / len(rows):.1%})",
            f"{sum(map(len, stubs.values()))} of {len(rows) * len(STUBS)}",
            f"{sum(map(len, liars.values()))} of {len(rows) * len(LIES)}",
        ]
        print(f"| {path.name} | {len(rows)} | {' | '.join(counts)} | {each_ms:.0f} |")
        notes += [
            f"{path.name}, row {verdict.index}: gold {verdict.verdict}: {verdict.reason}"
            for verdict in verdicts
            if not verdict.passed
        ]
        for kind, found in (("stub", stubs), ("liar", liars)):
            notes += [
                f"{path.name}, row {row}: {kind} passed: {body!r}"
                for row, bodies in found.items()
                for body in bodies
            ]
    print(*notes, sep="\n")


if __name__ == "__main__":
    main()
