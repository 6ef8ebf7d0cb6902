"""verl's configuration of a run: its defaults, then what Archer's settings mean there, then the user's own.

verl's YAML is read from the installed package, where Hydra finds it without importing verl. What cannot be
traced inside verl is refused before anything starts. Every process reads Archer's own configuration back from
the part of the tree that it is given.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from archer.config.names import advice
from archer.config.parse import configuration_error, flat, key_names, parse
from archer.config.root import TrainConfig
from archer.engines.verl.translate import (
    CPU_ROLLOUT,
    external_libraries,
    put,
    ranks,
    translate,
)
from archer.engines.verl.verl_keys import rule_of
from archer.training.credit import TokenCredit

HEAD = "lm_head"
OPEN = ("ray_kwargs.ray_init.",)
"""Sections that take any key: verl hands them on as they are."""


def verl_settings(config: TrainConfig) -> DictConfig:
    """Return the whole configuration that verl is given, resolved and checked."""
    base = verl_defaults()
    check_keys(config)
    tree = OmegaConf.merge(base, translate(config, base), obeyed(config.engine.verl))
    tree.actor_rollout_ref.model.external_lib = external_libraries(config)
    assert isinstance(tree, DictConfig)
    check_traceable(config, tree)
    return tree


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
        elif not key.startswith(OPEN) and not exists(base, key):
            tree: Any = OmegaConf.to_container(base, resolve=False)
            yield f"{key}: neither Archer nor verl has such a setting.{advice(key, [*archers, *flat(tree)])}"
        elif rule is None:
            yield f"{key}: it is not known here what verl does with this setting: leave it out"
        elif rule.kind == "refused" and (rule.chosen or not same(value, default_of(base, key))):
            yield f"{key}={value}: {rule.reason}"


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


def check_traceable(config: TrainConfig, tree: DictConfig) -> None:
    """Raise one ArcherError for all settings of verl's that the wanted traces cannot live with."""
    problems = [*_always(config, tree)]
    if config.trainer.influence_trace.enable:
        problems += _influence(config, tree)
    if config.algorithm.token_credit.mode != "none":
        problems += _credit(config, tree)
    if config.trainer.entropy_trace.enable or config.trainer.influence_trace.enable:
        problems += _entropy(tree)
    if problems:
        raise configuration_error(problems)


def _always(config: TrainConfig, tree: DictConfig) -> Iterator[str]:
    shared, devices = config.sequence_parallel_size, ranks(config)
    if devices % shared:
        yield (
            f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={shared}: {devices} devices "
            "(trainer.nnodes times trainer.n_gpus_per_node) cannot be divided by it"
        )
    if shared > 1 and not tree.actor_rollout_ref.model.use_remove_padding:
        yield (
            f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={shared} needs packed batches: install "
            "flash-attn, or set actor_rollout_ref.model.use_remove_padding=True"
        )
    for name in external_libraries(config):
        if not _can_be_imported(name):
            yield (
                f"actor_rollout_ref.model.external_lib={name}: there is no such module; put the folder that "
                "holds it on PYTHONPATH"
            )
    strategy = OmegaConf.select(tree, "actor_rollout_ref.actor.strategy")
    if strategy not in ("fsdp", "fsdp2"):
        yield f"actor_rollout_ref.actor.strategy={strategy}: Archer trains with fsdp2 (or fsdp)"
    model = tree.actor_rollout_ref.model
    if tree.actor_rollout_ref.rollout.name == CPU_ROLLOUT and model.lora_rank > 0 and not model.lora.merge:
        yield (
            f"actor_rollout_ref.model.lora_rank={model.lora_rank}: the rollout {CPU_ROLLOUT} takes whole "
            "weights only; leave actor_rollout_ref.model.lora.merge at True"
        )
    if tree.trainer.device == "cpu" and strategy != "fsdp2":
        yield "actor_rollout_ref.actor.strategy=fsdp does not run on a CPU: leave it at fsdp2"


