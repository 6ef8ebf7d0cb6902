"""Names say what a thing is: no two public classes share one, no file has one that says nothing."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "archer"
SAYS_NOTHING = {"parts", "given", "idle", "words", "sums", "growing", "marks", "inside", "foreign"}
SAYS_NOTHING |= {"utils", "misc", "helpers", "common"}


def test_no_two_public_classes_share_a_name():
    homes: dict[str, list[str]] = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(PACKAGE)))
    twice = {name: places for name, places in homes.items() if len(places) > 1}
    assert not twice


def test_no_file_has_a_name_that_says_nothing():
    assert not [path for path in PACKAGE.rglob("*.py") if path.stem in SAYS_NOTHING]


def test_no_file_is_empty_but_the_one_that_hydra_imports():
    sizes = {path.relative_to(PACKAGE).as_posix(): path.stat().st_size for path in PACKAGE.rglob("*.py")}
    assert [name for name, size in sizes.items() if size == 0] == ["conf/__init__.py"]
