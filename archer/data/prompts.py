"""Prompts in verl's schema: chat messages, data source, ground truth and extra information, tokenised.

A row looks like this; `prompt` may also be a plain string, which stands for one user message:

    {"prompt": [{"role": "user", "content": "347+586="}],
     "data_source": "arithmetic",
     "reward_model": {"style": "rule", "ground_truth": "933"},
     "extra_info": {"index": 0}}
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from archer.data.files import Row, read_rows
from archer.errors import ArcherError

_RESERVED = {"add_generation_prompt", "return_dict", "tokenize"}


@dataclass(frozen=True)
class Prompt:
    """One prompt; `index` is its place in the dataset."""

    index: int
    messages: tuple[dict[str, str], ...]
    token_ids: tuple[int, ...]
    data_source: str
    ground_truth: Any
    extra_info: dict[str, Any]


class PromptDataset(list[Prompt]):
    """The prompts of a run in the order of their files, and how many were left out as too long."""

    def __init__(self, prompts: Iterable[Prompt], overlong: int) -> None:
        super().__init__(prompts)
        self.overlong = overlong


def load_prompts(
    files: str | Sequence[str],
    tokenizer: Any,
    *,
    max_prompt_length: int,
    filter_overlong_prompts: bool,
    prompt_key: str = "prompt",
    reward_fn_key: str = "data_source",
    max_samples: int = -1,
    shuffle: bool = False,
    seed: int = 0,
    apply_chat_template_kwargs: Mapping[str, Any] | None = None,
) -> PromptDataset:
    """Read, check and tokenise the prompts of `files` with a Hugging Face tokenizer.

    `max_samples` > 0 keeps that many rows: the first ones, or with `shuffle` a random choice fixed by `seed`.
    It counts before over-long prompts are left out, as in verl. A prompt of more than `max_prompt_length`
    tokens is left out when `filter_overlong_prompts`, and an error otherwise: prompts are never truncated.
    """
    template_kwargs = dict(apply_chat_template_kwargs or {})
    _check_template(tokenizer, template_kwargs)
    names = [files] if isinstance(files, str) else list(files)
    rows = [row for name in names for row in read_rows(name)]
    if not rows:
        raise ArcherError(f"The dataset is empty: no rows in {', '.join(names) or 'an empty list of files'}.")
    if 0 < max_samples < len(rows):
        chosen = random.Random(seed).sample(range(len(rows)), max_samples) if shuffle else range(max_samples)
        rows = [rows[i] for i in sorted(chosen)]

    prompts: list[Prompt] = []
    lengths: list[int] = []
    for row in rows:
        messages = messages_of(row, prompt_key)
        data_source = _field(row, reward_fn_key, str, "a string that names the reward, such as 'math'")
        ground_truth = truth_of(row)
        has_extra = row.values.get("extra_info") is not None
        extra_info = _field(row, "extra_info", dict, "an object") if has_extra else {}
        token_ids = tokenize(row, messages, tokenizer, prompt_key, template_kwargs)
        lengths.append(len(token_ids))
        if len(token_ids) <= max_prompt_length:
            prompts.append(
                Prompt(len(prompts), tuple(messages), token_ids, data_source, ground_truth, extra_info)
            )
        elif not filter_overlong_prompts:
            raise ArcherError(
                f"{row.where}: the prompt has {len(token_ids)} tokens, more than data.max_prompt_length="
                f"{max_prompt_length}. Raise that, or set data.filter_overlong_prompts=True to leave such "
                "prompts out."
            )
    if not prompts:
        raise ArcherError(
            f"All {len(rows)} prompts of {', '.join(names)} are longer than data.max_prompt_length="
            f"{max_prompt_length} tokens; the shortest has {min(lengths)}. Raise data.max_prompt_length."
        )
    return PromptDataset(prompts, overlong=len(rows) - len(prompts))


def _check_template(tokenizer: Any, template_kwargs: dict[str, Any]) -> None:
    if not tokenizer.chat_template:
        raise ArcherError(
            "The model's tokenizer has no chat template, so prompts cannot be rendered. Use a model tuned "
            "for chat, or give a Jinja template in actor_rollout_ref.model.custom_chat_template."
        )
    for key in _RESERVED & template_kwargs.keys():
        raise ArcherError(f"data.apply_chat_template_kwargs.{key} cannot be set: Archer sets it. Remove it.")


def _bad(row: Row, field: str, found: object, expected: str) -> ArcherError:
    shown = repr(found)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return ArcherError(f"{row.where}, field {field}: found {shown}, expected {expected}.")


def _field(row: Row, field: str, kind: type, expected: str) -> Any:
    """The value of a field that must be there, of type `kind`; text and lists must not be empty."""
    if field not in row.values:
        raise ArcherError(
            f"{row.where}: field {field} is missing, expected {expected}. "
            f"The row has: {', '.join(row.values)}."
        )
    value = row.values[field]
    if not isinstance(value, kind) or (kind is not dict and not value):
        raise _bad(row, field, value, expected)
    return value


def messages_of(row: Row, prompt_key: str) -> list[dict[str, str]]:
    """The chat messages of a row, checked."""
    value = row.values.get(prompt_key)
    if isinstance(value, str) and value:
        return [{"role": "user", "content": value}]
    messages = _field(row, prompt_key, list, "a list of chat messages {role, content}, or a string")
    return [_message(row, f"{prompt_key}[{i}]", message) for i, message in enumerate(messages)]


def _message(row: Row, field: str, message: object) -> dict[str, str]:
    if not isinstance(message, dict):
        raise _bad(row, field, message, "an object {role, content}")
    # Parquet fills up the keys that other rows have with nulls.
    present = {key: value for key, value in message.items() if value is not None}
    for key in ("role", "content", *present):
        if not isinstance(present.get(key), str):
            raise _bad(row, f"{field}.{key}", present.get(key), "text")
    return present


def truth_of(row: Row) -> Any:
    """The ground truth of a row, checked to be there."""
    reward_model = _field(row, "reward_model", dict, "an object with ground_truth")
    if reward_model.get("ground_truth") is None:
        raise _bad(row, "reward_model.ground_truth", None, "the right answer")
    return reward_model["ground_truth"]


def tokenize(
    row: Row,
    messages: list[dict[str, str]],
    tokenizer: Any,
    prompt_key: str = "prompt",
    template_kwargs: Mapping[str, Any] | None = None,
) -> tuple[int, ...]:
    """The tokens of a row's messages, ready for a response to follow."""
    options = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
    try:
        token_ids = tokenizer.apply_chat_template(messages, **options, **(template_kwargs or {}))
    except Exception as error:  # a template is a program, and a tokenizer may refuse its text
        raise ArcherError(
            f"{row.where}, field {prompt_key}: the chat template does not take these messages "
            f"({type(error).__name__}: {error})."
        ) from error
    return tuple(token_ids)
