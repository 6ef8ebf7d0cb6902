"""Settings that change nothing are named, and only those, and only where the user gave them."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from archer.config import TrainConfig, compose, recipes
from archer.config.foreign import adopt_foreign_keys
from archer.config.given import given_settings
from archer.config.idle import DEPENDENCES, KNOBS, idle_notes
from archer.config.parse import defaults, parse
from archer.config.rules import value_of

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
        "policy_loss.loss_mode is cispo",
        {f"{ACTOR}.policy_loss.loss_mode": "aspo"},
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
        "adv_estimator is grpo",
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
    Case("engine.compile_decoding", False, {"engine.name": "verl"}, "engine.name is verl", {}),
    Case(
        "engine.compile_decoding", False, {"engine.device": "cpu"}, "device is cpu", {"engine.device": "cuda"}
    ),
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
    return parse(TrainConfig, adopt_foreign_keys(TrainConfig, tree))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.knob}-{case.reason}")
def test_a_setting_that_changes_nothing_is_named_with_the_reason_and_one_that_acts_is_not(case):
    idle = configured(case.idle_where | {case.knob: case.value})
    (note,) = idle_notes(idle, {case.knob})
    shown = "{scale:2}" if case.knob == "reward.custom_kwargs" else str(case.value)
    assert note == f"{case.knob}={shown} has no effect: {case.reason}"
    assert idle_notes(configured(case.acts_where | {case.knob: case.value}), {case.knob}) == []


def test_every_row_of_the_table_is_met_by_a_case():
    for row in DEPENDENCES:
        if f"{ACTOR}.tau_pos" in row.knobs:
            continue  # nothing lets these act
        assert any(
            fnmatchcase(case.knob, knob) and not row.acts(value_of(configured(case.idle_where), row.on))
            for case in CASES
            for knob in row.knobs
        ), f"no case for {row.knobs}"


def test_parameters_of_losses_that_only_verl_has_never_act():
    config = configured({"engine.name": "verl", f"{ACTOR}.policy_loss.clip_cov_ratio": 0.1})
    (note,) = idle_notes(config, {f"{ACTOR}.policy_loss.clip_cov_ratio"})
    assert note.endswith("clip_cov_ratio=0.1 has no effect: loss_mode is vanilla")


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


def test_every_name_in_the_table_is_a_setting():
    """Names of verl's own are those that Archer does not have."""
    verls = (
        "algorithm.lam",
        "critic.[!e]*",
        "trainer.max_critic_ckpt_to_keep",
        f"{ACTOR}.tau_",
        f"{ACTOR}.policy_loss.",
    )
    for row in DEPENDENCES:
        assert row.on in KNOBS
        assert all(knob in KNOBS or knob.startswith(verls) for knob in row.knobs)


def own_recipe(folder: Path, name: str, text: str) -> None:
    (folder / "recipe").mkdir(exist_ok=True)
    (folder / f"recipe/{name}.yaml").write_text(f"# @package _global_\n{text}")


def test_what_is_given_on_the_command_line_is_known_by_its_full_name():
    overrides = [
        "engine=verl",
        "recipe=arithmetic",
        "+data.seed=1",
        "algorithm.kl_ctrl={type:fixed,kl_coef:0.1}",
    ]
    compose(overrides)
    assert given_settings(overrides) == {"data.seed", "algorithm.kl_ctrl.type", "algorithm.kl_ctrl.kl_coef"}


def test_settings_of_verls_are_known_by_verls_name():
    overrides = ["engine=verl", "engine.verl.critic.optim.lr=1e-5", "algorithm.lam=0.9"]
    config = compose(overrides)
    assert given_settings(overrides) == {"critic.optim.lr", "algorithm.lam"}
    assert len(idle_notes(config, given_settings(overrides))) == 2


def test_what_a_recipe_of_ones_own_sets_is_given_and_what_it_inherits_from_a_shipped_one_is_not(tmp_path):
    own_recipe(tmp_path, "part", "algorithm: {gamma: 0.5}\n")
    own_recipe(
        tmp_path,
        "mine",
        "defaults: [arithmetic, part, _self_]\ntrainer: {influence_trace: {enable: false}}\n",
    )
    config = compose(["recipe=mine"], tmp_path)
    given = given_settings(["recipe=mine"], tmp_path)
    assert given == {"algorithm.gamma", f"{INFLUENCE}.enable"}
    assert idle_notes(config, given) == ["algorithm.gamma=0.5 has no effect: adv_estimator is grpo"]


def test_what_is_taken_back_is_not_given(tmp_path):
    own_recipe(tmp_path, "mine", "defaults: [arithmetic, _self_]\ncritic: {optim: {lr: 1.0}}\n")
    overrides = ["engine=verl", "recipe=mine", "~critic.optim"]
    compose(overrides, tmp_path)
    assert given_settings(overrides, tmp_path) == set()
