"""What verl is told: Archer's settings in its names, the user's own, and refusals before anything starts."""

import pytest
from omegaconf import OmegaConf
from typer.testing import CliRunner

from archer.algorithms.policy_losses.base import POLICY_LOSSES
from archer.cli import app
from archer.config import compose
from archer.config.parse import key_names
from archer.config.root import TrainConfig
from archer.engines.verl.settings import exists, verl_defaults, verl_settings
from archer.engines.verl.translate import NOT_COPIED, PLUGIN, data_parallel_size
from archer.errors import ArcherError

CPU = ["engine=verl", "engine.device=cpu"]


@pytest.fixture(scope="module")
def base():
    return verl_defaults()


def told(*overrides: str):
    """verl's whole configuration, interpolations resolved."""
    tree = verl_settings(compose([*CPU, *overrides]))
    OmegaConf.resolve(tree)
    return tree


def refusal(*overrides: str) -> str:
    with pytest.raises(ArcherError) as error:
        verl_settings(compose([*CPU, *overrides]))
    return str(error.value)


def test_every_setting_of_archers_reaches_verl_or_is_archers_business(base):
    of_losses = {f"actor_rollout_ref.actor.{name}" for loss in POLICY_LOSSES for name in loss.reads()}
    lost = {key for key in key_names(TrainConfig) if not key.startswith(NOT_COPIED) and not exists(base, key)}
    assert lost <= of_losses, "the loss is Archer's, and reads its settings from Archer's configuration"


def test_settings_of_the_same_name_are_copied():
    tree = told(
        "data.train_batch_size=12",
        "actor_rollout_ref.actor.ppo_mini_batch_size=6",
        "actor_rollout_ref.actor.optim.lr=3e-5",
        "actor_rollout_ref.rollout.temperature=0.7",
        "algorithm.kl_ctrl.kl_coef=0.5",
        "trainer.n_gpus_per_node=2",
    )
    assert tree.data.train_batch_size == 12
    assert tree.actor_rollout_ref.actor.ppo_mini_batch_size == 6
    assert tree.actor_rollout_ref.actor.optim.lr == 3e-5
    assert tree.actor_rollout_ref.rollout.temperature == 0.7
    assert tree.algorithm.kl_ctrl.kl_coef == 0.5
    assert tree.trainer.n_gpus_per_node == 2


def test_gradients_are_clipped_where_verl_looks():
    assert told("actor_rollout_ref.actor.grad_clip=0.3").actor_rollout_ref.actor.optim.clip_grad == 0.3


def test_greedy_validation_is_temperature_zero_which_is_all_that_verl_looks_at():
    prefix = "actor_rollout_ref.rollout.val_kwargs"
    greedy = told(f"{prefix}.do_sample=False", f"{prefix}.temperature=0.9")
    sampled = told(f"{prefix}.do_sample=True", f"{prefix}.temperature=0.9")
    assert greedy.actor_rollout_ref.rollout.val_kwargs.temperature == 0
    assert sampled.actor_rollout_ref.rollout.val_kwargs.temperature == 0.9


def test_the_compute_type_follows_the_device_unless_it_is_chosen():
    def param_dtype(*overrides: str) -> str:
        tree = verl_settings(compose(["engine=verl", *overrides]))
        return tree.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype

    assert param_dtype("engine.device=cpu") == "fp32"
    assert param_dtype("engine.device=cuda") == "bf16"
    assert param_dtype("engine.device=cuda", "engine.dtype=float32") == "fp32"


def test_only_gae_has_a_critic():
    assert told().critic.enable is False
    tree = told("algorithm.adv_estimator=gae", "critic.optim.lr=1e-4")
    assert tree.critic.enable is True
    assert tree.critic.optim.lr == 1e-4
    assert tree.critic.model.path == tree.actor_rollout_ref.model.path
    assert tree.critic.strategy == "fsdp2"


@pytest.mark.parametrize(
    "override",
    [
        "actor_rollout_ref.rollout.max_num_batched_tokens=99",
        "+actor_rollout_ref.rollout.max_num_batched_tokens=99",
        "engine.verl.actor_rollout_ref.rollout.max_num_batched_tokens=99",
    ],
)
def test_settings_that_only_verl_has_are_given_by_their_own_names(override):
    assert told(override).actor_rollout_ref.rollout.max_num_batched_tokens == 99


