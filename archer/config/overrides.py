"""What a user gave, on the command line and in their own recipes; and the settings that only verl has.

With engine=verl the latter may be given by verl's names (`actor_rollout_ref.rollout.name=sglang`). They are
gathered under `engine.verl`, in the same tree, and checked against verl's own when the engine starts.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import OmegaConf

from archer.config.names import renamed
from archer.config.parse import section_class
from archer.errors import ArcherError
from archer.files import real_path
from archer.settings import Section

GROUPS = ("engine", "recipe")
ONLY_VERLS = "engine.verl."
ARCHERS_ALONE: dict[str, tuple[str, ...]] = {
    "engine.": (),
    "reward.": ("_target_", "reward_manager", "reward_model", "sandbox_fusion"),
    "algorithm.filter_groups.": ("_target_", "max_inflight_gen_batches"),
    "trainer.entropy_trace.": (),
    "trainer.influence_trace.": (),
    "trainer.val_trace.": (),
}
"""Sections of Archer's own, and what verl has in them beside: any other name there is a mistake."""


def hydra_arguments(overrides: Sequence[str], config_dir: Path | None) -> list[str]:
    """Return what Hydra is given for the user's overrides and folder."""
    arguments = [_normalise(override) for override in overrides]
    if config_dir is not None:
        if not config_dir.is_dir():
            raise ArcherError(f"--config-dir {config_dir}: there is no such folder.")
        arguments.append(f"hydra.searchpath=[{real_path(config_dir)}]")
    return arguments


def given_settings(overrides: Sequence[str], config_dir: Path | None = None) -> frozenset[str]:
    """Return the full names of all settings that the user gave; those of the shipped recipes are not theirs.

    The overrides are ones that `compose` has accepted. A setting of verl's that was given under `engine.verl`
    is named as verl names it.
    """
    arguments = hydra_arguments(overrides, config_dir)
    overriding = OverridesParser.create().parse_overrides(arguments)
    names = [*_on_the_command_line(overriding), *(_in_own_files(arguments, config_dir) if config_dir else ())]
    taken_back = tuple(f"{override.key_or_group}." for override in overriding if override.is_delete())
    kept = (name for name in names if not f"{name}.".startswith(taken_back))
    return frozenset(renamed(name.removeprefix(ONLY_VERLS)) for name in kept)


def renaming_notes(overrides: Sequence[str], config_dir: Path | None = None) -> list[str]:
    """Return one sentence for each setting that the user gave by an old name."""
    names = [override.lstrip("+").partition("=")[0] for override in overrides]
    if config_dir is not None:
        names += _in_own_files(hydra_arguments(overrides, config_dir), config_dir)
    plain = dict.fromkeys(name.removeprefix(ONLY_VERLS) for name in names)
    return [f"{name} is an old name, taken for {renamed(name)}" for name in plain if renamed(name) != name]


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


def adopt_verl_keys(cls: type[Section], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return `tree` with the keys that `cls` does not have moved to `engine.verl`."""
    own, beyond = _divide(cls, tree, "")
    if isinstance(own.get("engine"), dict):
        given = own["engine"].get("verl") or {}
        if not isinstance(given, Mapping):
            raise ArcherError(f"engine.verl={given!r}: it is a group of settings, set engine.verl.<name>.")
        own["engine"]["verl"] = _merged(given, beyond)
    return own


def _divide(
    cls: type[Section], tree: Mapping[str, Any], prefix: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    cls = section_class(cls, tree, prefix)
    hints = get_type_hints(cls)
    names = {setting.name for setting in fields(cls)}
    own: dict[str, Any] = {}
    beyond: dict[str, Any] = {}
    archers = next((verls for section, verls in ARCHERS_ALONE.items() if prefix.startswith(section)), None)
    for key, value in tree.items():
        if key not in names and archers is not None and key not in archers:
            own[key] = value  # which the parser refuses
        elif key not in names:
            beyond[key] = value
        elif is_dataclass(hints[key]) and isinstance(value, Mapping):
            own[key], inner = _divide(hints[key], value, f"{prefix}{key}.")
            if inner:
                beyond[key] = inner
        else:
            own[key] = value
    return own, beyond


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(first)
    for key, value in second.items():
        both = isinstance(merged.get(key), Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _normalise(override: str) -> str:
    """Let `key=value` and `+key=value` both set a key, in the tree or not, also by its old name."""
    if "=" not in override and not override.startswith("~"):
        raise ArcherError(f"{override!r} is not an override: write key=value, e.g. data.train_batch_size=32")
    if re.match(r"^[~+]*hydra[./](?!searchpath=)", override):
        raise ArcherError(
            f"{override}: nothing but hydra.searchpath is read of Hydra's own settings: leave it out. The "
            "folder of a run is trainer.default_local_dir; grids of runs are made by archer ablate."
        )
    if override.startswith("~") or re.match(r"^(engine|recipe|hydra[.\w]*)=", override):
        return override
    key, equals, value = override.lstrip("+").partition("=")
    if value.startswith("~/"):  # which shells leave alone after an equals sign, and Hydra cannot read
        value = str(Path(value).expanduser())
    prefix = ONLY_VERLS if key.startswith(ONLY_VERLS) else ""
    return f"++{prefix}{renamed(key.removeprefix(prefix))}{equals}{value}"
