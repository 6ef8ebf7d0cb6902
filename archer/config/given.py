"""Which settings a user gave: on the command line, and in recipes of their own."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import OmegaConf

from archer.config.compose import hydra_arguments

GROUPS = ("engine", "recipe")
ONLY_VERLS = "engine.verl."


def given_settings(overrides: Sequence[str], config_dir: Path | None = None) -> frozenset[str]:
    """Return the full names of all settings that the user gave; those of the shipped recipes are not theirs.

    The overrides are ones that `compose` has accepted. A setting of verl's that was given under `engine.verl`
    is named as verl names it.
    """
    arguments = hydra_arguments(overrides, config_dir)
    overriding = OverridesParser.create().parse_overrides(arguments)
    names = [*_on_the_command_line(overriding), *(_in_own_files(arguments, config_dir) if config_dir else ())]
    taken_back = tuple(f"{override.key_or_group}." for override in overriding if override.is_delete())
    return frozenset(name.removeprefix(ONLY_VERLS) for name in names if not f"{name}.".startswith(taken_back))


def _on_the_command_line(overriding: list[Override]) -> Iterator[str]:
    for override in overriding:
        key = override.key_or_group
        if not override.is_delete() and key not in GROUPS and not key.startswith("hydra."):
            yield from _names(key, override.value())


def _in_own_files(arguments: list[str], config_dir: Path) -> Iterator[str]:
    """Settings of every file that Hydra takes from the user's folder; a shipped file of its name wins."""
    shipped = resources.files("archer.conf")
    with initialize_config_module("archer.conf", version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        composed = loader.compute_defaults_list("config", arguments, RunMode.RUN).defaults
    for part in composed:
        file = f"{part.config_path}.yaml"
        if (config_dir / file).is_file() and not shipped.joinpath(file).is_file():
            tree = OmegaConf.to_container(OmegaConf.load(config_dir / file), resolve=False)
            assert isinstance(tree, Mapping), "it has been composed"
            own = {key: value for key, value in tree.items() if key != "defaults"}
            yield from _names(part.package or "", own)


def _names(key: str, value: Any) -> Iterator[str]:
    """Full names of all values under a key."""
    if not isinstance(value, Mapping) or not value:
        yield key
        return
    for name, inner in value.items():
        yield from _names(f"{key}.{name}" if key else str(name), inner)