def _can_be_imported(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _entropy(tree: DictConfig) -> Iterator[str]:
    if OmegaConf.select(tree, "algorithm.rollout_correction.bypass_mode"):
        yield (
            "algorithm.rollout_correction.bypass_mode=True skips the pass that computes entropies, so "
            "nothing can be traced: set it to False, or trainer.entropy_trace.enable and "
            "trainer.influence_trace.enable to False"
        )


def _credit(config: TrainConfig, tree: DictConfig) -> Iterator[str]:
    chosen = config.algorithm.token_credit
    credit = TokenCredit(chosen, seed=0)
    which = f"algorithm.token_credit.mode={chosen.mode}"
    if OmegaConf.select(tree, "algorithm.rollout_correction.bypass_mode"):
        yield (
            f"{which} reads the policy's log-probs and entropies, which "
            "algorithm.rollout_correction.bypass_mode=True does not compute: set it to False"
        )
    if credit.scores is None:
        return
    instead = "or choose a mode that reads no influence (spare_confident, entropy_top, neg_log_prob)"
    if credit.scores.anchors != "contrast":
        yield "algorithm.token_credit.anchors=accepted needs engine=local: leave it at contrast"
    if config.sequence_parallel_size > 1:
        yield (
            f"{which} compares responses, whose tokens "
            f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={config.sequence_parallel_size} spreads "
            f"over ranks: set it to 1, {instead}"
        )
    if tree.actor_rollout_ref.model.use_fused_kernels and credit.scores.of == "head":
        yield (
            f"{which} reads the head's logits, which actor_rollout_ref.model.use_fused_kernels=True never "
            f"makes: set it to False, {instead}"
        )
    if tree.actor_rollout_ref.actor.strategy == "fsdp":
        yield (
            f"{which} reads modules, whose weights actor_rollout_ref.actor.strategy=fsdp flattens: leave it "
            f"at fsdp2, {instead}"
        )


def _influence(config: TrainConfig, tree: DictConfig) -> Iterator[str]:
    actor, model = tree.actor_rollout_ref.actor, tree.actor_rollout_ref.model
    instead = "or trainer.influence_trace.enable=False"
    if actor.strategy == "fsdp":
        yield (
            "actor_rollout_ref.actor.strategy=fsdp flattens weights, so influence cannot be traced: "
            f"leave it at fsdp2, {instead}"
        )
    sequence_parallel = config.sequence_parallel_size
    if sequence_parallel > 1:
        yield (
            f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={sequence_parallel} spreads the tokens "
            f"of a response over ranks, which influence tracing does not follow: set it to 1, {instead}"
        )
    entries = config.trainer.influence_trace.module_name_filter
    if model.use_fused_kernels and (not entries or any(entry in HEAD for entry in entries)):
        yield (
            "actor_rollout_ref.model.use_fused_kernels=True multiplies by the head's weights outside of "
            f"their module, so that {HEAD} cannot be traced: take it out of "
            f"trainer.influence_trace.module_name_filter, set use_fused_kernels to False, {instead}"
        )
    if model.tiled_mlp.enabled:
        yield (
            "actor_rollout_ref.model.tiled_mlp.enabled=True runs a layer in pieces and again in the "
            f"backward, which influence tracing does not follow: set it to False, {instead}"
        )
    if actor.fsdp_config.offload_policy:
        yield (
            "actor_rollout_ref.actor.fsdp_config.offload_policy=True keeps weights in CPU memory during "
            "the update, where influence would be scored: use param_offload and optimizer_offload "
            f"instead, {instead}"
        )


def archer_config(section: DictConfig) -> TrainConfig:
    """Return the configuration that `translate` put into `trainer` and `actor_rollout_ref`."""
    return _parsed(OmegaConf.to_yaml(section.archer))


@lru_cache(maxsize=1)
def _parsed(text: str) -> TrainConfig:
    tree: Any = OmegaConf.to_container(OmegaConf.create(text))
    return parse(TrainConfig, tree)