def test_dictionaries_that_verl_leaves_open_take_any_key():
    tree = told(
        "actor_rollout_ref.rollout.engine_kwargs.vllm.block_size=16",
        "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=bf16",
        "ray_kwargs.ray_init.object_store_memory=200000000",
    )
    assert tree.actor_rollout_ref.rollout.engine_kwargs.vllm.block_size == 16
    assert tree.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype == "bf16"
    assert tree.ray_kwargs.ray_init.object_store_memory == 200000000


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("actor_rollout_ref.rollout.nam=vllm", "Did you mean actor_rollout_ref.rollout.name?"),
        ("data.train_bach_size=3", "Did you mean data.train_batch_size?"),
        ("trainer.influence_trace.no_such=3", "has no such setting"),
        ("engine.verl.data.train_batch_size=3", "set data.train_batch_size=3 instead"),
        ("trainer.device=cuda", "set engine.device instead"),
        ("critic.model.path=other", "the critic starts from actor_rollout_ref.model.path"),
        ("actor_rollout_ref.actor.strategy=megatron", "Archer trains with fsdp2"),
        ("actor_rollout_ref.actor.strategy=fsdp", "flattens weights"),
        ("actor_rollout_ref.actor.ulysses_sequence_parallel_size=2", "spreads the tokens of a response"),
        ("actor_rollout_ref.model.external_lib=no_such_module", "there is no such module"),
        ("actor_rollout_ref.model.tiled_mlp.enabled=True", "runs a layer in pieces"),
        ("actor_rollout_ref.actor.fsdp_config.offload_policy=True", "keeps weights in CPU memory"),
        ("algorithm.rollout_correction.bypass_mode=True", "skips the pass that computes entropies"),
        ("critic.ppo_epochs=0", "critic.ppo_epochs=0: must be at least 1"),
        ("critic.optim.lr=-1", "must be at least 0"),
        ("critic.optim.betas=[0.9]", "expected two numbers in [0, 1)"),
        ("critic.loss_agg_mode=mean", "choose one of token-mean"),
        ("critic.fsdp.fsdp_size=-7", "must be at least 1, or -1"),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size=0", "must be at least 1"),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size=1.5", "expected a whole number"),
        ("actor_rollout_ref.actor.ulysses_sequence_parallel_size=0", "must be at least 1"),
        ("actor_rollout_ref.rollout.dtype=float8", "choose one of bfloat16"),
        ("trainer.critic_warmup=-1", "must be at least 0"),
        ("ray_kwargs.ray_init.num_cpus=-1", "must be at least 0"),
        ("actor_rollout_ref.actor.optim.optimizer=Nope", "torch.optim has no such optimizer"),
        ("actor_rollout_ref.actor.optim.optimizer_impl=nope.nope", "there is no such module"),
        (
            "actor_rollout_ref.model.overide_config.attn_implementation=eager",
            "Did you mean actor_rollout_ref.model.override_config.attn_implementation?",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(override, expected):
    assert expected in refusal(override)


def test_adapters_are_told_in_verls_form_and_a_trial_on_the_cpu_merges_them(tmp_path):
    rank = "actor_rollout_ref.model.lora_rank=4"
    model = told(rank).actor_rollout_ref.model
    assert (model.lora_rank, model.lora_alpha, model.target_modules) == (4, 16, "all-linear")
    assert model.exclude_modules is None and model.lora_adapter_path is None and model.lora.merge
    model = told(
        rank,
        "actor_rollout_ref.model.target_modules=q_proj",
        "actor_rollout_ref.model.exclude_modules='.*layers.0.*'",
        f"actor_rollout_ref.model.lora_adapter_path={tmp_path}",
    ).actor_rollout_ref.model
    assert model.target_modules == ["q_proj"]  # a text would be a regular expression there
    assert model.exclude_modules == ".*layers.0.*" and model.lora_adapter_path == str(tmp_path)
    unmerged = refusal(rank, "actor_rollout_ref.model.lora.merge=False")
    assert "takes whole weights only" in unmerged


def test_without_influence_tracing_sequence_parallelism_and_fused_kernels_are_verls_business():
    told(
        "trainer.influence_trace.enable=False",
        "trainer.n_gpus_per_node=2",
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2",
        "actor_rollout_ref.model.use_remove_padding=True",
        "actor_rollout_ref.model.use_fused_kernels=True",
    )


def test_responses_that_devices_cannot_share_equally_are_refused():
    overrides = ["trainer.n_gpus_per_node=3", "actor_rollout_ref.actor.ppo_mini_batch_size=4"]
    with pytest.raises(ArcherError, match="3 devices cannot share equally"):
        compose([*CPU, *overrides, "actor_rollout_ref.rollout.n=8"])


def test_the_local_engine_refuses_verls_settings():
    with pytest.raises(ArcherError, match="needs engine=verl"):
        compose(["actor_rollout_ref.rollout.max_num_batched_tokens=99"])


def test_fused_kernels_are_traced_but_for_the_head_that_they_go_around():
    fused = "actor_rollout_ref.model.use_fused_kernels=True"
    told(fused, "trainer.influence_trace.enable=True")
    for entries in ("[]", "[lm_head]", "[q_proj,head]"):
        wanted = [
            "trainer.influence_trace.enable=True",
            f"trainer.influence_trace.module_name_filter={entries}",
        ]
        assert "lm_head cannot be traced" in refusal(fused, *wanted)


def test_the_users_modules_are_imported_beside_archers():
    tree = told("actor_rollout_ref.model.external_lib=json")
    assert tree.actor_rollout_ref.model.external_lib == [PLUGIN, "json"]
    tree = told("actor_rollout_ref.model.external_lib=[json,csv]", "algorithm.adv_estimator=gae")
    assert tree.critic.model.external_lib == [PLUGIN, "json", "csv"]


def test_devices_that_share_a_sequence_are_one_when_a_batch_is_dealt_out():
    shared = "actor_rollout_ref.actor.ulysses_sequence_parallel_size=4"
    config = compose([*CPU, "trainer.n_gpus_per_node=8", shared])
    assert data_parallel_size(config) == 2
    compose([*CPU, "trainer.n_gpus_per_node=12", shared, "actor_rollout_ref.rollout.n=9"])
    assert "cannot be divided by it" in refusal("trainer.n_gpus_per_node=2", shared)


@pytest.mark.parametrize("option", [["--print-config"], ["--dry-run"], []])
@pytest.mark.parametrize(
    "override",
    [
        "trainer.influence_trace.enabel=True",
        "trainer.entropy_trace.write_evry=2",
        "algorithm.filter_groups.max_gen=1",
        "reward.timeout=3",
        "reward.code.timeout=3",
        "engine.dvice=cpu",
        "trainer.rollout_data_dir=somewhere",
        "critic.model.fsdp_confg.param_offload=True",
    ],
)
def test_a_mistake_is_refused_by_every_way_to_start(override, option, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    outcome = CliRunner().invoke(app, ["train", *option, *CPU, override])
    said = outcome.output + str(outcome.exception)
    assert outcome.exit_code != 0
    assert override.partition("=")[0] in said.replace("\n", "")
