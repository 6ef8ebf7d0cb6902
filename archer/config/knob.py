"""How a configuration field is declared: a default and the sentence that explains it."""

from collections.abc import Callable
from dataclasses import field
from typing import Any


def knob(default: Any, help: str) -> Any:
    """Return a dataclass field with `default`, explained by `help` (shown by `--help` and in the docs)."""
    return field(default=default, metadata={"help": help})


def section(factory: Callable[[], Any]) -> Any:
    """Return a dataclass field that holds a nested group of knobs."""
    return field(default_factory=factory)
