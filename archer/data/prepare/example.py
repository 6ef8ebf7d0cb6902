"""What every data set is turned into, and how a row is refused."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Ability = Literal["math", "code"]


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


@dataclass(frozen=True)
class HubSource:
    """Where a data set is on the hub."""

    repo: str
    config: str | None = None
    splits: tuple[str, ...] = ("train",)


@dataclass(frozen=True)
class DataSet:
    """A data set that can be prepared. `convert` raises RowError for a row it cannot use."""

    name: str
    title: str
    data_source: str  # chooses the reward
    ability: Ability
    convert: Callable[[Mapping[str, Any]], Example]
    instruction: str  # name of a preset
    split: str = "train"
    hub: HubSource | None = None


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
