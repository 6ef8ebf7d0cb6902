"""Whether a value can be one of a setting of verl's, which itself finds out in its workers, minutes later.

Known of each setting is its default: a number takes the place of a number, True or False that of True or
False; no number is NaN. Beyond it the table says what verl can do with a value; the first pattern decides.
What is in neither is verl's to read.
"""

import math
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

Accepts = tuple[Callable[[Any], bool], str]


def _number(text: str, holds: Callable[[float], bool]) -> Accepts:
    return lambda value: isinstance(value, int | float) and holds(value), text


def _one_of(*choices: str) -> Accepts:
    return lambda value: value in choices, f"choose one of {', '.join(choices)}"


_COUNT = _number("must be at least 1", lambda value: value >= 1)
_NOT_NEGATIVE = _number("must be at least 0", lambda value: value >= 0)
_SHARE = _number("must be in [0, 1]", lambda value: 0 <= value <= 1)

_RANGES: dict[str, Accepts] = {
    "*parallel_size": _COUNT,
    "*.ppo_epochs": _COUNT,
    "*batch_size": _COUNT,
    "*batch_size_per_gpu": _COUNT,
    "*max_token_len_per_gpu": _COUNT,
    "*.max_num_batched_tokens": _COUNT,
    "*.max_model_len": _COUNT,
    "*.agent.num_workers": _COUNT,
    "*_replicas": _COUNT,
    "*.num_shards": _COUNT,
    "*_chunk_size": _COUNT,
    "*.pad_to_length_bucket": _COUNT,
    "*.update_weights_bucket_megabytes": _COUNT,
    "*.total_storage_size": _COUNT,
    "*.num_data_storage_units": _COUNT,
    "*.fsdp_size": _number(
        "must be at least 1, or -1 for all devices", lambda value: value == -1 or value >= 1
    ),
    "*.lr_warmup_steps": _number("must be at least 0, or -1", lambda value: value >= -1),
    "*.betas": (
        lambda value: isinstance(value, list) and len(value) == 2 and all(0 <= each < 1 for each in value),
        "expected two numbers in [0, 1)",
    ),
    "*.lr_scheduler_type": _one_of("constant", "cosine"),
    "*.lr_warmup_steps_ratio": _SHARE,
    "*.min_lr_ratio": _SHARE,
    "algorithm.lam": _SHARE,
    "critic.loss_agg_mode": _one_of(
        "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
    ),
    "critic.strategy": _one_of("fsdp", "fsdp2"),
    "*dtype": _one_of("bfloat16", "bf16", "float16", "fp16", "float32", "fp32"),
    "*.lr": _NOT_NEGATIVE,
    "*.weight_decay": _NOT_NEGATIVE,
    "*.clip_grad": _NOT_NEGATIVE,
    "*.cliprange_value": _NOT_NEGATIVE,
    "*.critic_warmup": _NOT_NEGATIVE,
    "*.num_cycles": _NOT_NEGATIVE,
    "*.num_cpus": _NOT_NEGATIVE,
    "*.num_gpus": _NOT_NEGATIVE,
    "*num_workers": _NOT_NEGATIVE,
    "*.lora_rank": _NOT_NEGATIVE,
    "*.port": _NOT_NEGATIVE,
}


def value_problem(key: str, value: Any, default: Any) -> str | None:
    """Return what was expected instead of this value, or None where it may stand."""
    if any(isinstance(each, float) and math.isnan(each) for each in _scalars(value)):
        return "expected a number that is not NaN"
    kind = _kind_problem(value, default)
    if kind is not None or value is None:
        return kind
    accepts, text = next((rule for pattern, rule in _RANGES.items() if fnmatchcase(key, pattern)), (None, ""))
    return None if accepts is None or accepts(value) else text


def _kind_problem(value: Any, default: Any) -> str | None:
    if isinstance(default, bool):
        return None if value is None or isinstance(value, bool | int | float) else "expected True or False"
    if not isinstance(default, int | float) or value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "expected a number"
    whole = isinstance(default, float) or isinstance(value, int)
    return None if whole else "expected a whole number"


def _scalars(value: Any) -> list[Any]:
    """All plain values in nested lists and dictionaries."""
    if isinstance(value, dict):
        return [scalar for inner in value.values() for scalar in _scalars(inner)]
    if isinstance(value, list | tuple):
        return [scalar for inner in value for scalar in _scalars(inner)]
    return [value]
