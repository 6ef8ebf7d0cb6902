"""From a plain dictionary to frozen dataclasses: every key known, every value of its type.

All problems are collected and reported together, each with the full name of the key.
"""

import difflib
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from archer.errors import ArcherError

T = TypeVar("T")


def parse(cls: type[T], values: Mapping[str, Any]) -> T:
    """Build `cls` from `values`, or raise one ArcherError that names every bad key."""
    problems: list[str] = []
    result = _parse_dataclass(cls, values, "", problems, list(key_names(cls)))
    if problems:
        raise ArcherError("The configuration has a problem:\n" + "\n".join(f"  {p}" for p in problems))
    return result


def key_names(cls: type, prefix: str = "") -> Iterator[str]:
    """Yield the full name of every leaf key of a configuration dataclass."""
    for name, _, _ in leaves(cls, prefix):
        yield name


def leaves(cls: type, prefix: str = "") -> Iterator[tuple[str, Any, Field[Any]]]:
    """Yield (full name, type, field) of every leaf key of a configuration dataclass."""
    hints = get_type_hints(cls)
    for field in fields(cls):
        name = f"{prefix}{field.name}"
        if is_dataclass(hints[field.name]):
            yield from leaves(hints[field.name], f"{name}.")
        else:
            yield name, hints[field.name], field


def defaults(cls: type) -> dict[str, Any]:
    """Return the default tree of a configuration dataclass as plain dictionaries and lists."""
    tree: dict[str, Any] = {}
    hints = get_type_hints(cls)
    for field in fields(cls):
        if is_dataclass(hints[field.name]):
            tree[field.name] = defaults(hints[field.name])
        else:
            factory = field.default_factory
            value = field.default if factory is MISSING else factory()
            tree[field.name] = list(value) if isinstance(value, tuple) else value
    return tree


def _parse_dataclass(
    cls: type[T], values: Mapping[str, Any], prefix: str, problems: list[str], known: list[str]
) -> T:
    hints = get_type_hints(cls)
    names = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    for key in values:
        if key not in names:
            problems += [_unknown(full, known) for full in _full_names(f"{prefix}{key}", values[key])]
    arguments: dict[str, Any] = {}
    for name in names & values.keys():
        full, kind, value = f"{prefix}{name}", hints[name], values[name]
        if not is_dataclass(kind):
            before = len(problems)
            converted = _convert(kind, value, full, problems)
            if len(problems) == before:  # what is wrong already need not be told again by its section
                arguments[name] = converted
        elif isinstance(value, Mapping):
            arguments[name] = _parse_dataclass(kind, value, f"{full}.", problems, known)  # type: ignore[arg-type]
        else:
            problems.append(f"{full} is a group of settings, not a value: set {full}.<name>={value!r}")
    try:
        return cls(**arguments)
    except ArcherError as error:  # a section that checks its own values
        problems.append(str(error))
        return cls()


def _full_names(key: str, value: Any) -> list[str]:
    """Names of the values under an unknown key: `policy_loss.loss_mode`, not `policy_loss`."""
    if not isinstance(value, Mapping) or not value:
        return [key]
    return [full for name, inner in value.items() for full in _full_names(f"{key}.{name}", inner)]


def _unknown(key: str, known: list[str]) -> str:
    matches = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    last = key.rsplit(".", 1)[-1]
    same_end = [name for name in known if name.endswith(f".{key}")]
    same_name = [name for name in known if name.rsplit(".", 1)[-1] == last]
    hint = (same_end or same_name or matches)[:1]
    meant = f" Did you mean {hint[0]}?" if hint else ""
    return (
        f"{key}: engine=local has no such setting.{meant} (A setting that only verl has needs engine=verl.)"
    )


def _convert(kind: Any, value: Any, key: str, problems: list[str]) -> Any:
    """Return `value` as `kind`; a mismatch is appended to `problems`."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        inner = [option for option in get_args(kind) if option is not type(None)]
        return None if value is None else _convert(inner[0], value, key, problems)
    if origin is Literal:
        choices = get_args(kind)
        if value not in choices:
            problems.append(f"{key}={value!r}: choose one of {', '.join(map(str, choices))}")
        return value
    if origin is tuple:
        items = value if isinstance(value, (list, tuple)) else [value]
        return tuple(_convert(get_args(kind)[0], item, key, problems) for item in items)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is float and isinstance(value, str):  # YAML reads 1e-6 as a string
        try:
            return float(value)
        except ValueError:
            pass
    if kind is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    plain = origin or kind
    if not isinstance(value, plain) or (plain is int and isinstance(value, bool)):
        problems.append(f"{key}={value!r}: expected {_type_name(kind)}")
    return value


def _type_name(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}
    return names.get(kind, "key: value pairs")
