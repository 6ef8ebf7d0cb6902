"""The rooms of the package and the order they stand in: imports go downwards only, without cycles."""

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "archer"
FLOORS = (
    ("errors",),
    ("files", "settings", "sign"),
    ("plugins",),
    ("algorithms", "influence", "trace", "rewards", "tracking"),
    ("data", "diagnosis"),
    ("generation",),
    ("config", "conf"),
    ("runs",),
    ("evaluation",),
    ("training",),
    ("engines.local", "engines.verl"),
    ("preflight", "verify", "ablation", "viewer", "imports", "integrations"),
    ("train",),
    ("cli",),
    ("__main__",),
)
"""From the ground up. A room may import rooms of lower floors and itself."""

FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def modules() -> dict[str, Path]:
    """Full name -> file of every module of the package."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """(module, line) of everything that a file imports from the package, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield (whole if whole in MODULES else node.module), node.lineno
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno


def room(module: str) -> str:
    """The room of a module: `archer.engines.local.trainer` -> `engines.local`."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2]) if parts[:1] == ["engines"] else (parts or [""])[0]


MODULES = modules()
EDGES = [
    (module, target, line)
    for module, path in MODULES.items()
    for target, line in imported(path)
    if target.startswith("archer.") and room(target) != room(module)
]


def test_every_room_has_its_floor():
    assert {room(module) for module in MODULES} - {""} == set(FLOOR)


def upward(edges: list[tuple[str, str, int]]) -> list[str]:
    """A sentence for each import that does not go down."""
    return [
        f"{module}:{line} imports {target}, but {room(module)} stands on floor {FLOOR[room(module)]} and "
        f"{room(target)} on floor {FLOOR[room(target)]}"
        for module, target, line in edges
        if FLOOR[room(target)] >= FLOOR[room(module)]
    ]


@pytest.mark.parametrize("name", sorted(FLOOR))
def test_a_room_imports_only_what_lies_below_it(name):
    wrong = upward([edge for edge in EDGES if room(edge[0]) == name])
    assert not wrong, "\n".join(wrong)


def test_an_edge_that_goes_up_or_sideways_is_named():
    down = ("archer.training.loop", "archer.runs.folder", 3)
    up = ("archer.rewards.scorer", "archer.engines.local.engine", 7)
    sideways = ("archer.trace.writer", "archer.influence.config", 5)
    first, second = upward([down, up, sideways])
    assert first.startswith("archer.rewards.scorer:7 imports archer.engines.local.engine")
    assert second.startswith("archer.trace.writer:5 imports archer.influence.config")


def test_only_what_trains_knows_the_local_engine():
    """The command that chooses an engine, and the check that takes single steps of it."""
    knows = {module for module, target, _ in EDGES if room(target) == "engines.local"}
    assert knows == {"archer.train", "archer.verify.one_step"}


def test_no_module_is_its_own_import_however_far_round():
    graph: dict[str, list[str]] = {
        module: [target for target, _ in imported(path) if target in MODULES]
        for module, path in MODULES.items()
    }
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        if module in trail:
            circle = [*trail[trail.index(module) :], module]
            edges = "\n".join(f"{a} -> {b}" for a, b in pairwise(circle))
            raise AssertionError(f"imports go round:\n{edges}")
        if module not in done:
            for target in graph[module]:
                visit(target, (*trail, module))
            done.add(module)

    for module in graph:
        visit(module, ())
