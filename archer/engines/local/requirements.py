"""What prompts, rewards and model must have in common before anything is sampled."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from transformers import DynamicCache

from archer.config.root import TrainConfig
from archer.data.prompts import Prompt, PromptDataset, load_prompts
from archer.errors import ArcherError
from archer.rewards.code.config import CodeConfig
from archer.rewards.scorer import RewardConfig, RewardScorer


def load_dataset(
    config: TrainConfig, tokenizer: Any, files: tuple[str, ...], max_samples: int
) -> PromptDataset:
    """Read prompts as `data.*` says."""
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


def reward_config(config: TrainConfig) -> RewardConfig:
    """Return how `reward.*` has responses judged."""
    reward = config.reward
    return RewardConfig(
        workers=reward.num_workers,
        timeout_s=reward.timeout_s,
        last_number_fallback=reward.last_number_fallback,
        custom_path=reward.custom_reward_function.path,
        custom_name=reward.custom_reward_function.name,
        kwargs=reward.custom_kwargs,
        code=CodeConfig(**asdict(reward.code)),
    )


def check_rewards(scorer: RewardScorer, prompts: Sequence[Prompt], key: str) -> None:
    """Refuse prompts that no rule can judge, before training."""
    for prompt in prompts:
        try:
            scorer.check(prompt.data_source, prompt.ground_truth)
        except ArcherError as error:
            raise ArcherError(f"{key}, prompt {prompt.index + 1}: {error}") from error


def check_cache(model: Any) -> None:
    """Refuse architectures whose state cannot be shared out to the responses of a group."""
    layers = DynamicCache(config=model.config).layers
    if any(not hasattr(layer, "batch_repeat_interleave") for layer in layers):
        raise ArcherError(
            f"{type(model).__name__} keeps a state that is not a key-value cache, which engine=local cannot "
            "sample from. Choose a model with attention layers."
        )


def check_vocabulary(model: Any, prompts: Sequence[Prompt]) -> None:
    """Refuse prompts with tokens that the model has no embedding for: a tokenizer that is not the model's."""
    known = model.get_input_embeddings().weight.shape[0]
    for prompt in prompts:
        if max(prompt.token_ids) >= known:
            raise ArcherError(
                f"Prompt {prompt.index} has token {max(prompt.token_ids)}, but the model has {known} "
                "embeddings: the tokenizer is not the model's. Check actor_rollout_ref.model.tokenizer_path."
            )


def check_context(model: Any, config: TrainConfig) -> None:
    """Refuse lengths that the model's positions cannot hold."""
    limit = model.config.to_dict().get("max_position_embeddings")
    wanted = config.data.max_prompt_length + config.data.max_response_length
    if limit is not None and wanted > limit:
        raise ArcherError(
            f"data.max_prompt_length + data.max_response_length = {wanted} is more than the {limit} "
            f"positions of {config.actor_rollout_ref.model.path}. Lower one of them."
        )
