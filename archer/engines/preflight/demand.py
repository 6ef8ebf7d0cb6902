"""Which memory a configured run needs, and when: while it samples and while it updates."""

from dataclasses import dataclass

import torch
from omegaconf import OmegaConf

from archer.config.root import TrainConfig
from archer.engines.local.division import PORTION
from archer.engines.preflight.memory import (
    GIB,
    at_head_bytes,
    cache_bytes,
    decoding_bytes,
    inside_layer_bytes,
    kept_bytes,
    state_bytes,
    whole_logit_bytes,
)
from archer.engines.preflight.model import ModelFacts
from archer.influence.capture import KEEP_ALL
from archer.influence.describe import bytes_per_token, solve_bytes
from archer.influence.modules import traced_modules

PROGRAM = int(0.6 * GIB)
"""The program without any tensor: Python, torch and transformers in main memory; CUDA's context on a GPU."""
CHUNK = 64 * 2**20  # pieces in which influence is scored
CACHE_STEP = 64  # cache lengths are multiples of it
FACTOR_TYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Part:
    """One thing that takes memory, in bytes, and the phases in which it is there."""

    name: str
    bytes: int
    sampling: bool
    updating: bool


@dataclass(frozen=True)
class Demand:
    """All parts of one process on one device."""

    parts: tuple[Part, ...]

    @property
    def peak(self) -> int:
        """Bytes of the larger phase."""
        sampling = sum(part.bytes for part in self.parts if part.sampling)
        return max(sampling, sum(part.bytes for part in self.parts if part.updating))

    def __str__(self) -> str:
        shown = [f"{part.name} {gib(part.bytes)}" for part in self.parts if part.bytes >= 0.005 * GIB]
        return f"{gib(self.peak)} GiB at the peak: " + ", ".join(shown)


def gib(size: int) -> str:
    """Bytes in GiB, as text."""
    return f"{size / GIB:.1f}" if size >= 10 * GIB else f"{size / GIB:.2f}"


