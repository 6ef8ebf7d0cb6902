"""Relations between settings, checked before anything is loaded; each range is declared with its setting."""

from collections.abc import Iterator

from archer.algorithms.advantages.base import ADVANTAGES
from archer.algorithms.kl import KL_ESTIMATORS
from archer.algorithms.rollout_correction import Threshold
from archer.algorithms.token_credit.base import CREDIT_MODES
from archer.config.notes import idle_refusals
from archer.config.parse import configuration_error
from archer.config.root import TrainConfig
from archer.data.builtin import ARITHMETIC
from archer.errors import ArcherError
from archer.plugins import is_reference

ACTOR = "actor_rollout_ref.actor"
LOGGERS = ("console", "tensorboard", "wandb", "trackio")


def check(config: TrainConfig) -> None:
    """Raise one ArcherError that lists everything wrong with `config`; return quietly otherwise."""
    rules = (
        *(_sampler, _update, _advantages, _kl_in_reward, _credit, idle_refusals, _batches, _ranks, _run),
        _traces,
    )
    problems = [problem for rule in rules for problem in rule(config)]
    if problems:
        raise configuration_error(problems)


def _sampler(config: TrainConfig) -> Iterator[str]:
    name, backends = config.actor_rollout_ref.rollout.name, ("auto", "hf", "vllm")
    if config.engine.name == "local" and name not in backends:
        yield (
            f"actor_rollout_ref.rollout.name={name}: engine=local samples with {', '.join(backends)}; "
            "other servers need engine=verl"
        )
    if config.engine.name == "verl" and name == "hf":
        yield "actor_rollout_ref.rollout.name=hf: engine=verl samples with vllm or sglang; auto takes vllm"


def _update(config: TrainConfig) -> Iterator[str]:
    betas = config.actor_rollout_ref.actor.optim.betas
    if len(betas) != 2:
        yield f"{ACTOR}.optim.betas={list(betas)}: expected two numbers in [0, 1)"
    try:
        Threshold.parse(config.algorithm.rollout_correction.rollout_is_threshold)
    except ArcherError as error:
        yield str(error)


def _advantages(config: TrainConfig) -> Iterator[str]:
    name = config.algorithm.adv_estimator
    facts = ADVANTAGES.find(name).facts
    if facts.get("needs_critic") and config.engine.name == "local":
        yield (
            f"algorithm.adv_estimator={name} needs a critic, which only engine=verl trains; choose grpo, "
            "dr_grpo, rloo or reinforce_plus_plus"
        )
    alone = config.actor_rollout_ref.rollout.n == 1 and not config.trainer.val_only
    if alone and facts.get("compares_group"):
        yield (
            f"actor_rollout_ref.rollout.n=1: algorithm.adv_estimator={name} compares "
            "the responses to a prompt with each other, so all advantages would be 0: set "
            "actor_rollout_ref.rollout.n=2 or more, or algorithm.adv_estimator=reinforce_plus_plus (or gae, "
            "with engine=verl)"
        )


def _credit(config: TrainConfig) -> Iterator[str]:
    chosen = config.algorithm.token_credit
    key = "algorithm.token_credit"
    files = config.data.train_files
    builtin = all(file.startswith(ARITHMETIC) for file in files)
    if CREDIT_MODES.find(chosen.mode).facts.get("mistakes") and not builtin:
        yield (
            f"{key}.mode={chosen.mode} reads the first mistake of each response, which only the built-in "
            f"task knows; data.train_files={','.join(files)}: train on {ARITHMETIC} (recipe=arithmetic), or "
            "choose another mode"
        )


def _kl_in_reward(config: TrainConfig) -> Iterator[str]:
    algorithm = config.algorithm
    if config.engine.name == "verl" and algorithm.use_kl_in_reward and is_reference(algorithm.kl_penalty):
        yield (
            f"algorithm.kl_penalty={algorithm.kl_penalty}: the KL in the reward is verl's with engine=verl; "
            f"choose one of {', '.join(KL_ESTIMATORS.names())}, or put your own in the loss: "
            f"{ACTOR}.use_kl_loss=True {ACTOR}.kl_loss_type={algorithm.kl_penalty}"
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
    overlong = config.reward.reward_kwargs.overlong_buffer_cfg
    if overlong.enable and overlong.len > data.max_response_length:
        yield (
            f"reward.reward_kwargs.overlong_buffer_cfg.len={overlong.len} is more than "
            f"data.max_response_length={data.max_response_length}"
        )
    if config.algorithm.filter_groups.enable and config.actor_rollout_ref.rollout.n < 2:
        yield "algorithm.filter_groups.enable=True needs actor_rollout_ref.rollout.n of at least 2"


def _ranks(config: TrainConfig) -> Iterator[str]:
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node // config.sequence_parallel_size
    prompts, n = config.actor_rollout_ref.actor.ppo_mini_batch_size, config.actor_rollout_ref.rollout.n
    if config.engine.name == "verl" and ranks and prompts * n % ranks:
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
    if (trainer.resume_mode == "resume_path") != (trainer.resume_from_path is not None):
        yield "trainer.resume_mode=resume_path and trainer.resume_from_path=FOLDER go together"
    if not trainer.experiment_name.strip():
        yield "trainer.experiment_name is empty: it names the run's folder; give it a name, or leave it out"
    for name in trainer.logger:
        if name not in LOGGERS:
            yield f"trainer.logger={name!r}: choose from {', '.join(LOGGERS)}"


def _traces(config: TrainConfig) -> Iterator[str]:
    traced = config.trainer.influence_trace
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
