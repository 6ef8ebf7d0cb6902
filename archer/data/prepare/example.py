"""What every data set is turned into: a question and a ground truth, and the prompt around them.

`RowError` refuses a row; the functions below it read a record's fields for the sets' converters.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PRESETS = {
    "boxed": r"Please reason step by step, and put your final answer within \boxed{}.",
    "code-stdin": "Write a Python program that reads the input from stdin and writes the answer to stdout. "
    "Put the whole program in one ```python code block.",
    "code-function": "Write the solution in Python. Put all of it, imports included, in one ```python code "
    "block.",
    "none": "",
}
PLACE = "{question}"


class RowError(Exception):
    """A row that cannot be used: the reason, the same for all rows with the fault, and this row's detail."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class Example:
    """A problem and what decides whether an answer to it is right."""

    question: str
    ground_truth: str
    id: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)  # whatever else is worth keeping; plain JSON
    instruction: str | None = None  # replaces the data set's own where rows differ in kind


def chat_messages(question: str, instruction: str, system: str | None) -> list[dict[str, str]]:
    """The chat messages that ask a question.

    `instruction` is the name of a preset, a text that follows the question after a blank line, or a template
    with `{question}` in it.
    """
    text = PRESETS.get(instruction, instruction)
    if PLACE in text:
        content = text.replace(PLACE, question)
    else:
        content = f"{question}\n\n{text}" if text else question
    before = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": content}]


def text_field(values: Mapping[str, Any], *names: str) -> str:
    """The first of these fields that is there, as text that is not empty."""
    for name in names:
        value = values.get(name)
        if value is not None:
            if not isinstance(value, str):
                raise RowError(f"{name} is {type(value).__name__}, not text")
            if not value.strip():
                raise RowError(f"{name} is empty")
            return value.strip()
    raise RowError(f"no field {' or '.join(names)}")


def kept(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Those of the fields that are there and not null, for `meta`."""
    return {name: values[name] for name in names if values.get(name) is not None}


def compact_json(value: Any) -> str:
    """JSON with keys in order, so that equal values give equal text."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
