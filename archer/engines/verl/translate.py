"""What Archer's settings mean in verl's configuration. Most have the same name there and are copied."""

import os
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from archer.algorithms.advantages.base import ADVANTAGES
from archer.config.parse import leaves, value_of
from archer.config.root import TrainConfig
from archer.generation.config import module_pattern
from archer.generation.model import model_folder, tokenizer_folder
from archer.plugins import is_reference
from archer.settings import declaration
from archer.training.portions import token_budget

Tree = dict[str, Any]

TRAINER_MODE = "archer"
PLUGIN = "archer.engines.verl.plugin"
AGENT_LOOP = "archer_single_turn"
CPU_ROLLOUT = "transformers_cpu"
ESTIMATOR_PREFIX = "archer_"

NOT_COPIED = (
    "engine.",  # says how verl is run
    "trainer.entropy_trace.",  # traces are Archer's
    "trainer.influence_trace.",
    "trainer.val_trace.",
    "trainer.diagnose",
    "trainer.skip_optimizer_step",
    "trainer.log_step_responses",
    "trainer.max_skipped_updates",
    "trainer.logger",  # so are metrics, checkpoints' names and the decision to resume
    "trainer.default_local_dir",
    "trainer.resume_",
    "trainer.save_freq",
    "trainer.test_freq",
    "trainer.val_before_train",
    "trainer.val_only",
    "trainer.max_actor_ckpt_to_keep",
    "reward.",  # responses are judged by Archer's scorer
    "algorithm.adv_estimator",  # by Archer's functions, registered under their own names
    "algorithm.token_credit.",  # by the driver, multiplied in Archer's loss
    "algorithm.filter_groups.",  # by Archer's rule: bounded, then training on what there is
    "data.gen_batch_size",
    "actor_rollout_ref.actor.shuffle",  # whole groups, by the driver
    "actor_rollout_ref.actor.token_entropy_quantile",  # the loss is Archer's
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.tokenizer_path",
)
"""Settings of Archer's that are not handed to verl under their own name."""


def translate(config: TrainConfig, base: DictConfig) -> Tree:
    """Return the tree that is laid over verl's defaults."""
    tree: Tree = {}
    for key, _, _ in leaves(config):
        value = value_of(config, key)
        if value is not None and not key.startswith(NOT_COPIED) and _has(base, key):
            put(tree, key, list(value) if isinstance(value, tuple) else value)
    for part in (_data, _model, _adapters, _actor, _rollout, _critic, _algorithm, _run, _archer):
        for key, value in part(config).items():
            put(tree, key, value)
    if on_cpu(config):
        for key, value in _cpu(config).items():
            put(tree, key, value)
    return tree


def on_cpu(config: TrainConfig) -> bool:
    """Whether this is a trial without accelerator."""
    return config.engine.device == "cpu"


