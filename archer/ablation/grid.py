"""A grid of runs: what its YAML file says, and its cases, each configured before the first one starts.

shared            overrides of every case
baseline          overrides of the case that the others are compared with, or the name of one of the cases
axes              KEY: [value, ...] or NAME: {label: [override, ...], ...}; every combination is a case
cases             name: [override, ...]; further cases beside the combinations
seeds             [seed, ...]; everything above is trained with each of them, and compared seed by seed
controls          case: other case that it is compared with, beside the baseline; with seeds
keep_checkpoints  false: a finished case gives its checkpoints back to the disk
"""

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from archer.config.compose import compose
from archer.config.root import TrainConfig
from archer.errors import ArcherError

BASELINE = "baseline"
KEYS = ("shared", "baseline", "axes", "cases", "seeds", "controls", "keep_checkpoints")
SEEDED = ("actor_rollout_ref.rollout.seed", "data.seed")  # what a seed of the grid sets
OWNED = (  # every case has its own
    "trainer.default_local_dir",
    "trainer.influence_trace.output_dir",
    "trainer.entropy_trace.output_dir",
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")


@dataclass(frozen=True)
class Case:
    """One run of a grid."""

    name: str
    own: tuple[str, ...]
    """The overrides that tell it from the other cases."""
    variant: str = ""
    """Of a grid with seeds: what is trained, whatever the seed. Otherwise the name itself."""
    seed: int | None = None


@dataclass(frozen=True)
class RunGrid:
    """The cases of a grid file, the baseline first; with seeds all cases of one seed before the next."""

    name: str
    shared: tuple[str, ...]
    cases: tuple[Case, ...]
    baseline: str | None
    keep_checkpoints: bool
    seeds: tuple[int, ...] = ()
    controls: tuple[tuple[str, str], ...] = ()
    """Pairs of a variant and its control."""
    file: str | None = None
    """Name of its file; None for a shipped grid."""


@dataclass(frozen=True)
class PlannedCase:
    """A case with all its overrides, in the order in which they apply."""

    name: str
    own: tuple[str, ...]
    variant: str
    seed: int | None
    overrides: tuple[str, ...]
    config: TrainConfig


def load_grid(given: str, seeds: Sequence[int] = ()) -> RunGrid:
    """Read a grid file, or the shipped grid of that name; `seeds` take the place of the file's."""
    folder = resources.files("archer.conf") / "ablation"
    shipped = {entry.name.removesuffix(".yaml"): entry for entry in folder.iterdir()}
    if given in shipped:
        return parse_grid(given, shipped[given].read_text(encoding="utf-8"), seeds)
    path = Path(given)
    if not path.is_file():
        raise ArcherError(
            f"{given} is neither a grid file nor a shipped grid. Shipped: {', '.join(sorted(shipped))}. "
            f"Relative paths start at {Path.cwd()}."
        )
    return replace(parse_grid(path.stem, path.read_text(encoding="utf-8"), seeds), file=path.name)


def parse_seeds(text: str) -> tuple[int, ...]:
    """The seeds of `0,1,5` or `100-107`."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()) or int(last) < int(first):
            raise ArcherError(f"--seeds {text}: write numbers and ranges, as in --seeds 0,3 or 100-107.")
        found += range(int(first), int(last) + 1)
    return tuple(dict.fromkeys(found))


def seeds_text(seeds: Sequence[int]) -> str:
    """The shortest that `parse_seeds` reads as these: `100-107`, or `0,1,5`."""
    run = len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if run else ",".join(map(str, seeds))


def parse_grid(name: str, text: str, seeds: Sequence[int] = ()) -> RunGrid:
    """Return the grid that YAML text describes; `seeds` take the place of its own."""
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
    baseline = tree.get(BASELINE)
    if baseline is not None and not isinstance(baseline, str):
        cases.append(Case(BASELINE, _overrides(baseline, f"Grid {name}: baseline")))
    axes = [_axis(name, str(axis), values) for axis, values in _mapping(tree, "axes", name).items()]
    for points in itertools.product(*axes) if axes else ():
        own = tuple(override for point in points for override in point.own)
        cases.append(Case("-".join(point.name for point in points), own))
    for label, listed in _mapping(tree, "cases", name).items():
        cases.append(Case(str(label), _overrides(listed, f"Grid {name}: case {label}")))
    _check_names(name, cases)
    named = baseline if isinstance(baseline, str) else None if baseline is None else BASELINE
    controls = tuple((str(one), str(other)) for one, other in _mapping(tree, "controls", name).items())
    _check_mentioned(name, cases, named, controls)
    chosen = tuple(seeds) or _seeds(name, tree.get("seeds", []))
    every = [_seeded(case, seed) for seed in chosen for case in cases] or [
        replace(case, variant=case.name) for case in cases
    ]
    shared = _overrides(tree.get("shared", []), f"Grid {name}: shared")
    return RunGrid(name, shared, tuple(every), named, keep, chosen, controls)


def plan_cases(grid: RunGrid, extra: Sequence[str], config_dir: Path | None) -> tuple[PlannedCase, ...]:
    """Compose every case: shared overrides, the case's own, then `extra` of the command line."""
    planned = []
    for case in grid.cases:
        overrides = (*grid.shared, *case.own, *extra)
        for override in overrides:
            if override.split("=", 1)[0].lstrip("+~") in OWNED:
                raise ArcherError(
                    f"case {case.name}: {override} cannot be set: every case has a folder of its own below "
                    "--out, which holds its traces too."
                )
        try:
            config = compose(overrides, config_dir)
        except ArcherError as error:
            raise ArcherError(f"case {case.name} cannot be configured: {error}") from error
        planned.append(PlannedCase(case.name, case.own, case.variant, case.seed, overrides, config))
    return tuple(planned)


def choose(cases: Sequence[PlannedCase], only: Sequence[str]) -> tuple[PlannedCase, ...]:
    """The cases that `only` names, by name or by pattern (`*-identity`); all of them where it is empty.

    The name of a variant stands for its cases of all seeds.
    """

    def chosen(case: PlannedCase, pattern: str) -> bool:
        return fnmatchcase(case.name, pattern) or fnmatchcase(case.variant, pattern)

    patterns = [part for given in only for part in given.split(",") if part]
    for pattern in patterns:
        if not any(chosen(case, pattern) for case in cases):
            names = ", ".join(dict.fromkeys(case.variant for case in cases))
            raise ArcherError(f"--only {pattern}: no case is called that. Cases: {names}.")
    return tuple(case for case in cases if not patterns or any(chosen(case, p) for p in patterns))


def short(override: str) -> str:
    """`output_function=log_prob` of the whole override: what a reader of the case's name needs."""
    key, value = override.split("=", 1)
    return f"{key.rsplit('.', 1)[-1]}={value}"


def _axis(grid: str, name: str, values: Any) -> list[Case]:
    """The points of an axis, as if it were the only one."""
    if isinstance(values, list) and values:
        return [Case(_label(name, value), (f"{name}={_hydra_value(value)}",)) for value in values]
    if isinstance(values, dict) and values:
        where = f"Grid {grid}: axis {name}, "
        return [Case(str(label), _overrides(listed, f"{where}{label}")) for label, listed in values.items()]
    raise ArcherError(
        f"Grid {grid}: axis {name} must be a list of values, or a mapping from labels to lists of overrides."
    )


def _label(key: str, value: Any) -> str:
    """`per_prompt` for a word; `lr_0.0001` for anything that says nothing alone."""
    if isinstance(value, str) and _NAME.fullmatch(value) and value[0].isalpha():
        return value
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", f"{key.rsplit('.', 1)[-1]}_{_hydra_value(value)}").strip("_")


def _hydra_value(value: Any) -> str:
    """Write a YAML value as the right side of an override."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list):
        return "[" + ",".join(map(_hydra_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_hydra_value(item)}" for key, item in value.items()) + "}"
    return str(value)


def _overrides(listed: Any, where: str) -> tuple[str, ...]:
    if not isinstance(listed, list) or any(not isinstance(item, str) or "=" not in item for item in listed):
        raise ArcherError(f"{where} must be a list of overrides, as in [key=value].")
    return tuple(listed)


def _mapping(tree: dict[str, Any], key: str, grid: str) -> dict[str, Any]:
    value = tree.get(key) or {}
    if not isinstance(value, dict):
        raise ArcherError(f"Grid {grid}: {key} must be a mapping, got {type(value).__name__}.")
    return value


def _seeds(grid: str, given: Any) -> tuple[int, ...]:
    if not isinstance(given, list) or any(type(seed) is not int or seed < 0 for seed in given):
        raise ArcherError(f"Grid {grid}: seeds must be a list of numbers, as in [0, 1, 2]; got {given!r}.")
    if len(set(given)) < len(given):
        raise ArcherError(f"Grid {grid}: every seed must stand there once; got {given}.")
    return tuple(given)


def _seeded(case: Case, seed: int) -> Case:
    own = (*case.own, *(f"{key}={seed}" for key in SEEDED))
    return Case(f"{case.name}-seed{seed}", own, case.name, seed)


def _check_mentioned(
    grid: str, cases: list[Case], baseline: str | None, controls: Sequence[tuple[str, str]]
) -> None:
    names = [case.name for case in cases]
    mentioned = [("baseline", baseline)] if baseline is not None else []
    for key, name in [*mentioned, *(("controls", name) for pair in controls for name in pair)]:
        if name not in names:
            raise ArcherError(f"Grid {grid}: {key} names {name!r}, which is no case: {', '.join(names)}.")


def _check_names(grid: str, cases: list[Case]) -> None:
    if not cases:
        raise ArcherError(f"Grid {grid} has no case: give it axes, cases or a baseline.")
    seen = set()
    for case in cases:
        if not _NAME.fullmatch(case.name):
            raise ArcherError(
                f"Grid {grid}: {case.name!r} cannot name a folder. Names have letters, digits and _ . + -, "
                "at most 100 of them; give long axes their own labels."
            )
        if case.name in seen:
            raise ArcherError(f"Grid {grid}: two cases are called {case.name!r}; give the axis labels.")
        seen.add(case.name)
