"""What prompts, rewards and model must have in common before anything is sampled."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from archer.data.config import DataConfig
from archer.data.prompts import Prompt, PromptDataset, load_prompts
from archer.errors import ArcherError
from archer.generation.device import Compute
from archer.rewards import RewardScorer


def load_dataset(
    data: DataConfig, tokenizer: Any, files: tuple[str, ...], max_samples: int, seed: int | None = None
) -> PromptDataset:
    """Read prompts as `data.*` says; with a seed `max_samples` rows are drawn instead of the first taken.

    A prompt of no tokens at all has no position that a response could follow.
    """
    prompts = load_prompts(
        files,
        tokenizer,
        prompt_key=data.prompt_key,
        reward_fn_key=data.reward_fn_key,
        max_prompt_length=data.max_prompt_length,
        filter_overlong_prompts=data.filter_overlong_prompts,
        max_samples=max_samples,
        shuffle=seed is not None,
        seed=seed or 0,
        apply_chat_template_kwargs=data.apply_chat_template_kwargs,
    )
    for prompt in prompts:
        if not prompt.token_ids:
            raise ArcherError(
                f"Prompt {prompt.index + 1} of {', '.join(files)} becomes no tokens: the chat template "
                "leaves its messages out. Check actor_rollout_ref.model.custom_chat_template and the roles."
            )
    return prompts


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


def check_context(model: Any, longest: int, path: str) -> None:
    """Refuse lengths that the model's positions cannot hold; `longest` is prompt plus response."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)  # also under other names
    if isinstance(limit, int) and longest > limit:
        raise ArcherError(
            f"data.max_prompt_length + data.max_response_length = {longest} is more than the {limit} "
            f"positions of {path}. Lower one of them."
        )


def check_forward(model: Any, compute: Compute) -> None:
    """Run the model once on a few tokens: what is wrong with it shows here, not in the first step."""
    probe = torch.arange(1, 9, device=compute.device)[None] % model.get_input_embeddings().weight.shape[0]
    try:
        with torch.no_grad(), compute.autocast():
            logits = model(input_ids=probe, use_cache=False).logits
    except Exception as error:  # code of any architecture, on any configuration
        raise ArcherError(
            f"{type(model).__name__} was loaded but cannot be run: {type(error).__name__}: "
            f"{(str(error).splitlines() or [''])[0]} Check its config.json and "
            "actor_rollout_ref.model.override_config."
        ) from error
    if not bool(logits.isfinite().any(-1).all()) or bool(logits.isnan().any()):
        raise ArcherError(
            f"The logits of {type(model).__name__} are not finite (NaN or infinite): its weights are "
            f"damaged, or too large for engine.dtype={str(compute.dtype).removeprefix('torch.')}."
        )
