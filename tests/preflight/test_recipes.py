"""Recipes: each composes for both engines, holds what it promises, and fits the GPU it names."""

from functools import cache
from importlib import resources
from pathlib import Path

import pytest
from omegaconf import DictConfig

from archer.config import TrainConfig, compose, recipes
from archer.engines.verl.settings import verl_defaults, verl_settings
from archer.preflight.memory import GIB, local_demand, verl_demand

REAL = [name for name in recipes() if name != "base" and not name.startswith("arithmetic")]
TASKS = ("math", "code", "gsm8k")
EIGHT_GPUS = ("engine=verl", "trainer.n_gpus_per_node=8")


@cache
def recipe(name: str, *overrides: str) -> TrainConfig:
    return compose([f"recipe={name}", *overrides])


def test_there_is_a_recipe_for_every_promised_model_and_task():
    models = {recipe(name).actor_rollout_ref.model.path for name in REAL}
    assert models == {
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
        "Qwen/Qwen2.5-1.5B-Instruct",
        "Qwen/Qwen2.5-0.5B-Instruct",
        "Qwen/Qwen3-0.6B",
        "Qwen/Qwen3-1.7B",
        "Qwen/Qwen3-4B",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
    }


@pytest.mark.parametrize("name", REAL)
def test_a_recipe_is_the_same_run_on_either_engine(name):
    local, verl = recipe(name, "engine=local"), recipe(name, *EIGHT_GPUS)
    assert verl.engine.name == "verl" and verl.engine.verl == {}
    assert (local.data, local.actor_rollout_ref, local.algorithm, local.reward) == (
        verl.data,
        verl.actor_rollout_ref,
        verl.algorithm,
        verl.reward,
    )


@pytest.fixture(scope="module")
def verls_own() -> DictConfig:
    return verl_defaults()


@pytest.mark.parametrize(
    "name",
    [
        "qwen2.5_1.5b_math_influence_trace",
        "qwen2.5_1.5b_instruct_code",
        "qwen3_4b_math",
        "smollm2_135m_gsm8k",
        "qwen2.5_1.5b_lora_gsm8k",
    ],
)
def test_verls_own_configuration_takes_a_recipe_of_every_kind(name, verls_own, monkeypatch):
    monkeypatch.setattr("archer.engines.verl.settings.verl_defaults", verls_own.copy)  # a second each
    settings = verl_settings(recipe(name, *EIGHT_GPUS))
    assert settings.actor_rollout_ref.rollout.n == recipe(name).actor_rollout_ref.rollout.n


@pytest.mark.parametrize("name", [name for name in REAL if "math" in name or "code" in name])
def test_the_large_runs_have_64_prompts_of_16_responses(name):
    config = recipe(name)
    prompts = 16 if name.endswith("1gpu") else 64
    assert (config.data.train_batch_size, config.actor_rollout_ref.rollout.n) == (prompts, 16)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("qwen2.5_1.5b_math_entropy_trace", "Archer2.0-Qwen2.5-1.5B-Math-EntropyTrace"),
        ("qwen2.5_1.5b_math_entropy_trace_1gpu", "Archer2.0-Qwen2.5-1.5B-Math-EntropyTrace-1GPU"),
        ("qwen2.5_1.5b_math_influence_trace", "Archer2.0-Qwen2.5-1.5B-Math-InfluenceTrace"),
    ],
)
def test_trace_runs_take_100_steps_of_one_epoch_and_write_where_their_users_look(name, folder):
    config = recipe(name)
    assert config.actor_rollout_ref.actor.ppo_epochs == 1
    assert config.trainer.total_training_steps == 100
    assert config.trainer.entropy_trace.enable
    assert str(config.run_dir) == f"output/Archer2.0/{folder}"


def test_the_influence_run_can_compare_prompts_with_each_other():
    config = recipe(
        "qwen2.5_1.5b_math_influence_trace", "trainer.influence_trace.accepted_rejected_scope=all_selected"
    )
    assert config.trainer.influence_trace.enable


def test_runs_with_several_epochs_use_a_loss_that_they_need():
    assert recipe("qwen2.5_1.5b_math").actor_rollout_ref.actor.policy_loss.loss_mode == "aspo"
    dual = recipe("qwen2.5_1.5b_instruct_math").actor_rollout_ref.actor
    assert dual.policy_loss.loss_mode == "dual_token" and dual.use_kl_loss and dual.ppo_epochs == 3


@pytest.mark.parametrize("task", TASKS)
def test_a_task_runs_with_any_model(task):
    config = recipe(f"task/{task}", "actor_rollout_ref.model.path=some/model")
    assert config.data.train_files and config.data.val_files


def test_recipes_name_no_place_on_a_machine():
    folder = Path(str(resources.files("archer.conf") / "recipe"))
    texts = [file.read_text() for file in folder.rglob("*.yaml")]
    assert not [text for text in texts if any(part in text for part in (": /", "[/", "~/"))]


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("qwen2.5_1.5b_math", 80),
        ("qwen2.5_1.5b_code", 80),
        ("qwen2.5_1.5b_instruct_math", 80),
        ("qwen2.5_1.5b_instruct_code", 80),
        ("qwen2.5_1.5b_math_entropy_trace_1gpu", 80),
        ("qwen2.5_1.5b_math_influence_trace", 80),
        ("qwen3_0.6b_math", 80),
        ("qwen3_1.7b_math", 80),
        ("qwen3_4b_math", 139.8),
        ("qwen2.5_0.5b_gsm8k", 24),
        ("qwen2.5_1.5b_lora_gsm8k", 24),
        ("smollm2_135m_gsm8k", 12),
    ],
)
def test_a_recipe_fits_one_gpu_of_the_size_that_is_documented(facts_of, name, gib):
    config = recipe(name, "engine=local")
    demand = local_demand(config, facts_of(config), "cuda")
    assert demand.peak < 0.95 * gib * GIB  # of what is printed on a card, a little is never free
    assert demand.peak > 0.5 * gib * GIB  # no larger GPU is named than is needed


@pytest.mark.parametrize("name", REAL)
def test_every_recipe_fits_eight_gpus_of_80_gb_with_verl(facts_of, name):
    config = recipe(name, *EIGHT_GPUS)
    assert verl_demand(config, facts_of(config), 80 * GIB).peak < 76 * GIB


def test_lora_brings_a_run_of_1_5b_from_48_gb_to_24(facts_of):
    adapters = recipe("qwen2.5_1.5b_lora_gsm8k")
    whole = recipe("qwen2.5_1.5b_lora_gsm8k", "actor_rollout_ref.model.lora_rank=0")
    small, large = (local_demand(config, facts_of(config), "cuda").peak for config in (adapters, whole))
    assert small < 23 * GIB < 40 * GIB < large


def test_what_graphs_keep_for_drawing_tokens_is_taken_from_the_update_on_a_gpu_alone(facts_of):
    def kept(device: str, *more: str) -> float:
        config = recipe("qwen2.5_1.5b_lora_gsm8k", "actor_rollout_ref.rollout.val_kwargs.top_p=1", *more)
        parts = local_demand(config, facts_of(config), device).parts
        return next(part.bytes for part in parts if part.name == "recorded graphs" and part.updating) / GIB

    assert kept("cuda") == pytest.approx(20 * 256 * 151_936 / GIB, rel=0.01)
    assert kept("cpu") == kept("cuda", "actor_rollout_ref.rollout.enforce_eager=True") == 0
