"""Names that do not exist: the old one's successor, or the nearest by the whole path."""

import pytest

from archer.config import compose
from archer.config.names import nearest
from archer.errors import ArcherError

KNOWN = [
    "actor_rollout_ref.actor.fsdp_config.param_offload",
    "critic.fsdp.param_offload",
    "trainer.entropy_trace.enable",
    "reward.reward_kwargs.overlong_buffer_cfg.enable",
    "algorithm.filter_groups.enable",
    "data.train_batch_size",
    "actor_rollout_ref.actor.ppo_epochs",
]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("critic.fsdp_config.param_offload", "critic.fsdp.param_offload"),
        ("critic.model.param_offload", "critic.fsdp.param_offload"),
        ("actor_rollout_ref.actor.param_offload", "actor_rollout_ref.actor.fsdp_config.param_offload"),
        ("reward.overlong_buffer.enable", "reward.reward_kwargs.overlong_buffer_cfg.enable"),
        ("trainer.entropy.enable", "trainer.entropy_trace.enable"),
        ("algorithm.filter_group.enable", "algorithm.filter_groups.enable"),
        ("data.trian_batch_size", "data.train_batch_size"),
        ("ppo_epochs", "actor_rollout_ref.actor.ppo_epochs"),
        ("something.quite.different", None),
    ],
)
def test_the_nearest_name_is_found_by_the_whole_path(given, meant):
    assert nearest(given, KNOWN) == meant


@pytest.mark.parametrize("engine", ["local", "verl"])
@pytest.mark.parametrize(
    ("override", "instead"),
    [
        ("trainer.influence_trace.use_archer_policy_loss=True", "loss_mode=dual_token"),
        ("trainer.influence_trace.atomic_write=True", "always written whole"),
        ("trainer.influence_trace.update_summary_every=5", "with every step"),
        ("reward.rejection_sample=True", "algorithm.filter_groups.enable=True"),
        ("reward.enable_overlong_filter=True", "overlong_buffer_cfg.enable=True"),
    ],
)
def test_names_of_the_first_system_are_refused_with_todays(engine, override, instead):
    with pytest.raises(ArcherError) as error:
        compose([f"engine={engine}", override])
    assert instead in str(error.value)
    assert "old name" in str(error.value)


@pytest.mark.parametrize(
    "override",
    ["actor_rollout_ref.actor.use_dynamic_clip=True", "INFLUENCE_TOTAL_STEPS=2", "reward_model.enable=True"],
)
def test_old_names_elsewhere_are_refused_by_the_local_engine(override):
    with pytest.raises(ArcherError, match="old name"):
        compose([override])


@pytest.mark.parametrize("override", ["reward_model.enable=False", "reward_model.reward_manager=dapo"])
def test_old_names_that_ask_for_nothing_pass(override):
    assert compose([override]) == compose([])


def test_both_names_of_a_setting_with_different_values_are_refused():
    with pytest.raises(ArcherError, match=r"old name of reward\.num_workers"):
        compose(["reward_model={num_workers:3}", "reward.num_workers=4"])


def test_a_batch_of_nothing_is_told_once_and_advises_nothing():
    with pytest.raises(ArcherError) as error:
        compose(["data.train_batch_size=0"])
    assert "ppo_mini_batch_size=0" not in str(error.value)
    with pytest.raises(ArcherError) as error:
        compose(["data.train_batch_size=0", "actor_rollout_ref.actor.ppo_mini_batch_size=0"])
    assert str(error.value).count("must be greater than 0") == 2


@pytest.mark.parametrize(
    "knob", ["max_modules", "max_tokens_per_response", "max_prompts_per_step", "max_hessian_dim"]
)
def test_zero_or_less_is_no_cap_of_every_cap(knob):
    for value in (-1, 0):
        config = compose([f"trainer.influence_trace.{knob}={value}", "trainer.influence_trace.enable=True"])
        assert getattr(config.trainer.influence_trace, knob) == value
