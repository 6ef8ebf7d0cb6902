"""verl's configuration of a run: its defaults, then what Archer's settings mean there, then the user's own.

verl's YAML is read from the installed package, where Hydra finds it without importing verl.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from archer.config.parse import key_names
from archer.config.root import TrainConfig
from archer.engines.verl.cpu import ROLLOUT as CPU_ROLLOUT
from archer.engines.verl.refusals import check_traceable
from archer.engines.verl.translate import CHOSEN_BY_ARCHER, on_cpu, translate
from archer.errors import ArcherError

OPEN = ("ray_kwargs.ray_init.",)
"""Sections that take any key: verl hands them on as they are."""


def verl_settings(config: TrainConfig) -> DictConfig:
    """Return the whole configuration that verl is given, resolved and checked."""
    base = verl_defaults()
    own = config.engine.verl
    problems = [*foreign_problems(base, own)]
    if problems:
        raise ArcherError("The configuration has a problem:\n" + "\n".join(f"  {p}" for p in problems))
    tree = OmegaConf.merge(base, translate(config, base), own)
    assert isinstance(tree, DictConfig)
    check_traceable(config, tree)
    return tree


def rollout_name(config: TrainConfig) -> str:
    """The backend that samples responses."""
    if on_cpu(config):
        return CPU_ROLLOUT
    return OmegaConf.select(OmegaConf.create(config.engine.verl), "actor_rollout_ref.rollout.name") or "vllm"


def verl_defaults() -> DictConfig:
    """Return the configuration of verl's own `main_ppo`, interpolations unresolved."""
    package = find_spec("verl")
    assert package is not None and package.origin is not None, "versions are checked before settings"
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(Path(package.origin).parent / "trainer" / "config"), version_base="1.3"):
        tree = compose("ppo_trainer")
    OmegaConf.set_struct(tree, False)
    return tree


def foreign_problems(base: DictConfig, own: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the settings given for verl: unknown ones, and those that Archer's own set."""
    archers = set(key_names(TrainConfig))
    known = [*archers, *leaf_names(OmegaConf.to_container(base, resolve=False))]
    for key, value in items(own):
        if key in archers:
            yield f"engine.verl.{key}: set {key}={value} instead, which both engines understand"
        elif key in CHOSEN_BY_ARCHER:
            yield f"{key}: {CHOSEN_BY_ARCHER[key]}"
        elif not key.startswith(OPEN) and not exists(base, key):
            close = difflib.get_close_matches(key, known, n=1, cutoff=0.7)
            last = key.rsplit(".", 1)[-1]
            hint = [name for name in known if name.rsplit(".", 1)[-1] == last][:1] or close
            meant = f" Did you mean {hint[0]}?" if hint else ""
            yield f"{key}: neither Archer nor verl has such a setting.{meant}"


def exists(base: DictConfig, key: str) -> bool:
    """Whether verl's configuration has a key.

    Sections are YAML of verl's, some of which leave out fields of the dataclass they are read into
    (`_target_`). Dictionaries that are empty there take any key.
    """
    node: Any = base
    for name in key.split("."):
        if node is None or (isinstance(node, DictConfig) and len(node) == 0):
            return True
        if not isinstance(node, DictConfig):
            return False
        if name not in node and name not in _dataclass_fields(node):
            return False
        node = node._get_node(name) if name in node else None
        node = None if isinstance(node, DictConfig) and node._is_none() else node
    return True


def items(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (full name, value) of every leaf."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from items(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def leaf_names(tree: Any) -> list[str]:
    """Full names of all leaves."""
    return [name for name, _ in items(tree)]


def _dataclass_fields(node: DictConfig) -> set[str]:
    if "_target_" not in node:
        return set()
    module, _, name = node["_target_"].rpartition(".")
    cls = getattr(import_module(module), name)
    return {field.name for field in fields(cls)} if is_dataclass(cls) else set()