def threads(config: TrainConfig) -> int:
    """Threads of a training process on the CPU: its share of the cores at most."""
    share = max(1, (os.cpu_count() or 1) // ranks(config))
    return min(config.engine.threads or 1, share)


def ranks(config: TrainConfig) -> int:
    """Training processes, one a device."""
    return config.trainer.nnodes * config.trainer.n_gpus_per_node


def data_parallel_size(config: TrainConfig) -> int:
    """Parts that verl deals a batch out to: one a device, or one for those that share a sequence."""
    return ranks(config) // config.sequence_parallel_size


def _data(config: TrainConfig) -> Tree:
    return {
        "data.custom_cls.path": "pkg://archer.engines.verl.prompts",
        "data.custom_cls.name": "ArcherDataset",
        "data.dataloader_num_workers": 0,  # prompts are in memory
        "data.validation_shuffle": False,
        "data.gen_batch_size": generation_size(config),
        # verl wants a validation set even where none is used
        "data.val_files": list(config.data.val_files or config.data.train_files),
        "data.train_files": list(config.data.train_files or config.data.val_files),
    }


def generation_size(config: TrainConfig) -> int:
    """Prompts of one generation."""
    filtering = config.algorithm.filter_groups.enable
    chosen = config.data.gen_batch_size if filtering else None
    return chosen or config.data.train_batch_size


def _model(config: TrainConfig) -> Tree:
    model = config.actor_rollout_ref.model
    folder = _absolute(model_folder(model.path))
    flash = find_spec("flash_attn") is not None and not on_cpu(config)
    override = {"attn_implementation": "flash_attention_2" if flash else "sdpa", **model.override_config}
    return {
        "actor_rollout_ref.model.path": folder,
        "actor_rollout_ref.model.tokenizer_path": _absolute(tokenizer_folder(model)),
        "actor_rollout_ref.model.override_config": override,
        # without flash-attention a packed batch costs the square of its length
        "actor_rollout_ref.model.use_remove_padding": flash,
        "actor_rollout_ref.model.external_lib": external_libraries(config),
        "actor_rollout_ref.model.enable_gradient_checkpointing": bool(model.enable_gradient_checkpointing),
    }


def _adapters(config: TrainConfig) -> Tree:
    """LoRA of the actor; a critic is trained whole unless `critic.model.lora_rank` is set, too."""
    model = config.actor_rollout_ref.model
    path = model.lora_adapter_path
    return {
        "actor_rollout_ref.model.target_modules": module_pattern(model.target_modules),
        "actor_rollout_ref.model.exclude_modules": module_pattern(model.exclude_modules),
        "actor_rollout_ref.model.lora_adapter_path": None if path is None else _absolute(path),
    }


def external_libraries(config: TrainConfig) -> list[str]:
    """What every process imports: Archer's part of verl, then the modules of the user."""
    chosen = OmegaConf.select(OmegaConf.create(config.engine.verl), "actor_rollout_ref.model.external_lib")
    names = [chosen] if isinstance(chosen, str) else list(chosen or ())
    return [PLUGIN, *names]


def _actor(config: TrainConfig) -> Tree:
    actor = config.actor_rollout_ref.actor
    micro = actor.ppo_micro_batch_size_per_gpu
    precision = {"param_dtype": compute_type(config), "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    adapted = config.actor_rollout_ref.model.lora_rank > 0  # then Archer writes adapters in PEFT's format
    contents = ["model", "optimizer", "extra"]
    return {
        "actor_rollout_ref.actor.strategy": "fsdp2",
        "actor_rollout_ref.actor.fsdp_config.strategy": "fsdp2",
        "actor_rollout_ref.actor.fsdp_config.mixed_precision": precision,
        "actor_rollout_ref.ref.fsdp_config.strategy": "fsdp2",
        "actor_rollout_ref.ref.fsdp_config.mixed_precision": precision,
        "actor_rollout_ref.actor.optim.clip_grad": actor.grad_clip,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": token_budget(actor),
        "actor_rollout_ref.actor.policy_loss.loss_mode": "vanilla",  # Archer's loss takes the place of verl's
        "actor_rollout_ref.actor.shuffle": False,
        "actor_rollout_ref.actor.checkpoint.save_contents": contents if adapted else [*contents, "hf_model"],
        "actor_rollout_ref.actor.checkpoint.load_contents": contents,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": micro,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": micro,
    }


def compute_type(config: TrainConfig) -> str:
    """What parameters are computed in, in verl's words."""
    if config.engine.dtype == "auto":
        return "fp32" if on_cpu(config) else "bf16"
    return {"float32": "fp32", "bfloat16": "bf16"}[config.engine.dtype]


def _rollout(config: TrainConfig) -> Tree:
    greedy = not config.actor_rollout_ref.rollout.val_kwargs.do_sample
    prefix = "actor_rollout_ref.rollout"
    return {
        f"{prefix}.name": rollout_name(config),
        f"{prefix}.tensor_model_parallel_size": 1,
        f"{prefix}.calculate_log_probs": True,
        f"{prefix}.agent.default_agent_loop": AGENT_LOOP,
        **({f"{prefix}.val_kwargs.temperature": 0.0} if greedy else {}),  # verl does not look at do_sample
        **({f"{prefix}.val_kwargs.top_p": 1.0} if greedy else {}),
        **({f"{prefix}.val_kwargs.top_k": -1} if greedy else {}),
    }


def rollout_name(config: TrainConfig) -> str:
    """The backend that samples responses."""
    if on_cpu(config):
        return CPU_ROLLOUT
    name = config.actor_rollout_ref.rollout.name
    return "vllm" if name == "auto" else name


def _critic(config: TrainConfig) -> Tree:
    if not ADVANTAGES.find(config.algorithm.adv_estimator).facts.get("needs_critic"):
        return {"critic.enable": False}
    model, actor = config.actor_rollout_ref.model, config.actor_rollout_ref.actor
    return {
        "critic.enable": True,
        "critic.strategy": "fsdp2",
        "critic.fsdp.strategy": "fsdp2",
        "critic.fsdp.mixed_precision": {"param_dtype": compute_type(config), "reduce_dtype": "fp32"},
        "critic.ppo_micro_batch_size_per_gpu": actor.ppo_micro_batch_size_per_gpu,
        "critic.ppo_max_token_len_per_gpu": token_budget(actor),
        "critic.model.enable_gradient_checkpointing": bool(model.enable_gradient_checkpointing),
        "critic.model.trust_remote_code": model.trust_remote_code,
        **{key.replace("actor_rollout_ref.", "critic."): value for key, value in _model(config).items()},
    }


def _algorithm(config: TrainConfig) -> Tree:
    return {
        "algorithm.adv_estimator": estimator_name(config),
        "algorithm.filter_groups.enable": False,
    }


def estimator_name(config: TrainConfig) -> str:
    """The name that verl knows the advantage estimator by; GAE is verl's own."""
    name = config.algorithm.adv_estimator
    return name if ADVANTAGES.find(name).facts.get("needs_critic") else f"{ESTIMATOR_PREFIX}{name}"


def _run(config: TrainConfig) -> Tree:
    return {
        "reward.num_workers": config.trainer.nnodes,  # each with reward.num_workers processes
        "reward.reward_manager.source": "importlib",
        "reward.reward_manager.name": "ArcherRewardManager",
        "reward.reward_manager.module.path": "pkg://archer.engines.verl.reward",
        "trainer.v1.trainer_mode": TRAINER_MODE,
        "trainer.device": "cpu" if on_cpu(config) else "cuda",
        "trainer.logger": [],
        "trainer.default_local_dir": str((config.run_dir / "checkpoints").resolve()),
        "trainer.resume_mode": "disable",
        "trainer.val_before_train": False,
    }


def _archer(config: TrainConfig) -> Tree:
    """Archer's own configuration, for the processes that only see a part of verl's."""
    function = config.reward.custom_reward_function
    if function.path is not None:  # a worker's folder may be another
        absolute = replace(function, path=str(Path(function.path).expanduser().resolve()))
        config = replace(config, reward=replace(config.reward, custom_reward_function=absolute))
    listed = tuple(
        {**entry, "path": str(Path(entry["path"]).expanduser().resolve())}
        for entry in config.reward.custom_reward_functions
    )
    config = replace(config, reward=replace(config.reward, custom_reward_functions=listed))
    tree = asdict(config)
    for key, _, setting in leaves(config):
        value = value_of(config, key)
        if declaration(setting).table is not None and is_reference(value):
            path, _, name = value.rpartition(":")
            put(tree, key, f"{Path(path).expanduser().resolve()}:{name}")
    return {"trainer.archer": tree, "actor_rollout_ref.archer": tree}


def _cpu(config: TrainConfig) -> Tree:
    return {
        "actor_rollout_ref.actor.use_torch_compile": False,
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile": False,
        "actor_rollout_ref.ref.fsdp_config.use_torch_compile": False,
        "critic.fsdp.use_torch_compile": False,
        "actor_rollout_ref.model.lora.merge": True,  # the rollout there takes whole weights only
        "actor_rollout_ref.rollout.agent.num_workers": 1,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        # verl counts GPUs; a trial has as many as it has ranks, and enough CPUs to place every actor
        "ray_kwargs.ray_init.address": "local",
        "ray_kwargs.ray_init.num_gpus": ranks(config),
        "ray_kwargs.ray_init.num_cpus": 16 + 4 * ranks(config),
        "ray_kwargs.ray_init.object_store_memory": 300 * 2**20,
        "actor_rollout_ref.rollout.n_gpus_per_node": config.trainer.n_gpus_per_node,
    }


def _absolute(path: str) -> str:
    """A folder by its full name; a hub id as it is."""
    return str(Path(path).resolve()) if Path(path).is_dir() else path


def _has(base: DictConfig, key: str) -> bool:
    node: Any = base
    for name in key.split("."):
        if not isinstance(node, DictConfig) or name not in node:
            return False
        node = node._get_node(name)
    return True


def put(tree: Tree, key: str, value: Any) -> None:
    """Set a value by its full name."""
    *sections, name = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[name] = value