def local_demand(config: TrainConfig, facts: ModelFacts, device: str) -> Demand:
    """Memory of engine=local on `cpu` or `cuda`."""
    mixed = device == "cuda" if config.engine.dtype == "auto" else config.engine.dtype == "bfloat16"
    width = 2 if mixed else 4
    shape, rollout = facts.shape, config.actor_rollout_ref.rollout
    weights, gradients, moments = state_bytes(shape)
    rows = min(rollout.max_num_seqs, config.data.train_batch_size * rollout.n)
    if config.data.val_files:
        rows = rollout.max_num_seqs
    prompts = max(1, rows // rollout.n) * config.data.max_prompt_length
    nucleus = min(rollout.top_p, rollout.val_kwargs.top_p) < 1
    positions = -(-_longest(config) // CACHE_STEP) * CACHE_STEP
    static = device == "cuda" and config.engine.compile_decoding  # kept between steps, rows a power of two
    cached = cache_bytes(shape, 1 << (rows - 1).bit_length() if static else rows, positions, width)
    tokens = _micro_batch(config)
    saved = config.actor_rollout_ref.model.enable_gradient_checkpointing
    layer = inside_layer_bytes(shape, tokens, width, saved)
    return Demand(
        (
            Part("weights", weights, True, True),
            Part("gradients", gradients, False, True),
            Part("optimizer", moments, True, True),
            Part("reference", weights if config.needs_reference else 0, True, True),
            Part("copy that samples", 2 * shape.parameters if mixed else 0, True, True),
            Part("weights in bfloat16 for the products", 2 * shape.parameters if mixed else 0, False, True),
            Part("KV cache", cached, True, static),
            Part("drawing tokens", decoding_bytes(shape, rows, prompts, width, nucleus), True, False),
            Part("activations", kept_bytes(shape, tokens, width, 4, saved), False, True),
            Part("one layer or the logits", max(layer, at_head_bytes(shape, tokens, width)), False, True),
            Part("influence", influence_bytes(config, facts, width), False, True),
            Part("program", PROGRAM, True, True),
        )
    )


def verl_demand(config: TrainConfig, facts: ModelFacts, device_bytes: int | None) -> Demand:
    """Memory of a rank of engine=verl.

    State is sharded over all ranks, the reference too. While it samples, the rollout engine takes its share
    of the device, `gpu_memory_utilization`, which holds its weights and its KV cache; `device_bytes` is what
    that is a share of, None where no device is known: then the weights count, and one longest response.
    """
    own = OmegaConf.create(config.engine.verl)
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    width = 4 if config.engine.dtype == "float32" or config.engine.device == "cpu" else 2
    shape = facts.shape
    weights, gradients, moments = state_bytes(shape, ranks)
    parallel = OmegaConf.select(own, "actor_rollout_ref.rollout.tensor_model_parallel_size") or 1
    share = OmegaConf.select(own, "actor_rollout_ref.rollout.gpu_memory_utilization") or 0.5
    least = (width * shape.parameters + cache_bytes(shape, 1, _longest(config), width)) // parallel
    rollout = least if device_bytes is None else max(least, int(share * device_bytes))
    offloads = "actor_rollout_ref.actor.fsdp_config"
    if OmegaConf.select(own, f"{offloads}.optimizer_offload"):
        moments = 0
    if OmegaConf.select(own, f"{offloads}.use_no_sync_for_gradient_accumulation"):
        gradients *= ranks  # whole on every rank until the last micro-batch
    parameters_stay = not OmegaConf.select(own, f"{offloads}.param_offload")
    reference = weights if config.needs_reference else 0
    tokens = _micro_batch(config)
    saved = config.actor_rollout_ref.model.enable_gradient_checkpointing
    layer = inside_layer_bytes(shape, tokens, width, saved)
    return Demand(
        (
            Part("weights", weights, parameters_stay, True),
            Part("gradients", gradients, False, True),
            Part("optimizer", moments, True, True),
            Part("reference", reference, True, True),
            Part("rollout engine (weights and KV cache)", rollout, True, False),
            Part("two layers gathered", 2 * width * shape.parameters // shape.layers, False, True),
            Part("activations", kept_bytes(shape, tokens, width, width, saved), False, True),
            Part("one layer or the logits", max(layer, whole_logit_bytes(shape, tokens, width)), False, True),
            Part("influence", influence_bytes(config, facts, width, ranks), False, True),
            Part("program", PROGRAM, True, True),
        )
    )


def influence_bytes(config: TrainConfig, facts: ModelFacts, width: int, ranks: int = 1) -> int:
    """Token factors from their capture to their scores, the solve, and a chunk of scores.

    (sum of k_in + k_out over modules, shared inputs once) x bytes of a factor x traced tokens of a rank. With
    `grad_offload_to_cpu` the factors are in main memory and do not count.
    """
    options = config.trainer.influence_trace
    if not options.enable:
        return 0
    modules = traced_modules(facts.skeleton, options)
    stored = {2: torch.bfloat16, 4: torch.float32}[width]
    if options.factor_dtype != "auto":
        stored = FACTOR_TYPES[options.factor_dtype]
    factors = bytes_per_token(modules, stored) * traced_tokens(config, ranks) // ranks
    if options.grad_offload_to_cpu:
        factors = 0
    return factors + solve_bytes(modules, options, config.actor_rollout_ref.rollout.n) + CHUNK


def traced_tokens(config: TrainConfig, ranks: int = 1) -> int:
    """The most tokens whose factors are kept at a time, on all ranks.

    Groups are scored as soon as they are captured: those of 8 micro-batches a rank or of one group. Those of
    a mini-batch where all are compared with each other. Prompts are kept beside responses where they are a
    small part.
    """
    options, actor = config.trainer.influence_trace, config.actor_rollout_ref.actor
    prompts = min(actor.ppo_mini_batch_size, options.max_prompts_per_step or actor.ppo_mini_batch_size)
    length = config.data.max_response_length
    if options.max_tokens_per_response > 0:
        length = min(length, options.max_tokens_per_response)
    length += min(config.data.max_prompt_length, int(length * (1 / KEEP_ALL - 1)))
    group = config.actor_rollout_ref.rollout.n * length
    if options.accepted_rejected_scope == "all_selected":
        return prompts * group
    return min(prompts * group, max(PORTION * _micro_batch(config) * ranks, group))


def _longest(config: TrainConfig) -> int:
    return config.data.max_prompt_length + config.data.max_response_length


def _micro_batch(config: TrainConfig) -> int:
    """Tokens of the largest micro-batch, padding included; a sequence over the budget goes alone."""
    actor, data = config.actor_rollout_ref.actor, config.data
    every = actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n * _longest(config)
    if not actor.use_dynamic_bsz:
        return min(every, (actor.ppo_micro_batch_size_per_gpu or 1) * _longest(config))
    return min(every, max(actor.ppo_max_token_len_per_gpu, data.max_prompt_length + data.max_response_length))
