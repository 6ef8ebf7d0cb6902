"""How much memory a run needs on each device, from sizes alone: while it samples and while it updates.

Symbols: P parameters, N ranks that share the state, L layers, h hidden size, q and kv widths of queries and
of keys or values, i width of the feed-forward layer, V vocabulary, T tokens of a micro-batch, a bytes of a
number in a matrix product (4 float32, 2 bfloat16).

Lengths are the longest that the configuration allows, so what depends on them is an upper bound; so is what
influence keeps, for every group counts as traced. The head and the layers have their peaks one after the
other, so an update takes the larger of the two beside what is kept (`tests/preflight/test_memory.py` measures
it).
"""

from dataclasses import dataclass, replace

import torch
from omegaconf import OmegaConf

from archer.algorithms.advantages.base import ADVANTAGES
from archer.config.root import TrainConfig
from archer.generation.head import CHUNK_ELEMENTS
from archer.influence.capture import KEEP_ALL
from archer.influence.costs import bytes_per_token, solve_bytes
from archer.influence.modules import traced_modules
from archer.preflight.model import AdapterShape, ModelFacts, ModelShape
from archer.preflight.report import Finding, note
from archer.training.portions import PORTION, token_budget

GIB = 2**30
PROGRAM = int(0.6 * GIB)
"""The program without any tensor: Python, torch and transformers in main memory; CUDA's context on a GPU."""
CHUNK = 64 * 2**20  # pieces in which influence is scored
CACHE_STEP = 64  # cache lengths are multiples of it


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


def local_demand(
    config: TrainConfig, facts: ModelFacts, device: str, device_bytes: int | None = None
) -> Demand:
    """Memory of engine=local on `cpu` or `cuda`; `device_bytes` is what vLLM's share is a share of."""
    mixed = device == "cuda" if config.engine.dtype == "auto" else config.engine.dtype == "bfloat16"
    width = 2 if mixed else 4
    shape, by_vllm = facts.shape, config.actor_rollout_ref.rollout.name == "vllm"
    tokens = _micro_batch(config)
    saved = bool(config.actor_rollout_ref.model.enable_gradient_checkpointing)
    layer = inside_layer_bytes(shape, tokens, width, saved, facts.adapters)
    head = at_head_bytes(shape, tokens, width, trained=facts.adapters is None)
    kept = kept_bytes(shape, tokens, width, 4, saved, facts.adapters)
    return Demand(
        (
            *_local_state(config, facts, width),
            *(
                _sampling_by_vllm(config, shape, width, device_bytes)
                if by_vllm
                else _sampling_by_itself(config, facts, width, device == "cuda")
            ),
            Part("activations", kept, False, True),
            Part("one layer or the logits", max(layer, head), False, True),
            Part("influence", influence_bytes(config, facts, width), False, True),
            Part("program", PROGRAM, True, True),
        )
    )


