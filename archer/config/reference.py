"""The configuration reference, written from the dataclasses: `python -m archer.config.reference`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from archer.config.compose import recipes
from archer.config.parse import defaults, leaves
from archer.config.root import TrainConfig

INTRODUCTION = """# Configuration

Settings have verl's names. Set them on the command line, `archer train key=value ...`, in Hydra's grammar, or
in a recipe: a YAML file with the same tree, `recipe/NAME.yaml` in a folder given by `--config-dir`, chosen
with `recipe=NAME`. The order is: defaults, recipe, command line. `archer train --print-config` shows the
result. A key that does not exist, or a value that is not allowed, ends the command with a message that
names it; a setting that another one switches off is named when the run starts, and changes nothing.

Written by `python -m archer.config.reference` from `archer/config/`; do not edit by hand.
"""


def render() -> str:
    """Return the reference as Markdown."""
    parts = [INTRODUCTION, "## Recipes\n", "| recipe | what it is |", "|---|---|"]
    parts += [f"| `{name}` | {text} |" for name, text in recipes().items()]
    for section, rows in _sections().items():
        parts += [f"\n## `{section}`\n", "| key | default | meaning |", "|---|---|---|", *rows]
    return "\n".join(parts) + "\n"


def _sections() -> dict[str, list[str]]:
    """Rows of each section, a section before those inside it, whatever the order of its fields."""
    tree = defaults(TrainConfig)
    found: dict[str, list[str]] = {section: [] for section in _section_names(tree)}
    for name, kind, field in leaves(TrainConfig):
        section, _, key = name.rpartition(".")
        text = " ".join(str(field.metadata["help"]).split())
        choices = _choices(kind)
        if choices:
            text = f"{text} ({choices})"
        found[section].append(f"| `{key}` | {_shown(tree, name)} | {text.replace('|', chr(92) + '|')} |")
    return {section: rows for section, rows in found.items() if rows}


def _section_names(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, inner in tree.items():
        if isinstance(inner, dict):
            yield f"{prefix}{name}"
            yield from _section_names(inner, f"{prefix}{name}.")


def _choices(kind: Any) -> str:
    options = get_args(kind) if get_origin(kind) is Literal else ()
    return ", ".join(f"`{option}`" for option in options) if len(options) > 1 else ""


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
