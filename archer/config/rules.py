"""Checks of values and of the relations between them, before anything is loaded."""

import math
from collections.abc import Iterator

from archer.config.loss_rules import loss_rules
from archer.config.parse import leaves
from archer.config.root import TrainConfig
from archer.errors import ArcherError

POSITIVE = (
    "data.max_prompt_length",
    "data.max_response_length",
    "data.train_batch_size",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.actor.ppo_epochs",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.actor.grad_clip",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.temperature",
    "actor_rollout_ref.rollout.max_num_seqs",
    "actor_rollout_ref.rollout.val_kwargs.n",
    "actor_rollout_ref.rollout.val_kwargs.temperature",
    "reward.num_workers",
    "reward.timeout_s",
    "reward.code.test_timeout_s",
    "reward.code.total_timeout_s",
    "trainer.total_epochs",
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
    "algorithm.filter_groups.max_num_gen_batches",
)
OPTIONAL_POSITIVE = (
    "reward.code.max_tests",
    "data.gen_batch_size",
    "data.val_batch_size",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.actor.loss_scale_factor",
    "actor_rollout_ref.actor.clip_ratio_low",
    "actor_rollout_ref.actor.clip_ratio_high",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
)
NOT_NEGATIVE = (
    "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.actor.optim.weight_decay",
    "actor_rollout_ref.actor.clip_ratio",
    "actor_rollout_ref.actor.low_entropy_clip_ratio_low",
    "actor_rollout_ref.actor.low_entropy_clip_ratio_high",
    "actor_rollout_ref.actor.high_entropy_clip_ratio_low",
    "actor_rollout_ref.actor.high_entropy_clip_ratio_high",
    "actor_rollout_ref.actor.kl_loss_coef",
    "actor_rollout_ref.actor.high_entropy_kl_loss_scale_coef",
    "algorithm.kl_ctrl.kl_coef",
    "reward.reward_kwargs.overlong_buffer_cfg.len",
    "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor",
    "engine.threads",
)
AT_LEAST_ONE = ("trainer.entropy_trace.write_every",)
COMPARES_A_GROUP = ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline")
LOGGERS = ("console", "tensorboard", "wandb", "trackio")


def check(config: TrainConfig) -> None:
    """Raise one ArcherError that lists everything wrong with `config`; return quietly otherwise."""
    rules = (_ranges, _sampling, _optimisation, loss_rules, _batches, _ranks, _run)
    problems = [problem for rule in rules for problem in rule(config)]
    if problems:
        raise ArcherError("The configuration has a problem:\n" + "\n".join(f"  {p}" for p in problems))


def value_of(config: TrainConfig, key: str) -> object:
    """Return the value of a full key name."""
    node: object = config
    for name in key.split("."):
        node = getattr(node, name)
    return node


def _ranges(config: TrainConfig) -> Iterator[str]:
    for key, _, _ in leaves(TrainConfig):
        value = value_of(config, key)
        if key in OPTIONAL_POSITIVE and value is not None and not value > 0:  # type: ignore[operator]
            yield f"{key}={value}: must be greater than 0, or left out"
        if key in POSITIVE and not value > 0:  # type: ignore[operator]
            yield f"{key}={value}: must be greater than 0"
        if key in AT_LEAST_ONE and not value >= 1:  # type: ignore[operator]
            yield f"{key}={value}: must be at least 1"
        if key in NOT_NEGATIVE and not value >= 0:  # type: ignore[operator]
            yield f"{key}={value}: must not be negative"


def _sampling(config: TrainConfig) -> Iterator[str]:
    rollout = config.actor_rollout_ref.rollout
    for prefix, top_p, top_k in (
        ("actor_rollout_ref.rollout", rollout.top_p, rollout.top_k),
        ("actor_rollout_ref.rollout.val_kwargs", rollout.val_kwargs.top_p, rollout.val_kwargs.top_k),
    ):
        if not 0 < top_p <= 1:
            yield f"{prefix}.top_p={top_p}: must be in (0, 1]"
        if top_k != -1 and top_k < 1:
            yield f"{prefix}.top_k={top_k}: must be -1 (all tokens) or at least 1"


def _optimisation(config: TrainConfig) -> Iterator[str]:
    actor, optim = config.actor_rollout_ref.actor, config.actor_rollout_ref.actor.optim
    prefix = "actor_rollout_ref.actor.optim"
    if not math.isfinite(optim.lr):
        yield f"{prefix}.lr={optim.lr}: must be a finite number"
    if len(optim.betas) != 2 or not all(0 <= beta < 1 for beta in optim.betas):
        yield f"{prefix}.betas={list(optim.betas)}: expected two numbers in [0, 1)"
    if not 0 <= optim.lr_warmup_steps_ratio <= 1:
        yield f"{prefix}.lr_warmup_steps_ratio={optim.lr_warmup_steps_ratio}: must be in [0, 1]"
    if actor.clip_ratio_c <= 1:
        yield f"actor_rollout_ref.actor.clip_ratio_c={actor.clip_ratio_c}: must be greater than 1"
    if not 0 <= config.algorithm.gamma <= 1:
        yield f"algorithm.gamma={config.algorithm.gamma}: must be in [0, 1]"
    if config.algorithm.adv_estimator == "gae" and config.engine.name == "local":
        yield (
            "algorithm.adv_estimator=gae needs a critic, which only engine=verl trains; choose grpo, "
            "dr_grpo, rloo or reinforce_plus_plus"
        )
    alone = config.actor_rollout_ref.rollout.n == 1 and not config.trainer.val_only
    estimator = config.algorithm.adv_estimator
    if alone and estimator in COMPARES_A_GROUP:
        yield (
            f"actor_rollout_ref.rollout.n=1: algorithm.adv_estimator={estimator} compares "
            "the responses to a prompt with each other, so all advantages would be 0: set "
            "actor_rollout_ref.rollout.n=2 or more, or algorithm.adv_estimator=reinforce_plus_plus (or gae, "
            "with engine=verl)"
        )


