"""Settings that change nothing are named, and only those, and only where the user gave them."""

from contextlib import suppress
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml

from archer.algorithms.config import AlgorithmConfig
from archer.config import TrainConfig, compose, recipes
from archer.config.actor import ActorConfig
from archer.config.notes import VERLS_OWN, Condition, conditions, idle_notes, idle_refusals, plugin_settings
from archer.config.overrides import adopt_verl_keys
from archer.config.parse import defaults, key_names, leaves, parse, value_of
from archer.errors import ArcherError
from archer.settings import declaration, default_of

KNOBS = frozenset(key_names(TrainConfig))
ACTOR = "actor_rollout_ref.actor"
INFLUENCE = "trainer.influence_trace"
OVERLONG = "reward.reward_kwargs.overlong_buffer_cfg"
VAL = "actor_rollout_ref.rollout.val_kwargs"

Settings = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A setting, what silences it, what is said then, and what lets it act."""

    knob: str
    value: Any
    idle_where: Settings
    reason: str
    acts_where: Settings


WRITES = {"trainer.entropy_trace.enable": True}
TRACES = {f"{INFLUENCE}.enable": True}
KL_REWARD = {"algorithm.use_kl_in_reward": True}
VALIDATES = {"data.val_files": ["a.jsonl"]}
CASES = (
    Case(f"{ACTOR}.kl_loss_coef", 0.01, {}, "use_kl_loss is False", {f"{ACTOR}.use_kl_loss": True}),
    Case(f"{ACTOR}.kl_loss_type", "mse", {}, "use_kl_loss is False", {f"{ACTOR}.use_kl_loss": True}),
    Case(
        f"{ACTOR}.clip_ratio_c",
        10.0,
        {f"{ACTOR}.policy_loss.loss_mode": "cispo"},
        "policy_loss.loss_mode is cispo; it is read by aspo, dual_token, vanilla",
        {f"{ACTOR}.policy_loss.loss_mode": "aspo"},
    ),
    Case(
        f"{ACTOR}.tau_neg",
        2.0,
        {},
        "policy_loss.loss_mode is vanilla; it is read by sapo",
        {f"{ACTOR}.policy_loss.loss_mode": "sapo"},
    ),
    Case(
        f"{ACTOR}.low_entropy_clip_ratio_low",
        0.3,
        {},
        "policy_loss.loss_mode is vanilla; it is read by dual_token",
        {f"{ACTOR}.policy_loss.loss_mode": "dual_token"},
    ),
    Case(
        f"{ACTOR}.high_entropy_kl_loss_scale_coef",  # of its two reasons the one that leads on
        0.1,
        {},
        "policy_loss.loss_mode is vanilla; it is read by dual_token",
        {f"{ACTOR}.policy_loss.loss_mode": "dual_token", f"{ACTOR}.use_kl_loss": True},
    ),
    Case(
        f"{ACTOR}.ppo_micro_batch_size_per_gpu",
        4,
        {},
        "use_dynamic_bsz is True",
        {f"{ACTOR}.use_dynamic_bsz": False},
    ),
    Case(f"{ACTOR}.data_loader_seed", 1, {}, "shuffle is False", {f"{ACTOR}.shuffle": True}),
    Case(
        f"{ACTOR}.optim.min_lr_ratio",
        0.1,
        {},
        "lr_scheduler_type is constant",
        {f"{ACTOR}.optim.lr_scheduler_type": "cosine"},
    ),
    Case(
        f"{ACTOR}.optim.lr_warmup_steps_ratio",
        0.1,
        {f"{ACTOR}.optim.lr_warmup_steps": 10},
        "lr_warmup_steps is 10",
        {},
    ),
    Case("algorithm.kl_penalty", "mse", {}, "use_kl_in_reward is False", KL_REWARD),
    Case("algorithm.kl_ctrl.kl_coef", 0.1, {}, "algorithm.use_kl_in_reward is False", KL_REWARD),
    Case(
        "algorithm.kl_ctrl.horizon",
        5,
        KL_REWARD,
        "algorithm.kl_ctrl.type is fixed",
        KL_REWARD | {"algorithm.kl_ctrl.type": "adaptive"},
    ),
    Case(
        "algorithm.gamma",
        0.9,
        {},
        "adv_estimator is grpo; it is read by reinforce_plus_plus, gae",
        {"algorithm.adv_estimator": "reinforce_plus_plus"},
    ),
    Case(
        "algorithm.rollout_correction.rollout_is_threshold",
        "3.0",
        {},
        "rollout_is is not set",
        {"algorithm.rollout_correction.rollout_is": "token"},
    ),
    Case(
        "data.gen_batch_size",
        32,
        {},
        "algorithm.filter_groups.enable is False",
        {"algorithm.filter_groups.enable": True},
    ),
    Case(
        "algorithm.filter_groups.max_num_gen_batches",
        3,
        {},
        "algorithm.filter_groups.enable is False",
        {"algorithm.filter_groups.enable": True},
    ),
    Case(f"{OVERLONG}.len", 64, {}, f"{OVERLONG}.enable is False", {f"{OVERLONG}.enable": True}),
    Case(
        f"{OVERLONG}.penalty_factor",
        0.5,
        {f"{OVERLONG}.enable": True},
        f"{OVERLONG}.len is 0",
        {f"{OVERLONG}.enable": True, f"{OVERLONG}.len": 64},
    ),
    Case(f"{OVERLONG}.enable", True, {}, f"{OVERLONG}.len is 0", {f"{OVERLONG}.len": 64}),
    Case(
        "reward.custom_reward_function.name",
        "score",
        {},
        "reward.custom_reward_function.path is not set",
        {"reward.custom_reward_function.path": "mine.py"},
    ),
    Case(
        "reward.custom_kwargs",
        {"scale": 2},
        {},
        "custom_reward_function.path is not set",
        {"reward.custom_reward_function.path": "mine.py"},
    ),
    Case(
        "reward.last_number_fallback",
        True,
        {"reward.custom_reward_function.path": "mine.py"},
        "custom_reward_function.path is mine.py",
        {},
    ),
    Case(
        "reward.code.max_tests",
        3,
        {"reward.custom_reward_function.path": "mine.py"},
        "reward.custom_reward_function.path is mine.py",
        {},
    ),
    Case("data.seed", 1, {"data.shuffle": False}, "shuffle is False", {}),
    Case("trainer.test_freq", 5, {}, "data.val_files is empty", VALIDATES),
    Case(f"{VAL}.n", 4, {}, "data.val_files is empty", VALIDATES),
    Case(f"{VAL}.temperature", 0.6, VALIDATES, "do_sample is False", VALIDATES | {f"{VAL}.do_sample": True}),
    Case("trainer.entropy_trace.write_every", 2, {}, "trainer.entropy_trace.enable is False", WRITES),
    Case(f"{INFLUENCE}.output_dir", "there", {}, f"{INFLUENCE}.enable is False", TRACES),
    Case(
        f"{INFLUENCE}.reg_lambda",
        0.1,
        TRACES | {f"{INFLUENCE}.hessian_mode": "identity"},
        "hessian_mode is identity",
        TRACES,
    ),
    Case(
        f"{INFLUENCE}.max_hessian_dim",
        64,
        TRACES | {f"{INFLUENCE}.projection": "none"},
        "projection is none",
        TRACES,
    ),
    Case(
        f"{INFLUENCE}.proportionality_tolerance",
        0.0,
        TRACES,
        "output_function is training_loss",
        TRACES | {f"{INFLUENCE}.output_function": "log_prob"},
    ),
    Case(
        f"{INFLUENCE}.force_gpu_compute",
        False,
        TRACES,
        "grad_offload_to_cpu is False",
        TRACES | {f"{INFLUENCE}.grad_offload_to_cpu": True},
    ),
    Case(
        f"{INFLUENCE}.grad_offload_to_cpu",
        True,
        TRACES | {"engine.device": "cpu"},
        "engine.device is cpu",
        TRACES,
    ),
    Case(
        "trainer.total_epochs",
        3,
        {"trainer.total_training_steps": 50},
        "total_training_steps is 50",
        {},
    ),
    Case("engine.worker_logs", True, {}, "engine.name is local", {"engine.name": "verl"}),
    Case(
        "algorithm.lam",
        0.95,
        {"engine.name": "verl"},
        "adv_estimator is grpo",
        {"engine.name": "verl", "algorithm.adv_estimator": "gae"},
    ),
    Case(
        "critic.optim.lr",
        1e-5,
        {"engine.name": "verl"},
        "algorithm.adv_estimator is grpo",
        {"engine.name": "verl", "algorithm.adv_estimator": "gae"},
    ),
)


def configured(settings: Settings) -> TrainConfig:
    tree: Settings = defaults(TrainConfig)
    for key, value in settings.items():
        *sections, name = key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value
    return parse(TrainConfig, adopt_verl_keys(TrainConfig, tree))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.knob}-{case.reason}")
def test_a_setting_that_changes_nothing_is_named_with_the_reason_and_one_that_acts_is_not(case):
    idle = configured(case.idle_where | {case.knob: case.value})
    (note,) = idle_notes(idle, {case.knob})
    shown = "{scale:2}" if case.knob == "reward.custom_kwargs" else str(case.value)
    assert note == f"{case.knob}={shown} has no effect: {case.reason}"
    assert idle_notes(configured(case.acts_where | {case.knob: case.value}), {case.knob}) == []


NEEDS = tuple(conditions(TrainConfig()))
KINDS = {name: kind for name, kind, _ in leaves(TrainConfig)}
SETTINGS = {name: setting for name, _, setting in leaves(TrainConfig)}
READERS = dict(plugin_settings(TrainConfig()))
"""Settings that plug-ins declare, each with the table of those plug-ins."""


def choices(name: str) -> list[Any]:
    """What a setting is chosen from."""
    kinds = (KINDS[name], *get_args(KINDS[name]))
    table = declaration(SETTINGS[name]).table
    options = [option for kind in kinds if get_origin(kind) is Literal for option in get_args(kind)]
    return options + list(table.names() if table else ())


@cache
def other_values(name: str) -> tuple[Any, ...]:
    """Some values that a setting accepts, its default not among them."""
    candidates = (*choices(name), True, False, None, 64, 0, 0.5, 0.25, 3, 1.5, "3.0", "hf", ["a"], {"a": 1})
    found = []
    for value in candidates:
        with suppress(ArcherError):
            if value_of(configured({name: value}), name) != default_of(SETTINGS[name]):
                found.append(value)
    return tuple(found)


def holds(need: Condition, config: TrainConfig) -> bool:
    """As a reader of the declaration understands it."""
    value = value_of(config, need.key)
    wanted = None if need.wanted == "None" else yaml.safe_load(need.wanted)
    if need.sign == "<=":
        return value <= wanted
    return {"": bool(value), "=": value == wanted, "!=": value != wanted}[need.sign]


def settings_for(needs: list[Condition], but: Condition | None = None) -> Settings:
    """Settings with which all needs hold but one."""
    return {
        need.key: next(
            value
            for value in (default_of(SETTINGS[need.key]), *other_values(need.key))
            if holds(need, configured({need.key: value})) == (need != but)
        )
        for need in needs
    }


def test_every_need_and_every_switch_names_a_setting():
    """Also inside the sections of the rooms, and with a value that the setting can have."""
    assert len(NEEDS) > 60
    for need in NEEDS:
        assert need.key in KNOBS, f"{need.name} needs {need.key}, which is no setting"
        if need.sign in ("=", "!=") and choices(need.key):
            assert need.wanted in choices(need.key), f"{need.name}: {need.key} is never {need.wanted}"
    named = {need.name.rpartition(".")[0] for need in NEEDS}
    assert {INFLUENCE, OVERLONG, VAL, "reward.code", "data", "algorithm.kl_ctrl"} <= named


ONE_VALUE = ("algorithm.filter_groups.metric",)


@pytest.mark.parametrize(
    "need",
    [need for need in NEEDS if need.name not in ONE_VALUE],
    ids=lambda need: f"{need.name}-{need.key}{need.sign}{need.wanted}",
)
def test_a_declared_need_silences_its_setting_and_where_all_hold_it_acts(need):
    together = [other for other in NEEDS if other.name == need.name]
    given = {need.name: other_values(need.name)[0]}
    if need.name in READERS:
        table = READERS[need.name]
        given[table.key] = next(n for n in table.names() if last(need.name) in table.find(n).reads())
    assert idle_notes(configured(settings_for(together) | given), {need.name}) == []
    (note,) = idle_notes(configured(settings_for(together, but=need) | given), {need.name})
    assert last(need.key) in note.partition("has no effect: ")[2]


def last(name: str) -> str:
    return name.rpartition(".")[2]


@pytest.mark.parametrize("name", READERS)
def test_a_setting_of_plug_ins_acts_with_those_that_read_it_and_with_no_other(name):
    table = READERS[name]
    setting = settings_for([need for need in NEEDS if need.name == name]) | {name: other_values(name)[0]}
    for choice in table.names():
        config = configured(setting | {"engine.name": "verl", table.key: choice})
        notes = idle_notes(config, {name})
        refused = [text for text in idle_refusals(config) if text.startswith(f"{name}=")]
        if last(name) in table.find(choice).reads():
            assert notes == refused == []
            continue
        (note,) = notes
        readers = [plugin.names[0] for plugin in table if last(name) in plugin.reads()]
        assert note.endswith(f"is {choice}; it is read by {', '.join(readers)}")
        if declaration(SETTINGS[name]).idle == "note":
            assert refused == []
        else:
            (refusal,) = refused
            assert refusal.startswith(f"{note}. Leave it out, or ")


def test_every_setting_that_a_plug_in_reads_is_declared_by_it_and_by_no_section():
    for section in (ActorConfig, AlgorithmConfig):
        own = {setting.name for setting in fields(section)}
        for plugin in chain.from_iterable(section.tables):
            assert not own.intersection(plugin.reads())
            assert all(declaration(setting).help for setting in fields(plugin.settings))


def test_a_critic_asked_for_by_name_is_no_idle_setting():
    config = configured({"engine.name": "verl", "critic.enable": True})
    assert idle_notes(config, {"critic.enable"}) == []


def test_a_value_at_its_default_is_not_worth_a_note():
    assert idle_notes(configured({f"{ACTOR}.kl_loss_coef": 0.001}), {f"{ACTOR}.kl_loss_coef"}) == []


def test_a_value_that_the_user_did_not_give_is_not_named():
    assert idle_notes(configured({f"{ACTOR}.kl_loss_coef": 0.5}), {"data.seed"}) == []


def test_a_knob_below_two_switches_names_the_first_that_is_off():
    config = configured({"algorithm.kl_ctrl.target_kl": 0.5})
    assert idle_notes(config, {"algorithm.kl_ctrl.target_kl"})[0].endswith(
        "algorithm.use_kl_in_reward is False"
    )


def test_tracing_without_the_update_needs_no_trace():
    config = configured({f"{INFLUENCE}.skip_optimizer_step": True})
    assert idle_notes(config, {f"{INFLUENCE}.skip_optimizer_step"}) == []


@pytest.mark.parametrize("name", [name for name in recipes() if name != "base"])
@pytest.mark.parametrize("engine", ["local", "verl"])
def test_no_shipped_recipe_has_an_idle_setting(name, engine):
    assert idle_notes(compose([f"recipe={name}", f"engine={engine}"]), KNOBS) == []


def test_what_decides_over_verls_own_settings_is_a_setting_and_they_are_none():
    for patterns, decides, _ in VERLS_OWN:
        assert decides in KNOBS
        for name in KNOBS - {decides}:
            assert not any(fnmatchcase(name, pattern) for pattern in patterns)
