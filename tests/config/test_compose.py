"""Composition: defaults, recipes, overrides, and what is said about a bad one."""

import pytest
from omegaconf import OmegaConf

from archer.algorithms.advantages.base import ADVANTAGES
from archer.algorithms.kl import KL_ESTIMATORS
from archer.algorithms.policy_losses.base import POLICY_LOSSES
from archer.config import TrainConfig, compose, default_config, recipes
from archer.config.compose import to_yaml
from archer.config.parse import defaults, parse
from archer.errors import ArcherError


def refusal(*overrides: str) -> str:
    with pytest.raises(ArcherError) as error:
        compose(list(overrides))
    return str(error.value)


def test_without_arguments_the_embedded_default_is_configured():
    config = default_config()
    assert config.actor_rollout_ref.model.path == "builtin:tiny_reasoner"
    assert config.data.train_files == ("builtin:arithmetic/train",)


def test_overrides_in_verls_names_are_typed():
    config = compose(
        [
            "data.train_batch_size=64",
            "actor_rollout_ref.rollout.n=16",
            "trainer.total_training_steps=100",
            "actor_rollout_ref.actor.optim.lr=1e-6",
            "trainer.logger=[console,tensorboard]",
            "data.train_files=mine.jsonl",
        ]
    )
    assert config.data.train_batch_size == 64
    assert config.actor_rollout_ref.rollout.n == 16
    assert config.actor_rollout_ref.actor.optim.lr == 1e-6
    assert config.trainer.logger == ("console", "tensorboard")
    assert config.data.train_files == ("mine.jsonl",)


def test_a_plus_before_an_existing_key_is_accepted_as_verls_users_write_it():
    assert compose(["+trainer.save_freq=7"]).trainer.save_freq == 7


def test_a_recipe_is_chosen_by_name_and_overrides_win_over_it():
    config = compose(["recipe=arithmetic_dapo", "actor_rollout_ref.actor.clip_ratio_high=0.3"])
    assert config.algorithm.filter_groups.enable
    assert config.actor_rollout_ref.actor.clip_ratio_high == 0.3


@pytest.mark.parametrize("name", [name for name in recipes() if name != "base"])
def test_every_shipped_recipe_is_valid(name):
    assert compose([f"recipe={name}"]).actor_rollout_ref.model.path


def test_every_recipe_has_a_sentence():
    assert all(len(text) > 20 for text in recipes().values())


def test_another_model_never_gets_the_embedded_defaults_learning_rate():
    config = compose(["actor_rollout_ref.model.path=some/model", "data.train_files=x.jsonl"])
    assert config.actor_rollout_ref.actor.optim.lr == 1e-6


@pytest.mark.parametrize(
    "model",
    [
        "actor_rollout_ref.model={path: some/model}",
        "actor_rollout_ref={model: {path: some/model}}",
        "++actor_rollout_ref.model.path=some/model",
        "actor_rollout_ref.model.path=${data.seed}",
    ],
)
def test_it_does_not_matter_how_the_other_model_is_named(model):
    config = compose([model, "data.train_files=x.jsonl"])
    assert config.actor_rollout_ref.actor.optim.lr == 1e-6


def test_the_names_of_algorithms_are_those_of_their_registries():
    for key, table in (
        ("actor_rollout_ref.actor.policy_loss.loss_mode", POLICY_LOSSES),
        ("algorithm.adv_estimator", ADVANTAGES),
        ("algorithm.kl_penalty", KL_ESTIMATORS),
    ):
        with pytest.raises(ArcherError) as error:
            compose([f"{key}=nothing"])
        assert all(name in str(error.value) for name in table.names())
        for name in table.names():
            compose(["engine=verl", f"{key}={name}"])


def test_recipes_of_ones_own_come_from_a_folder(tmp_path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [arithmetic, _self_]\ndata: {seed: 5}\n"
    )
    assert compose(["recipe=mine"], tmp_path).data.seed == 5


def test_the_resolved_configuration_survives_a_round_trip_through_yaml():
    config = compose(["data.seed=3", "trainer.resume_mode=disable"])
    assert parse(TrainConfig, OmegaConf.to_container(OmegaConf.create(to_yaml(config)))) == config


def test_defaults_are_those_of_the_dataclasses():
    assert parse(TrainConfig, defaults(TrainConfig)) == TrainConfig()


