"""`trainer.influence_trace.preset`: knobs under one name, filled in where nobody has set them.

In order: the defaults, the recipe, the preset, what the user gave. A preset that a shipped recipe names
yields to knobs that the recipe sets beside it; one that the user names yields to the user's own settings.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from archer.config.parse import value_of
from archer.config.root import TrainConfig
from archer.influence.config import PREFIX, PRESETS, InfluenceConfig
from archer.settings import default_of

KEY = f"{PREFIX}.preset"


def chosen_preset(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the knobs of the preset that a composed tree names; an unknown one is left to the parser."""
    section = _section(tree)
    name = section.get("preset")
    return PRESETS.get(name, {}) if isinstance(name, str) else {}


def apply_preset(tree: dict[str, Any], given: Collection[str]) -> None:
    """Fill in the knobs of the tree's preset, but for those that were set.

    `given`: full names of the settings that are the user's.
    """
    section = _section(tree)
    defaults = {name: default_of(knob) for name, knob in InfluenceConfig.__dataclass_fields__.items()}
    for name, value in chosen_preset(tree).items():
        of_recipe = KEY not in given and section.get(name, defaults[name]) != defaults[name]
        if f"{PREFIX}.{name}" not in given and not of_recipe:
            section[name] = value


def preset_notes(config: TrainConfig) -> Iterator[str]:
    """Yield one sentence for each knob that stands although the preset says otherwise."""
    section = config.trainer.influence_trace
    for name, value in PRESETS[section.preset].items():
        own = value_of(section, name)
        if own != value:
            yield f"{PREFIX}.{name}={own} was set and stays; {KEY}={section.preset} says {value}"


def _section(tree: Mapping[str, Any]) -> dict[str, Any]:
    for name in PREFIX.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else None  # type: ignore[assignment]
    return tree if isinstance(tree, dict) else {}