def _sampling_by_itself(config: TrainConfig, facts: ModelFacts, width: int, static: bool) -> tuple[Part, ...]:
    """What the model's own decoding takes: a copy of the weights, the cache, the drawing of tokens.

    `static`: on a GPU, where the cache of all slots and one for scrap stays between steps, and graphs keep
    what they draw tokens in. With LoRA the copy has its own of all that is merged or converted.
    """
    shape, adapters, rollout = facts.shape, facts.adapters, config.actor_rollout_ref.rollout
    rows = min(rollout.max_num_seqs, config.data.train_batch_size * rollout.n)
    if config.data.val_files:
        rows = rollout.max_num_seqs
    prompts = max(1, rows // rollout.n) * config.data.max_prompt_length
    nucleus = min(rollout.top_p, rollout.val_kwargs.top_p) < 1
    positions = -(-_longest(config) // CACHE_STEP) * CACHE_STEP
    cached = cache_bytes(shape, rollout.max_num_seqs + 1 if static else rows, positions, width)
    recorded = drawing_bytes(shape, rows, nucleus) if static and not rollout.enforce_eager else 0
    mixed = width < 4
    copied = 2 * shape.parameters if mixed else 0
    if adapters is not None:
        copied = width * (adapters.adapted + (shape.parameters - adapters.linear if mixed else 0))
    return (
        Part("copy that samples", copied, True, True),
        Part("KV cache", cached, True, static),
        Part("drawing tokens", decoding_bytes(shape, rows, prompts, width, nucleus), True, False),
        Part("recorded graphs", recorded, False, True),
    )


def _sampling_by_vllm(
    config: TrainConfig, shape: ModelShape, width: int, device_bytes: int | None
) -> tuple[Part, ...]:
    """What vLLM takes in the same process; it gives its memory back for the update, unless told not to."""
    share = rollout_bytes(config, shape, width, device_bytes)
    stays = not config.actor_rollout_ref.rollout.free_cache_engine
    return (Part("vLLM (weights and KV cache)", share, True, stays),)


def rollout_bytes(
    config: TrainConfig, shape: ModelShape, width: int, device_bytes: int | None, parallel: int = 1
) -> int:
    """The share of a device, `gpu_memory_utilization`, that a rollout engine takes for weights and KV cache.

    `device_bytes` is what that is a share of, None where no device is known: then the weights count, and one
    longest response.
    """
    least = (width * shape.parameters + cache_bytes(shape, 1, _longest(config), width)) // parallel
    share = config.actor_rollout_ref.rollout.gpu_memory_utilization
    return least if device_bytes is None else max(least, int(share * device_bytes))


def _local_state(config: TrainConfig, facts: ModelFacts, width: int) -> tuple[Part, ...]:
    """Weights and what training keeps for each of them; with LoRA for those of the adapters alone.

    F of P frozen parameters are in linear layers, which keep them in the products' format, beside adapters of
    A parameters. Weights: a F + 4 (P - F) + 4 A. The reference is the same model without adapters.
    """
    shape, adapters, mixed = facts.shape, facts.adapters, width < 4
    if adapters is None:
        weights, gradients, moments = state_bytes(shape)
        reference = weights if config.needs_reference else 0
        products = 2 * shape.parameters if mixed else 0
    else:
        others = shape.parameters - adapters.linear
        weights = 4 * adapters.trained + width * adapters.linear + 4 * others
        gradients, moments, reference = 4 * adapters.trained, 8 * adapters.trained, 0
        products = 2 * adapters.trained if mixed else 0
    return (
        Part("weights", weights, True, True),
        Part("gradients", gradients, False, True),
        Part("optimizer", moments, True, True),
        Part("reference", reference, True, True),
        Part("weights in bfloat16 for the products", products, False, True),
    )


def verl_demand(config: TrainConfig, facts: ModelFacts, device_bytes: int | None) -> Demand:
    """Memory of a rank of engine=verl.

    State is sharded over all ranks, the reference too. While it samples, the rollout engine takes its share
    of the device.
    """
    own = OmegaConf.create(config.engine.verl)
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    width = 4 if config.engine.dtype == "float32" or config.engine.device == "cpu" else 2
    shape = facts.shape
    weights, gradients, moments = state_bytes(shape, ranks)
    reference = weights if config.needs_reference else 0
    if facts.adapters is not None:
        gradients, reference = 4 * facts.adapters.trained // ranks, 0
        weights, moments = weights + gradients, 2 * gradients
    parallel = OmegaConf.select(own, "actor_rollout_ref.rollout.tensor_model_parallel_size") or 1
    rollout = rollout_bytes(config, shape, width, device_bytes, parallel)
    offloads = "actor_rollout_ref.actor.fsdp_config"
    if OmegaConf.select(own, f"{offloads}.optimizer_offload"):
        moments = 0
    if OmegaConf.select(own, f"{offloads}.use_no_sync_for_gradient_accumulation"):
        gradients *= ranks  # whole on every rank until the last micro-batch
    parameters_stay = not OmegaConf.select(own, f"{offloads}.param_offload")
    critic = critic_bytes(config, shape, ranks)
    tokens = _micro_batch(config)
    saved = bool(config.actor_rollout_ref.model.enable_gradient_checkpointing)
    layer = inside_layer_bytes(shape, tokens, width, saved, facts.adapters)
    kept = kept_bytes(shape, tokens, width, width, saved, facts.adapters)
    return Demand(
        (
            Part("weights", weights, parameters_stay, True),
            Part("gradients", gradients, False, True),
            Part("optimizer", moments, True, True),
            Part("reference", reference, True, True),
            Part("critic", critic, True, True),
            Part("rollout engine (weights and KV cache)", rollout, True, False),
            Part("two layers gathered", 2 * width * shape.parameters // shape.layers, False, True),
            Part("activations", kept, False, True),
            Part("one layer or the logits", max(layer, whole_logit_bytes(shape, tokens, width)), False, True),
            Part("influence", influence_bytes(config, facts, width, ranks), False, True),
            Part("program", PROGRAM, True, True),
        )
    )


def critic_bytes(config: TrainConfig, shape: ModelShape, ranks: int) -> int:
    """The critic's weights and moments, which stay; its own update is over before the actor's begins.

    Its gradients are freed by then. It is as large as the actor but for the head.
    """
    if not ADVANTAGES.find(config.algorithm.adv_estimator).facts.get("needs_critic"):
        return 0
    own = OmegaConf.create(config.engine.verl)
    weights, _, moments = state_bytes(shape, ranks)
    stay = (("critic.fsdp.param_offload", weights), ("critic.fsdp.optimizer_offload", moments))
    return sum(size for key, size in stay if not OmegaConf.select(own, key))


def influence_bytes(config: TrainConfig, facts: ModelFacts, width: int, ranks: int = 1) -> int:
    """Token factors from their capture to their scores, the solve, and a chunk of scores.

    (sum of k_in + k_out over modules, shared inputs once) x bytes of a factor x traced tokens of a rank. With
    `grad_offload_to_cpu` the factors are in main memory and do not count.
    """
    options = config.trainer.influence_trace
    if not options.enable:
        return 0
    modules = traced_modules(facts.skeleton, options)
    stored = {2: "bfloat16", 4: "float32"}[width] if options.factor_dtype == "auto" else options.factor_dtype
    factors = 0
    if not options.grad_offload_to_cpu:
        factors = bytes_per_token(modules, getattr(torch, stored)) * traced_tokens(config, ranks) // ranks
    responses = config.actor_rollout_ref.rollout.n
    if options.accepted_rejected_scope == "all_selected":
        responses *= config.actor_rollout_ref.actor.ppo_mini_batch_size
    length = config.data.max_response_length
    if options.max_tokens_per_response > 0:
        length = min(length, options.max_tokens_per_response)
    return factors + solve_bytes(modules, options, responses, responses * length) + CHUNK


def traced_tokens(config: TrainConfig, ranks: int = 1) -> int:
    """The most tokens whose factors are kept at a time, on all ranks.

    Groups are scored as soon as they are captured: those of 8 micro-batches a rank or of one group. Those of
    a mini-batch where all are compared with each other. Prompts are kept beside responses where they are a
    small part.
    """
    options, actor = config.trainer.influence_trace, config.actor_rollout_ref.actor
    prompts = actor.ppo_mini_batch_size
    if options.max_prompts_per_step > 0:
        prompts = min(prompts, options.max_prompts_per_step)
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
    actor = config.actor_rollout_ref.actor
    every = actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n * _longest(config)
    if not actor.use_dynamic_bsz:
        return min(every, (actor.ppo_micro_batch_size_per_gpu or 1) * _longest(config))
    return min(every, max(token_budget(actor), _longest(config)))


def state_bytes(shape: ModelShape, ranks: int = 1) -> tuple[int, int, int]:
    """(weights, gradients, AdamW's two moments) of a rank, all float32: (4 P, 4 P, 8 P) / N."""
    weights = 4 * shape.parameters // ranks
    return weights, weights, 2 * weights


def kept_by_layer(shape: ModelShape, tokens: int, width: int, adapters: AdapterShape | None = None) -> int:
    """What one decoder layer keeps for its backward: T (16 h + a (2 h + 3 q + 2 kv + 4 i)) bytes.

    float32 whatever the products run in: both norms' inputs and their normalised values (4 h). In the format
    of the products: the norms' outputs (2 h), queries, keys, values, the attention's result and its copy for
    the output projection (3 q + 2 kv), gate, its activation, up and their product (4 i). With LoRA the norms
    are frozen and keep their inputs only (2 h); adapters keep A x, as many numbers as their ranks' sum.
    """
    products = 2 * shape.hidden + 3 * shape.query + 2 * shape.key_value + 4 * shape.intermediate
    if adapters is None:
        return tokens * (16 * shape.hidden + width * products)
    return tokens * (8 * shape.hidden + width * (products + adapters.inner // shape.layers))


def kept_bytes(
    shape: ModelShape,
    tokens: int,
    width: int,
    stream: int,
    checkpointing: bool,
    adapters: AdapterShape | None = None,
) -> int:
    """Activations that a micro-batch keeps until its backward has passed them.

    L K, K being what a layer keeps; with gradient checkpointing only each layer's input, s T h L, at s
    bytes a number in the residual stream.
    """
    if checkpointing:
        return stream * tokens * shape.hidden * shape.layers
    return shape.layers * kept_by_layer(shape, tokens, width, adapters)


def inside_layer_bytes(
    shape: ModelShape, tokens: int, width: int, checkpointing: bool, adapters: AdapterShape | None = None
) -> int:
    """What the backward through one layer adds: 3 a T i, gradients inside its feed-forward part.

    2 a T i with LoRA, for frozen weights have no gradient. With gradient checkpointing K more, for the layer
    is computed again.
    """
    recomputed = kept_by_layer(shape, tokens, width, adapters) if checkpointing else 0
    return recomputed + (3 if adapters is None else 2) * width * tokens * shape.intermediate


def at_head_bytes(shape: ModelShape, tokens: int, width: int, trained: bool = True) -> int:
    """What the output head adds in the local engine, which runs it in chunks of C = min(T, 2^27 / V) tokens.

    C V (13 + a), and 4 C V more where products are narrower than float32: logits, their float32 copy,
    probabilities, the masked logits and their product, a mask of one byte. 4 V h: the gradient of its
    weights, before it is added to that of earlier micro-batches; of frozen weights there is only their copy
    in a narrower format, 2 V h.
    """
    chunk = min(tokens, max(1, CHUNK_ELEMENTS // shape.vocabulary))
    logits = chunk * shape.vocabulary * (13 + width + (4 if width < 4 else 0))
    weights = 4 if trained else (2 if width < 4 else 0)
    return logits + weights * shape.vocabulary * shape.hidden


def whole_logit_bytes(shape: ModelShape, tokens: int, width: int) -> int:
    """What the output head adds where all logits of a micro-batch exist at once, as in verl: T V (a + 4)."""
    return tokens * shape.vocabulary * (width + 4)


def cache_bytes(shape: ModelShape, rows: int, positions: int, width: int) -> int:
    """Keys and values of rows that are decoded together: 2 a L kv x rows x positions."""
    return 2 * width * shape.layers * shape.key_value * rows * positions


def decoding_bytes(shape: ModelShape, rows: int, prompt_tokens: int, width: int, nucleus: bool) -> int:
    """What sampling needs beside the cache, the larger of two: at the prompts, inside one layer,
    a T (2 h + 3 i); or at the drawing of a token.
    """
    prompts = width * prompt_tokens * (2 * shape.hidden + 3 * shape.intermediate)
    return max(prompts, drawing_bytes(shape, rows, nucleus))


def drawing_bytes(shape: ModelShape, rows: int, nucleus: bool) -> int:
    """At the drawing of a token, for each row and entry of the vocabulary: 20 bytes (logits, scaled,
    log-probs, the distribution function in float64), and 20 more where nucleus sampling sorts them.

    CUDA graphs keep that memory to themselves: nothing else may have it while the policy is updated.
    """
    return (40 if nucleus else 20) * rows * shape.vocabulary


def check_token_kernel(config: TrainConfig, facts: ModelFacts) -> list[Finding]:
    """Warn of H summed over tokens, whose solve grows with the square of a group's tokens."""
    options = config.trainer.influence_trace
    if not options.enable or (options.hessian_mode, options.hessian_source) != ("inverse", "token"):
        return []
    extra = influence_bytes(config, facts, 4) - influence_bytes(_by_responses(config), facts, 4)
    if extra < GIB:
        return []
    return [
        note(
            "influence",
            f"trainer.influence_trace.hessian_source=token needs up to {gib(extra)} GiB for the solve of a "
            "group of the longest responses.",
            "Set its max_tokens_per_response or solver=primal, or hessian_source=response.",
        )
    ]


def _by_responses(config: TrainConfig) -> TrainConfig:
    options = replace(config.trainer.influence_trace, hessian_source="response")
    return replace(config, trainer=replace(config.trainer, influence_trace=options))
