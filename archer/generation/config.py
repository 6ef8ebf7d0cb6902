"""`actor_rollout_ref.model.*`, `actor_rollout_ref.rollout.*` and where it all computes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from archer.settings import Section, knob, section


@dataclass(frozen=True)
class ModelConfig(Section):
    """Which model is trained."""

    path: str = knob("", "local folder or hub id of a causal language model; `builtin:tiny_reasoner`")
    tokenizer_path: str | None = knob(None, "tokenizer folder or hub id; default: the model's own")
    custom_chat_template: str | None = knob(None, "Jinja chat template that replaces the tokenizer's")
    trust_remote_code: bool = knob(False, "run model code that comes with the checkpoint")
    enable_gradient_checkpointing: Literal["auto", True, False] = knob(
        "auto",
        "recompute activations in the backward pass; auto: engine=local on cuda only where they do not fit, "
        "otherwise always",
    )
    override_config: dict[str, Any] = knob(
        {}, "fields of the model's configuration to change, e.g. attn_implementation"
    )
    lora_rank: int = knob(
        0,
        "train low-rank adapters (LoRA) of this rank beside frozen weights; 0: train all weights",
        at_least=0,
    )
    lora_alpha: int = knob(
        16, "the adapters' product is scaled by lora_alpha / lora_rank", above=0, needs="lora_rank!=0"
    )
    target_modules: tuple[str, ...] = knob(
        ("all-linear",),
        "modules that get adapters: ends of their names, or one regular expression; `all-linear`: every "
        "linear layer but the output head",
        needs="lora_rank!=0",
    )
    exclude_modules: tuple[str, ...] = knob(
        (), "modules that get none although target_modules names them", needs="lora_rank!=0"
    )
    lora_adapter_path: str | None = knob(
        None,
        "adapter in PEFT's format to continue from, of rank lora_rank; its own alpha and modules count. A KL "
        "term still compares with the model without adapter",
        needs="lora_rank!=0",
        idle="refuse",
    )


def module_pattern(entries: Sequence[str]) -> str | list[str] | None:
    """Return target_modules or exclude_modules as PEFT and verl read them.

    A text is `all-linear` or a regular expression there, names are always a list.
    """
    if len(entries) == 1 and not re.fullmatch(r"[\w.]+", entries[0]):
        return entries[0]
    return list(entries) or None


@dataclass(frozen=True)
class ValKwargs(Section):
    """Sampling at validation."""

    n: int = knob(1, "responses per validation prompt", above=0)
    do_sample: bool = knob(False, "sample; False: greedy")
    temperature: float = knob(1.0, "sampling temperature at validation", above=0, needs="do_sample")
    top_p: float = knob(1.0, "nucleus sampling at validation", above=0, at_most=1, needs="do_sample")
    top_k: int = knob(
        -1,
        "sample from the k likeliest tokens at validation; -1: all",
        at_least=1,
        also=(-1,),
        needs="do_sample",
    )


@dataclass(frozen=True)
class RolloutConfig(Section):
    """Sampling of responses."""

    name: str = knob(
        "auto",
        "what samples. engine=local: hf (the model itself) or vllm; auto: hf, but on cuda vllm, where it is "
        "installed, for models whose attention hf cannot pack or whose responses at their longest would not "
        "fit gpu_memory_utilization. engine=verl: vllm, sglang; auto: vllm",
    )
    n: int = knob(8, "responses per prompt (the group size)", above=0)
    temperature: float = knob(1.0, "sampling temperature; log-probs and entropy are taken at it", above=0)
    top_p: float = knob(1.0, "nucleus sampling", above=0, at_most=1)
    top_k: int = knob(-1, "sample from the k likeliest tokens; -1: all", at_least=1, also=(-1,))
    seed: int = knob(42, "seed of the sampling")
    max_num_seqs: int = knob(256, "responses decoded at a time", above=0)
    gpu_memory_utilization: float = knob(
        0.5, "share of the GPU's memory that vLLM may take", above=0, at_most=1, needs="name!=hf"
    )
    enforce_eager: bool = knob(False, "decode without CUDA graphs: slower, starts sooner")
    free_cache_engine: bool = knob(
        True, "vLLM gives its memory back while the policy is updated", needs="name!=hf"
    )
    log_prob_max_token_len_per_gpu: int | None = knob(
        None,
        "token budget of a forward-only micro-batch; default: actor.ppo_max_token_len_per_gpu",
        above=0,
        unit="tokens",
    )
    val_kwargs: ValKwargs = section(ValKwargs, needs="data.val_files")


@dataclass(frozen=True)
class ComputeConfig(Section):
    """Where a process computes: part of `engine.*`."""

    device: Literal["auto", "cpu", "cuda"] = knob("auto", "auto: cuda where there is one")
    dtype: Literal["auto", "float32", "bfloat16"] = knob(
        "auto", "compute type; auto: bfloat16 on cuda, float32 on cpu; weights stay float32"
    )
    threads: int = knob(
        0, "CPU threads of the training process, at most its cores; 0: all of them", at_least=0
    )