def _batches(config: TrainConfig) -> Iterator[str]:
    data, actor = config.data, config.actor_rollout_ref.actor
    if actor.ppo_mini_batch_size > data.train_batch_size:
        yield (
            f"actor_rollout_ref.actor.ppo_mini_batch_size={actor.ppo_mini_batch_size} is more than "
            f"data.train_batch_size={data.train_batch_size} (both count prompts): set "
            f"actor_rollout_ref.actor.ppo_mini_batch_size={data.train_batch_size}, or less"
        )
    if not actor.use_dynamic_bsz and not actor.ppo_micro_batch_size_per_gpu:
        yield "actor_rollout_ref.actor.use_dynamic_bsz=False needs ppo_micro_batch_size_per_gpu"
    for key, count in (("train", data.train_max_samples), ("val", data.val_max_samples)):
        if count != -1 and count < 1:
            yield f"data.{key}_max_samples={count}: must be -1 (all) or at least 1"
    overlong = config.reward.reward_kwargs.overlong_buffer_cfg
    if overlong.enable and overlong.len > data.max_response_length:
        yield (
            f"reward.reward_kwargs.overlong_buffer_cfg.len={overlong.len} is more than "
            f"data.max_response_length={data.max_response_length}"
        )
    if config.algorithm.filter_groups.enable and config.actor_rollout_ref.rollout.n < 2:
        yield "algorithm.filter_groups.enable=True needs actor_rollout_ref.rollout.n of at least 2"


def _ranks(config: TrainConfig) -> Iterator[str]:
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    prompts, n = config.actor_rollout_ref.actor.ppo_mini_batch_size, config.actor_rollout_ref.rollout.n
    if config.engine.name == "verl" and prompts * n % ranks:
        yield (
            f"actor_rollout_ref.actor.ppo_mini_batch_size={prompts} times rollout.n={n} are {prompts * n} "
            f"responses, which {ranks} devices cannot share equally"
        )


def _run(config: TrainConfig) -> Iterator[str]:
    trainer = config.trainer
    if not config.actor_rollout_ref.model.path:
        yield (
            "actor_rollout_ref.model.path is not set: give a folder or a hub id, or use recipe=arithmetic "
            "(the model that comes with Archer)"
        )
    if not config.data.train_files and not trainer.val_only:
        yield "data.train_files is not set: give JSON, JSONL or Parquet files, or recipe=arithmetic"
    if trainer.val_only and not config.data.val_files:
        yield "trainer.val_only=True needs data.val_files"
    if config.engine.name == "local" and config.engine.verl:
        yield "engine.verl holds settings of verl's, which need engine=verl"
    if config.engine.name == "local" and (trainer.nnodes, trainer.n_gpus_per_node) != (1, 1):
        yield (
            f"trainer.nnodes={trainer.nnodes} and trainer.n_gpus_per_node={trainer.n_gpus_per_node}: "
            "engine=local is one process on one device; engine=verl uses many"
        )
    if trainer.total_training_steps is not None and trainer.total_training_steps < 1:
        yield f"trainer.total_training_steps={trainer.total_training_steps}: must be greater than 0"
    if trainer.max_actor_ckpt_to_keep is not None and trainer.max_actor_ckpt_to_keep < 1:
        yield f"trainer.max_actor_ckpt_to_keep={trainer.max_actor_ckpt_to_keep}: must be at least 1"
    if (trainer.resume_mode == "resume_path") != (trainer.resume_from_path is not None):
        yield "trainer.resume_mode=resume_path and trainer.resume_from_path=FOLDER go together"
    traced = trainer.influence_trace
    if (
        traced.enable
        and traced.accepted_rejected_scope == "all_selected"
        and config.actor_rollout_ref.actor.ppo_mini_batch_size < config.data.train_batch_size
    ):
        yield (
            "trainer.influence_trace.accepted_rejected_scope=all_selected compares all prompts of a step, "
            "but ppo_mini_batch_size < train_batch_size moves the weights between them: make the two equal, "
            "or use per_prompt"
        )
    if not trainer.experiment_name.strip():
        yield "trainer.experiment_name is empty: it names the run's folder; give it a name, or leave it out"
    for name in trainer.logger:
        if name not in LOGGERS:
            yield f"trainer.logger={name!r}: choose from {', '.join(LOGGERS)}"
