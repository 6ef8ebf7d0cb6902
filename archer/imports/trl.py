"""TRL's completions: what `GRPOTrainer` writes with `log_completions=True`.

One file a logged step, `completions/completions_<step>.parquet`, one row a response:

    step         the step
    prompt       a text, or the messages of a chat
    completion   a text, or the messages of a chat
    <reward>     one column a reward function; NaN where it does not apply
    <extra>      columns that a reward function logged itself, of any type
    advantage    of the response

Reward and extra columns cannot be told apart by the file alone: without a choice all columns of floats are
rewards, and the reward is their sum, as TRL's with weights of 1. There are no tokens, entropies or log-probs.
"""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from archer.errors import ArcherError
from archer.imports.rows import ImportedRow, Record, StepFiles, as_number, clean, further

FILE = re.compile(r"completions_(\d{1,9})\.parquet")
FIXED = ("step", "prompt", "completion", "advantage")


def find(source: Path) -> list[StepFiles]:
    """The steps of a `completions` folder, of a run's output folder that has one, or of one file."""
    folder = source / "completions" if (source / "completions").is_dir() else source
    files = [source] if source.is_file() else sorted(folder.glob("*.parquet"))
    named = {int(match[1]): path for path in files if (match := FILE.fullmatch(path.name))}
    return [StepFiles(step, (named[step],)) for step in sorted(named)]


def read(step: StepFiles, rewards: Sequence[str] = ()) -> Iterator[ImportedRow]:
    """Yield the responses of a step; `rewards` are the columns that make the reward."""
    for record in _records(step):
        yield _row(record, step.step, rewards)


def _records(step: StepFiles) -> Iterator[Record]:
    from archer.data.files import read_source  # with pyarrow, which only Parquet needs

    for file in step.files:
        for row in read_source(file):
            yield Record(file, row.where, row.values)


def columns_of(step: StepFiles, chosen: Sequence[str]) -> list[str]:
    """The reward columns of a step; a row may lack some."""
    return list(dict.fromkeys(name for record in _records(step) for name in reward_columns(record, chosen)))


def reward_columns(record: Record, chosen: Sequence[str]) -> list[str]:
    """The columns whose sum is the reward: the chosen ones, or all that hold floats."""
    for name in chosen:
        if name not in record.values:
            raise record.bad(name, "a column of numbers, named by --reward")
    return list(chosen) or [
        name for name, value in record.values.items() if name not in FIXED and isinstance(value, float)
    ]


def _row(record: Record, step: int, chosen: Sequence[str]) -> ImportedRow:
    values = record.values
    if str(values.get("step", step)) != str(step):  # versions differ in whether it is a text
        raise ArcherError(
            f"{record.where}, column step: found {values['step']!r}, expected {step} as the file's name says."
        )
    names = reward_columns(record, chosen)
    parts: dict[str, float] = {}
    for name in names:
        if values[name] is not None and as_number(values[name]) is None:
            raise record.bad(name, "a number, as --reward says")
        number = as_number(values[name])
        if number is not None and math.isfinite(number):
            parts[name] = number
    advantage = as_number(values.get("advantage"))
    return ImportedRow(
        where=record.where,
        step=step,
        prompt=_prompt(record),
        response=_completion(record),
        reward=sum(parts.values()) if parts else None,
        extra=further(values, FIXED),
        advantage=None if advantage is None else np.array([advantage]),
    )


def _prompt(record: Record) -> str | list[dict[str, str]]:
    value = record.values.get("prompt")
    return record.text("prompt") if isinstance(value, str) else _messages(record, "prompt")


def _completion(record: Record) -> str:
    """The text of a completion; of one message its content, of several all with their roles."""
    value = record.values.get("completion")
    if isinstance(value, str):
        return clean(value)
    messages = _messages(record, "completion")
    return messages[0]["content"] if len(messages) == 1 else as_text(messages)


def _messages(record: Record, column: str) -> list[dict[str, str]]:
    value = record.values.get(column)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise record.bad(column, "a text or a list of chat messages")
    return [
        {"role": clean(str(item.get("role") or "")), "content": _content(record, column, item)}
        for item in value
    ]


def _content(record: Record, column: str, message: dict[str, Any]) -> str:
    content = message.get("content")
    if content is None:  # a message that only calls a tool
        return clean(str(message.get("tool_calls") or ""))
    if isinstance(content, str):
        return clean(content)
    if isinstance(content, list) and all(isinstance(block, dict) for block in content):
        return clean("".join(str(block.get("text") or f"[{block.get('type')}]") for block in content))
    raise record.bad(column, "messages whose content is a text or a list of blocks")


def as_text(messages: Sequence[dict[str, str]]) -> str:
    """A chat as plain text, where no chat template is at hand."""
    return "\n".join(f"[{message['role']}]\n{message['content']}" for message in messages)
