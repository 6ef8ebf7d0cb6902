"""From a plain dictionary to frozen dataclasses: every key known, every value of its type and in its range.

All problems are collected and reported together, each with the full name of the key.
"""

import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from archer.config.names import advice
from archer.errors import ArcherError
from archer.plugins import extended, is_reference
from archer.settings import Section, SettingError, declaration, default_of

T = TypeVar("T", bound=Section)


def parse(cls: type[T], values: Mapping[str, Any]) -> T:
    """Build `cls` from `values`, or raise one ArcherError that names every bad key."""
    problems: list[str] = []
    known = _Known(list(key_names(cls)), _engine(values))
    result = _parse_section(cls, values, "", problems, known)
    if problems:
        raise configuration_error(problems)
    return result


@dataclass(frozen=True)
class _Known:
    """What an unknown key is compared with, and the engine that does not have it."""

    names: list[str]
    engine: str


def _engine(values: Mapping[str, Any]) -> str:
    section = values.get("engine")
    return "verl" if isinstance(section, Mapping) and section.get("name") == "verl" else "local"


def configuration_error(problems: list[str]) -> ArcherError:
    """Return the error that lists everything wrong with a configuration."""
    return ArcherError(
        "The configuration has a problem:\n" + "\n".join(f"  {p}" for p in dict.fromkeys(problems)),
    )


def key_names(cls: type[Section]) -> Iterator[str]:
    """Yield the full name of every leaf key of a section."""
    for name, _, _ in leaves(cls):
        yield name


def leaves(of: Any, prefix: str = "") -> Iterator[tuple[str, Any, Field[Any]]]:
    """Yield (full name, type, field) of every leaf key of a section: a class, or one that was made."""
    made = not isinstance(of, type)
    cls = type(of) if made else extended(of)
    hints = get_type_hints(cls)
    for setting in fields(cls):
        name, kind = f"{prefix}{setting.name}", hints[setting.name]
        if is_dataclass(kind):
            yield from leaves(getattr(of, setting.name) if made else kind, f"{name}.")
        else:
            yield name, kind, setting


def defaults(cls: type[Section]) -> dict[str, Any]:
    """Return the default tree of a section as plain dictionaries and lists."""
    tree: dict[str, Any] = {}
    hints = get_type_hints(extended(cls))
    for setting in fields(extended(cls)):
        if is_dataclass(hints[setting.name]):
            tree[setting.name] = defaults(hints[setting.name])
        else:
            value = default_of(setting)
            tree[setting.name] = list(value) if isinstance(value, tuple) else value
    return tree


def value_of(config: Section, key: str) -> Any:
    """Return the value of a full key name."""
    node: Any = config
    for name in key.split("."):
        node = getattr(node, name)
    return node


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a tree as full name -> value; an empty dictionary is a value."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def section_class(cls: type[T], values: Mapping[str, Any], prefix: str) -> type[T]:
    """Return a section with its plug-ins' settings, those of a user's file that `values` names included."""
    own = []
    for table in getattr(cls, "tables", ()):
        name = flat(values).get(table.key.removeprefix(prefix))
        if isinstance(name, str) and is_reference(name):
            own.append(table.find(name).settings)
    return extended(cls, own)


def _parse_section(
    cls: type[T], values: Mapping[str, Any], prefix: str, problems: list[str], known: "_Known"
) -> T:
    try:
        cls, complete = section_class(cls, values, prefix), True
    except ArcherError as error:  # a user's file that cannot be used, so that its settings are not known
        problems.append(str(error))
        cls, complete = extended(cls), False
    hints = get_type_hints(cls)
    settings = {setting.name: setting for setting in fields(cls)}
    for key in values:
        if key not in settings and complete:
            problems += [
                _unknown(full, known.names, known.engine) for full in flat({f"{prefix}{key}": values[key]})
            ]
    arguments: dict[str, Any] = {}
    for name in (name for name in settings if name in values):
        full, kind, value = f"{prefix}{name}", hints[name], values[name]
        if not is_dataclass(kind):
            before = len(problems)
            converted = _convert(kind, value, full, problems)
            problems += _choice_problems(settings[name], converted, full)
            if len(problems) == before:  # what is wrong already need not be told again by its section
                arguments[name] = converted
        elif isinstance(value, Mapping):
            arguments[name] = _parse_section(kind, value, f"{full}.", problems, known)  # type: ignore[arg-type, type-var]
        else:
            problems.append(f"{full} is a group of settings, not a value: set {full}.<name>={value!r}")
    return _made(cls, arguments, prefix, problems)


def _made(cls: type[T], arguments: dict[str, Any], prefix: str, problems: list[str]) -> T:
    """Make the section; values that it refuses are reported and left at their defaults."""
    try:
        return cls(**arguments)
    except SettingError as error:
        problems += [f"{prefix}{name}={value}: must be {text}" for name, value, text in error.problems]
        bad = {name for name, _, _ in error.problems}
        return cls(**{name: value for name, value in arguments.items() if name not in bad})
    except ArcherError as error:  # a section that checks its own values
        problems.append(str(error))
        return cls()


def _choice_problems(setting: Field[Any], value: Any, key: str) -> Iterator[str]:
    """What is wrong with the name of a plug-in."""
    table = declaration(setting).table
    if table is not None and isinstance(value, str):
        try:
            table.find(value, key)
        except ArcherError as error:
            yield str(error)


def _unknown(key: str, known: list[str], engine: str) -> str:
    elsewhere = " (A setting that only verl has needs engine=verl.)" if engine == "local" else ""
    return f"{key}: engine={engine} has no such setting.{advice(key, known)}{elsewhere}"


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
        if value is None:
            problems.append(f"{key}=null: expected a list, [] for none")
            return ()
        items = value if isinstance(value, (list, tuple)) else [value]
        return tuple(_convert(get_args(kind)[0], item, key, problems) for item in items)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is float and isinstance(value, str):  # YAML reads 1e-6 as a string
        try:
            return float(value)
        except ValueError:
            pass
    if kind in (int, bool) and isinstance(value, str):  # what comes out of the environment is text
        value = _READ_AS[kind](value)
    if kind is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    plain = origin or kind
    if not isinstance(value, plain) or (plain is int and isinstance(value, bool)):
        problems.append(f"{key}={value!r}: expected {_type_name(kind)}")
    return value


def _whole_number(text: str) -> int | str:
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,100}", text) else text


def _flag(text: str) -> bool | str:
    return {"true": True, "false": False}.get(text.lower(), text)


_READ_AS: dict[Any, Callable[[str], Any]] = {int: _whole_number, bool: _flag}


def _type_name(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}
    return names.get(kind, "key: value pairs")
