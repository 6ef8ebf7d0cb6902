"""`data.*`: where prompts come from."""

from dataclasses import dataclass
from typing import Any, Literal

from archer.settings import Section, knob


@dataclass(frozen=True)
class DataConfig(Section):
    """Prompt files and how they are batched."""

    train_files: tuple[str, ...] = knob(
        (), "JSON, JSONL or Parquet files in verl's schema, or `builtin:arithmetic/train`"
    )
    val_files: tuple[str, ...] = knob((), "held-out prompts, same formats; empty: no validation")
    train_max_samples: int = knob(
        -1, "use only the first N training prompts; -1: all", at_least=1, also=(-1,), unit="prompts"
    )
    val_max_samples: int = knob(
        -1,
        "use only the first N validation prompts; -1: all",
        at_least=1,
        also=(-1,),
        unit="prompts",
        needs="val_files",
    )
    prompt_key: str = knob("prompt", "field that holds the chat messages")
    reward_fn_key: str = knob("data_source", "field that chooses the reward function")
    max_prompt_length: int = knob(512, "longest prompt, in tokens", above=0, unit="tokens")
    max_response_length: int = knob(512, "longest response, in tokens", above=0, unit="tokens")
    train_batch_size: int = knob(64, "prompts per training step", above=0, unit="prompts")
    gen_batch_size: int | None = knob(
        None,
        "prompts per generation when groups are filtered; default: data.train_batch_size",
        above=0,
        unit="prompts",
        needs="algorithm.filter_groups.enable",
    )
    val_batch_size: int | None = knob(
        None,
        "prompts per validation batch; default: all at once",
        above=0,
        unit="prompts",
        needs="val_files",
    )
    shuffle: bool = knob(True, "shuffle the training prompts, anew each epoch")
    seed: int = knob(42, "seed of the shuffling", needs="shuffle")
    filter_overlong_prompts: bool = knob(
        False, "drop prompts over data.max_prompt_length instead of refusing them"
    )
    truncation: Literal["error"] = knob("error", "what to do with a prompt that is too long")
    apply_chat_template_kwargs: dict[str, Any] = knob({}, "extra arguments of the chat template")
