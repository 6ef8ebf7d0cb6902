"""verl's configuration of a run: its defaults, then what Archer's settings mean there, then the user's own.

verl's YAML is read from the installed package, where Hydra finds it without importing verl. What nobody
would obey, or what cannot be traced inside verl, is refused before anything starts. Every process reads
Archer's own configuration back from the part of the tree that it is given.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from archer.config.names import advice, nearest
from archer.config.parse import configuration_error, flat, key_names, parse
from archer.config.root import TrainConfig
from archer.engines.verl.combinations import check_combinations
from archer.engines.verl.translate import external_libraries, put, translate
from archer.engines.verl.verl_keys import rule_of
from archer.engines.verl.verl_values import value_problem

RAY = "ray_kwargs.ray_init"
"""Section of any argument of `ray.init`: verl hands them on as they are."""


def verl_settings(config: TrainConfig) -> DictConfig:
    """Return the whole configuration that verl is given, resolved and checked."""
    base = verl_defaults()
    check_keys(config)
    tree = OmegaConf.merge(base, translate(config, base), obeyed(config.engine.verl))
    tree.actor_rollout_ref.model.external_lib = external_libraries(config)
    assert isinstance(tree, DictConfig)
    if tree.critic.enable:
        _let_critic_read(tree.critic)
    check_combinations(config, tree)
    return tree


def _let_critic_read(critic: DictConfig) -> None:
    """Put the critic's micro-batches where verl's V1 trainer reads them, which is not where verl has them."""
    critic.ppo_infer_max_token_len_per_gpu = critic.ppo_max_token_len_per_gpu
    critic.fsdp.use_dynamic_bsz = critic.use_dynamic_bsz
    critic.fsdp.micro_batch_size_per_gpu = critic.ppo_micro_batch_size_per_gpu
    critic.fsdp.infer_micro_batch_size_per_gpu = critic.ppo_micro_batch_size_per_gpu


def verl_defaults() -> DictConfig:
    """Return the configuration of verl's own `main_ppo`, interpolations unresolved; a copy, to be changed."""
    return deepcopy(_composed_by_verl())


@cache
def _composed_by_verl() -> DictConfig:
    """Compose verl's files once in a process: that takes a second, a copy a tenth of it."""
    package = find_spec("verl")
    assert package is not None and package.origin is not None, "versions are checked before settings"
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(Path(package.origin).parent / "trainer" / "config"), version_base="1.3"):
        tree = compose("ppo_trainer")
    OmegaConf.set_struct(tree, False)
    return tree


def check_keys(config: TrainConfig) -> None:
    """Raise one ArcherError for all settings given for verl that nobody would obey."""
    problems = [*verl_key_problems(_composed_by_verl(), config.engine.verl)]
    if problems:
        raise configuration_error(problems)


def verl_key_problems(base: DictConfig, own: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the settings given for verl: unknown ones, and those that have no effect here."""
    archers = set(key_names(TrainConfig))
    for key, value in flat(own).items():
        rule = rule_of(key)
        if key in archers:
            yield f"engine.verl.{key}: set {key}={value} instead, which both engines understand"
        elif key.startswith(f"{RAY}."):
            yield from _ray_problem(key, value)
        elif not exists(base, key):
            tree: Any = OmegaConf.to_container(base, resolve=False)
            yield f"{key}: neither Archer nor verl has such a setting.{advice(key, [*archers, *flat(tree)])}"
        elif rule is None:
            yield f"{key}: it is not known here what verl does with this setting: leave it out"
        elif rule.kind == "refused" and (rule.chosen or not same(value, default_of(base, key))):
            yield f"{key}={value}: {rule.reason}"
        elif rule.kind == "passed" and (expected := value_problem(key, value, default_of(base, key))):
            yield f"{key}={value!r}: {expected}"


def _ray_problem(key: str, value: Any) -> Iterator[str]:
    """What is wrong with an argument of `ray.init`; those that begin with an underscore are Ray's own."""
    name = key.removeprefix(f"{RAY}.").partition(".")[0]
    known = [known for known in signature(import_module("ray").init).parameters if known != "kwargs"]
    if name not in known and not name.startswith("_"):
        meant = nearest(f"{RAY}.{name}", [f"{RAY}.{each}" for each in known])
        yield f"{key}: ray.init has no such argument.{f' Did you mean {meant}?' if meant else ''}"
    elif expected := value_problem(key, value, None):
        yield f"{key}={value!r}: {expected}"


def obeyed(own: Mapping[str, Any]) -> dict[str, Any]:
    """The settings given for verl without those that are refused, which may be given with verl's default."""
    tree: dict[str, Any] = {}
    for key, value in flat(own).items():
        rule = rule_of(key)
        if rule is not None and rule.kind == "passed":
            put(tree, key, value)
    return tree


def default_of(base: DictConfig, key: str) -> Any:
    """verl's default of a setting, resolved; None where it has none."""
    try:
        value = OmegaConf.select(base, key)
    except OmegaConfBaseException:  # an interpolation into what is missing
        return None
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def same(value: Any, default: Any) -> bool:
    """Whether a value is the default; nothing, False and empty are one."""
    return value == default or (not value and not default)


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


def _dataclass_fields(node: DictConfig) -> set[str]:
    if "_target_" not in node:
        return set()
    module, _, name = node["_target_"].rpartition(".")
    cls = getattr(import_module(module), name)
    return {field.name for field in fields(cls)} if is_dataclass(cls) else set()


def archer_config(section: DictConfig) -> TrainConfig:
    """Return the configuration that `translate` put into `trainer` and `actor_rollout_ref`."""
    return _parsed(OmegaConf.to_yaml(section.archer))


@lru_cache(maxsize=1)
def _parsed(text: str) -> TrainConfig:
    tree: Any = OmegaConf.to_container(OmegaConf.create(text))
    return parse(TrainConfig, tree)
