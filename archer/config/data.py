"""`data.*`: where prompts come from."""

from dataclasses import dataclass, field
from typing import Any, Literal

from archer.config.knob import knob


@dataclass(frozen=True)
class DataConfig:
    """Prompt files and how they are batched."""

    train_files: tuple[str, ...] = knob(
        (), "JSON, JSONL or Parquet files in verl's schema, or `builtin:arithmetic/train`"
    )
    val_files: tuple[str, ...] = knob((), "held-out prompts, same formats; empty: no validation")
    train_max_samples: int = knob(-1, "use only the first N training prompts; -1: all")
    val_max_samples: int = knob(-1, "use only the first N validation prompts; -1: all")
    prompt_key: str = knob("prompt", "field that holds the chat messages")
    reward_fn_key: str = knob("data_source", "field that chooses the reward function")
    max_prompt_length: int = knob(512, "longest prompt, in tokens")
    max_response_length: int = knob(512, "longest response, in tokens")
    train_batch_size: int = knob(64, "prompts per training step")
    gen_batch_size: int | None = knob(
        None, "prompts per generation when groups are filtered; default: data.train_batch_size"
    )
    val_batch_size: int | None = knob(None, "prompts per validation batch; default: all at once")
    shuffle: bool = knob(True, "shuffle the training prompts, anew each epoch")
    seed: int = knob(42, "seed of the shuffling")
    filter_overlong_prompts: bool = knob(
        False, "drop prompts over data.max_prompt_length instead of refusing them"
    )
    truncation: Literal["error"] = knob("error", "what to do with a prompt that is too long")
    apply_chat_template_kwargs: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "extra arguments of the chat template"}
    )
