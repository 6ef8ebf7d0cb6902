"""One builder of the generation side, for training, evaluation and verification alike.

Cheapest first, so that mistakes show early: tokenizer, prompts, rewards, then the model.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from archer.data.config import DataConfig
from archer.data.prompts import PromptDataset
from archer.generation.adapter_files import adapter_source, load_adapted
from archer.generation.batch import RolloutLimits
from archer.generation.config import ComputeConfig, ModelConfig, RolloutConfig
from archer.generation.device import Compute, set_up
from archer.generation.judge import Judge
from archer.generation.lora import Adapters, MergedWeights
from archer.generation.model import (
    SamplingWeights,
    check_same_model,
    load_policy,
    load_tokenizer,
    stop_token_ids,
)
from archer.generation.packed import can_pack
from archer.generation.requirements import (
    check_cache,
    check_context,
    check_forward,
    check_rewards,
    check_vocabulary,
    load_dataset,
)
from archer.generation.rollout import Rollout, Sampler
from archer.generation.slots import cache_shape
from archer.generation.vllm_backend import VllmRollout, vllm_is_installed
from archer.rewards import RewardScorer
from archer.rewards.config import RewardConfig

NO_LIMIT = 10**9


@dataclass(frozen=True)
class PromptFiles:
    """Prompts to load: files, and how many of their rows at most (-1: all), the first or drawn by a seed."""

    files: tuple[str, ...]
    max_samples: int = -1
    seed: int | None = None


@dataclass(frozen=True)
class Generation:
    """Everything that turns prompts into judged responses."""

    compute: Compute
    tokenizer: Any
    datasets: Mapping[str, PromptDataset]  # by the setting or option that names their files
    scorer: RewardScorer
    model: PreTrainedModel  # the policy
    rollout: Sampler
    judge: Judge
    backend: str  # what samples: hf or vllm
    adapters: Adapters | None = None  # of a policy that is trained with LoRA


def build_generation(
    model: ModelConfig,
    rollout: RolloutConfig,
    data: DataConfig,
    reward: RewardConfig,
    engine: ComputeConfig,
    prompts: Mapping[str, PromptFiles],
    *,
    weights: str | None = None,
    trains: bool = False,
    fit_prompts: bool = False,
) -> Generation:
    """Load what is configured and check that it fits together.

    prompts:     files by the setting or option that names them, which errors point at
    weights:     a checkpoint folder whose weights take the place of the model's
    trains:      keep float32 weights that can be trained; otherwise the model only samples
    fit_prompts: take the longest prompt for data.max_prompt_length
    """
    compute = set_up(engine)
    tokenizer = load_tokenizer(model)
    loading = replace(data, max_prompt_length=NO_LIMIT) if fit_prompts else data
    datasets = {
        key: load_dataset(loading, tokenizer, named.files, named.max_samples, named.seed)
        for key, named in prompts.items()
    }
    every = [prompt for dataset in datasets.values() for prompt in dataset]
    longest = max(len(prompt.token_ids) for prompt in every)
    scorer = RewardScorer(reward)
    for key, dataset in datasets.items():
        check_rewards(scorer, dataset, key)

    policy, adapters = _load(model, compute, weights, trains)
    check_cache(policy)
    check_context(policy, longest + data.max_response_length, model.path)
    check_vocabulary(policy, every)
    check_forward(policy, compute)
    stop_ids = stop_token_ids(policy, tokenizer)
    pad_id = min(tokenizer.pad_token_id, stop_ids[-1])  # masked, but the model must have an embedding for it
    limits = RolloutLimits(data.max_response_length, rollout.max_num_seqs, longest)
    sampled = (
        SamplingWeights(policy, compute, trains) if adapters is None else MergedWeights(adapters, compute)
    )
    sampler: Sampler
    backend = backend_name(rollout, compute, policy, limits)
    if backend == "vllm":
        sampler = VllmRollout(model, rollout, compute, limits, stop_ids, pad_id, sampled.named_weights)
    else:
        graphs = not rollout.enforce_eager
        sampler = Rollout(sampled, compute, limits, stop_ids, pad_id, graphs)
    judge = Judge(scorer, tokenizer, reward.reward_kwargs.overlong_buffer_cfg, data.max_response_length)
    return Generation(compute, tokenizer, datasets, scorer, policy, sampler, judge, backend, adapters)


def backend_name(
    rollout: RolloutConfig, compute: Compute, model: PreTrainedModel, limits: RolloutLimits
) -> str:
    """What `actor_rollout_ref.rollout.name` comes to: `hf` or `vllm`.

    The built-in decoder was the faster one where it was measured (docs/benchmarks.md). It needs attention
    that can be packed, and room for all responses at their longest; vLLM shares its memory out in pages.
    """
    if rollout.name != "auto":
        return rollout.name
    if compute.device.type != "cuda" or not compute.mixed or not vllm_is_installed():
        return "hf"
    positions = limits.max_prompt_length + limits.max_response_length
    needed = math.prod(cache_shape(model, limits.max_num_seqs, positions)) * compute.dtype.itemsize
    total = torch.cuda.get_device_properties(compute.device).total_memory
    fits = needed <= rollout.gpu_memory_utilization * total
    return "hf" if can_pack(model) and fits else "vllm"


def _load(
    model: ModelConfig, compute: Compute, weights: str | None, trains: bool
) -> tuple[PreTrainedModel, Adapters | None]:
    """The policy, and its adapters where it is trained with LoRA."""
    if not trains:
        model = replace(model, enable_gradient_checkpointing=False)
    adapter_source(model, weights)  # a checkpoint with adapters, or without, must be what is asked for
    if model.lora_rank > 0:
        return load_adapted(model, compute, weights, trains)
    source = model if weights is None else replace(model, path=weights)
    if weights is not None and trains:
        check_same_model(model, source)
    return load_policy(source, compute, exact=weights is not None), None
