"""Everything a training run is made of, put together from its configuration."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import DynamicCache

from archer.config.root import TrainConfig
from archer.data.prompts import Prompt, PromptDataset, load_prompts
from archer.data.sampler import PromptSampler
from archer.engines.local.checkpoint import Checkpoint
from archer.engines.local.collect import Collector
from archer.engines.local.device import Compute, set_up
from archer.engines.local.judge import Judge
from archer.engines.local.model import load_policy, load_reference, load_tokenizer, stop_token_ids
from archer.engines.local.policy import Policy
from archer.engines.local.rollout import Rollout, RolloutLimits
from archer.engines.local.validation import Validator
from archer.engines.local.weights import SamplingWeights
from archer.errors import ArcherError
from archer.rewards.scorer import RewardConfig, RewardScorer


@dataclass(frozen=True)
class Parts:
    """The objects of one run."""

    config: TrainConfig
    compute: Compute
    tokenizer: Any
    policy: Policy
    reference: Policy | None
    sampling_weights: SamplingWeights
    scorer: RewardScorer
    collector: Collector
    validator: Validator | None
    total_steps: int


def build(config: TrainConfig, start: Checkpoint | None) -> Parts:
    """Load data, model and rewards. `start` replaces the policy's weights, never the reference's."""
    compute = set_up(config.engine)
    options = config.actor_rollout_ref
    tokenizer = load_tokenizer(options.model)
    train, val = _datasets(config, tokenizer)
    scorer = RewardScorer(_reward_config(config))
    _check_rewards(scorer, train, "data.train_files")
    _check_rewards(scorer, val or (), "data.val_files")

    source = options.model if start is None else replace(options.model, path=str(start.path.resolve()))
    model = load_policy(source, compute)
    policy = Policy(model, compute, options.rollout.temperature)
    reference = None
    if config.needs_reference:
        reference = Policy(load_reference(options.model, compute), compute, options.rollout.temperature)
    sampling_weights = SamplingWeights(model, compute)
    rollout = Rollout(
        sampling_weights.model,
        compute,
        RolloutLimits(
            config.data.max_response_length, options.rollout.max_num_seqs, config.data.max_prompt_length
        ),
        stop_token_ids(model, tokenizer),
        tokenizer.pad_token_id,
        config.engine.compile_decoding,
    )
    _check_cache(model)
    _check_context(model, config)
    _check_vocabulary(model, (*train, *(val or ())))
    overlong = config.reward.reward_kwargs.overlong_buffer_cfg
    judge = Judge(scorer, tokenizer, overlong, config.data.max_response_length)
    sampler = PromptSampler(len(train), config.data.train_batch_size, config.data.shuffle, config.data.seed)
    collector = Collector(config, train, sampler, rollout, judge)
    validator = Validator(config, val, rollout, judge) if val else None
    total = config.trainer.total_training_steps or config.trainer.total_epochs * sampler.steps_per_epoch
    return Parts(
        config,
        compute,
        tokenizer,
        policy,
        reference,
        sampling_weights,
        scorer,
        collector,
        validator,
        total,
    )


def _datasets(config: TrainConfig, tokenizer: Any) -> tuple[PromptDataset, PromptDataset | None]:
    def load(files: tuple[str, ...], max_samples: int) -> PromptDataset:
        return load_prompts(
            files,
            tokenizer,
            prompt_key=config.data.prompt_key,
            reward_fn_key=config.data.reward_fn_key,
            max_prompt_length=config.data.max_prompt_length,
            filter_overlong_prompts=config.data.filter_overlong_prompts,
            max_samples=max_samples,
            apply_chat_template_kwargs=config.data.apply_chat_template_kwargs,
        )

    val = load(config.data.val_files, config.data.val_max_samples) if config.data.val_files else None
    train = load(config.data.train_files, config.data.train_max_samples) if config.data.train_files else val
    assert train is not None, "the configuration rules ask for one of the two"
    return train, val


def _reward_config(config: TrainConfig) -> RewardConfig:
    reward = config.reward
    return RewardConfig(
        workers=reward.num_workers,
        timeout_s=reward.timeout_s,
        last_number_fallback=reward.last_number_fallback,
        custom_path=reward.custom_reward_function.path,
        custom_name=reward.custom_reward_function.name,
        kwargs=reward.custom_kwargs,
    )


def _check_rewards(scorer: RewardScorer, prompts: Sequence[Prompt], key: str) -> None:
    """Refuse prompts that no rule can judge, before training."""
    for prompt in prompts:
        try:
            scorer.check(prompt.data_source, prompt.ground_truth)
        except ArcherError as error:
            raise ArcherError(f"{key}, prompt {prompt.index + 1}: {error}") from error


def _check_cache(model: Any) -> None:
    """Refuse architectures whose state cannot be shared out to the responses of a group."""
    layers = DynamicCache(config=model.config).layers
    if any(not hasattr(layer, "batch_repeat_interleave") for layer in layers):
        raise ArcherError(
            f"{type(model).__name__} keeps a state that is not a key-value cache, which engine=local cannot "
            "sample from. Choose a model with attention layers."
        )


def _check_vocabulary(model: Any, prompts: Sequence[Prompt]) -> None:
    """Refuse prompts with tokens that the model has no embedding for: a tokenizer that is not the model's."""
    known = model.get_input_embeddings().weight.shape[0]
    for prompt in prompts:
        if max(prompt.token_ids) >= known:
            raise ArcherError(
                f"Prompt {prompt.index} has token {max(prompt.token_ids)}, but the model has {known} "
                "embeddings: the tokenizer is not the model's. Check actor_rollout_ref.model.tokenizer_path."
            )


def _check_context(model: Any, config: TrainConfig) -> None:
    """Refuse lengths that the model's positions cannot hold."""
    limit = model.config.to_dict().get("max_position_embeddings")
    wanted = config.data.max_prompt_length + config.data.max_response_length
    if limit is not None and wanted > limit:
        raise ArcherError(
            f"data.max_prompt_length + data.max_response_length = {wanted} is more than the {limit} "
            f"positions of {config.actor_rollout_ref.model.path}. Lower one of them."
        )