def test_interpolations_are_resolved():
    assert (
        compose(["trainer.experiment_name=seed${data.seed}", "data.seed=9"]).trainer.experiment_name
        == "seed9"
    )


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("data.trian_batch_size=3", "Did you mean data.train_batch_size?"),
        ("ppo_epochs=2", "Did you mean actor_rollout_ref.actor.ppo_epochs?"),
        ("policy_loss.loss_mode=aspo", "Did you mean actor_rollout_ref.actor.policy_loss.loss_mode?"),
        ("val_kwargs.n=2", "Did you mean actor_rollout_ref.rollout.val_kwargs.n?"),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size=2", "engine=verl"),
        ("data.seed=x", "data.seed='x': expected a whole number"),
        ("data.seed=1.5", "expected a whole number"),
        ("data.val_files=null", "data.val_files=null: expected a list, [] for none"),
        ("data.shuffle=3", "expected True or False"),
        ("actor_rollout_ref.actor.optim.lr=fast", "expected a number"),
        ("trainer.resume_mode=maybe", "choose one of auto, disable, resume_path"),
        ("actor_rollout_ref.actor.loss_agg_mode=mean", "choose one of token-mean"),
        ("data=3", "data is a group of settings"),
        ("recipe=nope", "There is no recipe 'nope'. Recipes: arithmetic"),
        ("engine=nope", "There is no engine 'nope'"),
        ("nonsense", "is not an override"),
        ("data.seed=[1", "could not be understood"),
        ("trainer.experiment_name=${missing.key}", "could not be understood"),
        ("actor_rollout_ref.rollout.top_p=0", "must be in (0, 1]"),
        ("actor_rollout_ref.rollout.top_k=0", "must be -1 or at least 1"),
        ("actor_rollout_ref.rollout.temperature=0", "must be greater than 0"),
        ("data.val_batch_size=-1", "must be greater than 0, or left out"),
        ("data.train_batch_size=0", "must be greater than 0"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=99", "is more than data.train_batch_size=16"),
        ("data.train_batch_size=8", "set actor_rollout_ref.actor.ppo_mini_batch_size=8"),
        ("actor_rollout_ref.rollout.n=1", "set actor_rollout_ref.rollout.n=2 or more"),
        ("trainer.experiment_name=''", "trainer.experiment_name is empty"),
        ("trainer.n_gpus_per_node=8", "engine=verl uses many"),
        ("trainer.logger=[mlflow]", "choose from console, tensorboard, wandb, trackio"),
        ("trainer.resume_mode=resume_path", "go together"),
        ("actor_rollout_ref.actor.use_dynamic_bsz=False", "needs ppo_micro_batch_size_per_gpu"),
        ("algorithm.filter_groups.metric=reward", "choose one of acc"),
        ("recipe=base", "actor_rollout_ref.model.path is not set"),
        ("engine.name=vrl", "choose one of local, verl"),
        ("algorithm.adv_estimator=gae", "engine=verl"),
        ("algorithm.adv_estimator=foo", "choose one of grpo"),
        ("algorithm.gamma=-5", "must be in [0, 1]"),
        ("algorithm.filter_groups.max_num_gen_batches=0", "must be greater than 0"),
        ("actor_rollout_ref.actor.optim.lr=inf", "must be finite and at least 0"),
        ("actor_rollout_ref.actor.optim.betas=[1.5,0.9]", "betas=1.5: must be in [0, 1)"),
        ("actor_rollout_ref.actor.optim.betas=[0.9]", "two numbers in [0, 1)"),
        ("actor_rollout_ref.actor.clip_ratio_low=-1", "must be greater than 0"),
        ("data.train_max_samples=0", "must be -1 or at least 1"),
        ("data.train_files=[]", "data.train_files is not set"),
    ],
)
def test_a_bad_override_is_refused_with_the_way_out(override, expected):
    assert expected in refusal(override)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline"])
def test_an_estimator_that_compares_a_group_needs_two_responses_to_a_prompt(name):
    estimator = f"algorithm.adv_estimator={name}"
    assert "all advantages would be 0" in refusal("actor_rollout_ref.rollout.n=1", estimator)
    compose(["actor_rollout_ref.rollout.n=2", estimator])
    compose(["actor_rollout_ref.rollout.n=1", estimator, "trainer.val_only=True"])


def test_an_estimator_without_groups_takes_one_response_to_a_prompt():
    compose(["actor_rollout_ref.rollout.n=1", "algorithm.adv_estimator=reinforce_plus_plus"])
    compose(["engine=verl", "actor_rollout_ref.rollout.n=1", "algorithm.adv_estimator=gae"])


def test_all_problems_are_reported_together():
    text = refusal("data.seed=x", "trainer.save_freq=often", "no.such.key=1")
    assert text.count("\n") == 3


def test_a_wrong_value_is_told_once_beside_what_else_is_wrong_in_its_section():
    wrong = ["trainer.influence_trace.reg_rule=foo", "trainer.influence_trace.write_every=0"]
    with pytest.raises(ArcherError) as error:
        compose(wrong)
    assert str(error.value).count("reg_rule") == 1
    assert "write_every=0: must be at least 1" in str(error.value)


@pytest.mark.parametrize("override", ["hydra.run.dir=x", "+hydra.job.name=x", "hydra/launcher=basic"])
def test_settings_of_hydras_own_are_refused_as_nothing_reads_them(override):
    with pytest.raises(ArcherError, match="leave it out"):
        compose([override])


def test_a_value_for_all_of_verls_settings_is_refused():
    with pytest.raises(ArcherError, match=r"engine\.verl=3: it is a group of settings"):
        compose(["engine=verl", "engine.verl=3"])


def test_a_home_folder_may_be_written_short(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert compose(["data.train_files=~/my prompts.jsonl"]).data.train_files == ("/home/me/my prompts.jsonl",)


@pytest.mark.parametrize("value", ["a=b", "{x", "a b: {c", "(1,2"])
def test_a_value_that_has_to_be_quoted_says_how(value):
    with pytest.raises(ArcherError, match="could not be understood") as refusal:
        compose([f"trainer.experiment_name={value}"])
    assert "has to be quoted" in str(refusal.value)
