"""Settings that only verl has, given by verl's own names: `actor_rollout_ref.rollout.name=sglang`.

With engine=verl they are gathered under `engine.verl`, in the same tree, and checked against verl's own
configuration when the engine starts.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def adopt_foreign_keys(cls: type, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return `tree` with the keys that `cls` does not have moved to `engine.verl`."""
    own, foreign = _divide(cls, tree)
    if isinstance(own.get("engine"), dict):
        own["engine"]["verl"] = _merged(own["engine"].get("verl") or {}, foreign)
    return own


def _divide(cls: type, tree: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    hints = get_type_hints(cls)
    names = {field.name for field in fields(cls)}
    own: dict[str, Any] = {}
    foreign: dict[str, Any] = {}
    for key, value in tree.items():
        if key not in names:
            foreign[key] = value
        elif is_dataclass(hints[key]) and isinstance(value, Mapping):
            own[key], beyond = _divide(hints[key], value)
            if beyond:
                foreign[key] = beyond
        else:
            own[key] = value
    return own, foreign


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(first)
    for key, value in second.items():
        both = isinstance(merged.get(key), Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(merged[key], value) if both else value
    return merged
