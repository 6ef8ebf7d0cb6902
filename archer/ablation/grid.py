"""A grid of runs: what its YAML file says, and the cases that come of it.

shared            overrides of every case
baseline          overrides of the case that the others are compared with
axes              KEY: [value, ...] or NAME: {label: [override, ...], ...}; every combination is a case
cases             name: [override, ...]; further cases beside the combinations
keep_checkpoints  false: a finished case gives its checkpoints back to the disk
"""

import itertools
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from archer.errors import ArcherError

BASELINE = "baseline"
KEYS = ("shared", "baseline", "axes", "cases", "keep_checkpoints")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")


@dataclass(frozen=True)
class Case:
    """One run of a grid."""

    name: str
    own: tuple[str, ...]
    """The overrides that tell it from the other cases."""


@dataclass(frozen=True)
class Grid:
    """The cases of a grid file, the baseline first."""

    name: str
    shared: tuple[str, ...]
    cases: tuple[Case, ...]
    baseline: str | None
    keep_checkpoints: bool = True


def shipped_grids() -> dict[str, str]:
    """Return the grids that come with Archer: name -> the text of its file."""
    folder = resources.files("archer.conf") / "ablation"
    found = {entry.name.removesuffix(".yaml"): entry for entry in folder.iterdir()}
    return {name: found[name].read_text(encoding="utf-8") for name in sorted(found)}


def load_grid(given: str) -> Grid:
    """Read a grid file, or the shipped grid of that name."""
    shipped = shipped_grids()
    if given in shipped:
        return parse_grid(given, shipped[given])
    path = Path(given)
    if not path.is_file():
        raise ArcherError(
            f"{given} is neither a grid file nor a shipped grid. Shipped: {', '.join(shipped)}. "
            f"Relative paths start at {Path.cwd()}."
        )
    return parse_grid(path.stem, path.read_text(encoding="utf-8"))


def parse_grid(name: str, text: str) -> Grid:
    """Return the grid that YAML text describes."""
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ArcherError(f"Grid {name} is not YAML: {error}") from error
    if not isinstance(tree, dict):
        raise ArcherError(f"Grid {name} must be a mapping with some of {', '.join(KEYS)}.")
    for key in tree:
        if key not in KEYS:
            raise ArcherError(f"Grid {name}: there is no key {key!r}; the keys are {', '.join(KEYS)}.")
    keep = tree.get("keep_checkpoints", True)
    if not isinstance(keep, bool):
        raise ArcherError(f"Grid {name}: keep_checkpoints must be true or false, got {keep!r}.")
    cases = []
    if "baseline" in tree:
        cases.append(Case(BASELINE, _overrides(tree["baseline"], f"grid {name}: baseline")))
    cases += _combinations(name, _mapping(tree, "axes", name))
    for label, listed in _mapping(tree, "cases", name).items():
        cases.append(Case(str(label), _overrides(listed, f"grid {name}: case {label}")))
    _check_names(name, cases)
    return Grid(
        name=name,
        shared=_overrides(tree.get("shared", []), f"grid {name}: shared"),
        cases=tuple(cases),
        baseline=BASELINE if "baseline" in tree else None,
        keep_checkpoints=keep,
    )


def _combinations(grid: str, axes: dict[str, Any]) -> list[Case]:
    if not axes:
        return []
    points = [_axis(grid, str(name), values) for name, values in axes.items()]
    return [
        Case("-".join(label for label, _ in chosen), tuple(o for _, overrides in chosen for o in overrides))
        for chosen in itertools.product(*points)
    ]


def _axis(grid: str, name: str, values: Any) -> list[tuple[str, tuple[str, ...]]]:
    """The points of an axis: its label in the case's name, and its overrides."""
    if isinstance(values, list) and values:
        return [(_label(name, value), (f"{name}={hydra_value(value)}",)) for value in values]
    if isinstance(values, dict) and values:
        return [
            (str(label), _overrides(listed, f"grid {grid}: axis {name}, {label}"))
            for label, listed in values.items()
        ]
    raise ArcherError(
        f"Grid {grid}: axis {name} must be a list of values, or a mapping from labels to lists of overrides."
    )


def _label(key: str, value: Any) -> str:
    """`per_prompt` for a word; `lr_0.0001` for anything that says nothing alone."""
    if isinstance(value, str) and _NAME.fullmatch(value) and value[0].isalpha():
        return value
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", f"{key.rsplit('.', 1)[-1]}_{hydra_value(value)}").strip("_")


def hydra_value(value: Any) -> str:
    """Write a YAML value as the right side of an override."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ",".join(hydra_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{hydra_value(item)}" for key, item in value.items()) + "}"
    return str(value)


def short(override: str) -> str:
    """`output_function=log_prob` of the whole override: what a reader of the case's name needs."""
    key, value = override.split("=", 1)
    return f"{key.rsplit('.', 1)[-1]}={value}"


def _overrides(listed: Any, where: str) -> tuple[str, ...]:
    if not isinstance(listed, list) or any(not isinstance(item, str) or "=" not in item for item in listed):
        raise ArcherError(f"{where[0].upper()}{where[1:]} must be a list of overrides, as in [key=value].")
    return tuple(listed)


def _mapping(tree: dict[str, Any], key: str, grid: str) -> dict[str, Any]:
    value = tree.get(key) or {}
    if not isinstance(value, dict):
        raise ArcherError(f"Grid {grid}: {key} must be a mapping, got {type(value).__name__}.")
    return value


def _check_names(grid: str, cases: list[Case]) -> None:
    if not cases:
        raise ArcherError(f"Grid {grid} has no case: give it axes, cases or a baseline.")
    seen = set()
    for case in cases:
        if not _NAME.fullmatch(case.name):
            raise ArcherError(
                f"Grid {grid}: {case.name!r} cannot name a folder. Names have letters, digits and _ . + -, "
                "at most 100 of them; give long axes labels of their own."
            )
        if case.name in seen:
            raise ArcherError(f"Grid {grid}: two cases are called {case.name!r}; give the axis labels.")
        seen.add(case.name)
