"""The configuration reference, written from the dataclasses: `python -m archer.config.reference`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from archer.config.compose import recipes
from archer.config.parse import defaults, leaves
from archer.config.root import TrainConfig
from archer.settings import Declaration, Range, declaration

INTRODUCTION = """# Configuration

Settings have verl's names. Set them on the command line, `archer train key=value ...`, in Hydra's grammar, or
in a recipe: a YAML file with the same tree, `recipe/NAME.yaml` in a folder given by `--config-dir`, chosen
with `recipe=NAME`. The order is: defaults, recipe, command line. `archer train --print-config` shows the
result. A key that does not exist, or a value that is not allowed, ends the command with a message that
names it; a setting that another one switches off is named when the run starts, and changes nothing.
Numbers are finite everywhere.

Written by `python -m archer.config.reference` from the dataclasses; do not edit by hand.
"""


def render() -> str:
    """Return the reference as Markdown."""
    parts = [INTRODUCTION, "## Recipes\n", "| recipe | what it is |", "|---|---|"]
    parts += [f"| `{name}` | {text} |" for name, text in recipes().items()]
    for section, rows in _sections().items():
        parts += [f"\n## `{section}`\n", "| key | default | values | meaning |", "|---|---|---|---|", *rows]
    return "\n".join(parts) + "\n"


def _sections() -> dict[str, list[str]]:
    """Rows of each section, a section before those inside it, whatever the order of its fields."""
    tree = defaults(TrainConfig)
    found: dict[str, list[str]] = {section: [] for section in _section_names(tree)}
    for name, kind, field in leaves(TrainConfig):
        section, _, key = name.rpartition(".")
        text = " ".join(declaration(field).help.split()).replace("|", "\\|")
        text = re.sub(r"<(?=\w)", "&lt;", text)  # `<G_r, g_t>` would be taken for HTML
        values = _values(kind, declaration(field))
        found[section].append(f"| `{key}` | {_shown(tree, name)} | {values} | {text} |")
    return {section: rows for section, rows in found.items() if rows}


def _section_names(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, inner in tree.items():
        if isinstance(inner, dict):
            yield f"{prefix}{name}"
            yield from _section_names(inner, f"{prefix}{name}.")


def _values(kind: Any, declared: Declaration) -> str:
    """What a setting may be, beyond its type."""
    kinds = (kind, *get_args(kind))
    options = [option for inner in kinds if get_origin(inner) is Literal for option in get_args(inner)]
    if declared.table is not None:
        options = [*declared.table.names(), "path/to/file.py:function"]
    if options:
        return ", ".join(f"`{option}`" for option in options)
    return str(declared.range) if declared.range != Range() else ""


def _shown(tree: dict[str, Any], name: str) -> str:
    value: Any = tree
    for part in name.split("."):
        value = value[part]
    if value is None:
        return "-"
    if value == "":
        return "required"
    return f"`{str(value).replace(chr(39), '')}`"


if __name__ == "__main__":
    target = Path(__file__).parents[2] / "docs" / "configuration.md"
    target.write_text(render())
    print(f"wrote {target}")
