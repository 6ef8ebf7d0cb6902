"""Composition with Hydra: defaults, then the recipe, then the user's overrides.

The defaults live in the dataclasses and nowhere else. Every override is allowed to reach the tree, also
one with a `+` in front as verl's users write it for new keys; keys that do not exist are then refused by
the parser, which knows the full names and can say which one was meant.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from archer.config.names import renamed, with_todays_names
from archer.config.overrides import ONLY_VERLS, adopt_verl_keys, given_settings, hydra_arguments
from archer.config.parse import defaults, flat, parse
from archer.config.presets import apply_preset, chosen_preset
from archer.config.root import TrainConfig
from archer.config.rules import check
from archer.errors import ArcherError, hide

BUILTIN_RECIPE, PLAIN_RECIPE = "arithmetic", "base"
ENGINES = ("local", "verl")


def compose(overrides: Sequence[str] = (), config_dir: Path | None = None) -> TrainConfig:
    """Return the checked configuration for a list of Hydra overrides."""
    tree = compose_tree(overrides, config_dir)
    if chosen_preset(tree):
        apply_preset(tree, given_settings(overrides, config_dir))
    if _engine_name(tree) == "verl":
        tree = adopt_verl_keys(TrainConfig, tree)
    config = parse(TrainConfig, tree)
    check(config)
    return config


def default_config() -> TrainConfig:
    """Return the configuration of a plain `archer train`: the embedded default."""
    return compose()


def compose_tree(overrides: Sequence[str], config_dir: Path | None = None) -> dict[str, Any]:
    """Return the composed configuration as plain dictionaries, interpolations resolved, keys unchecked."""
    arguments = hydra_arguments(overrides, config_dir)
    return with_todays_names(_composed(arguments, config_dir), defaults(TrainConfig))


def _composed(arguments: list[str], config_dir: Path | None) -> dict[str, Any]:
    for name in ENGINES:
        tree = defaults(TrainConfig)
        tree["engine"]["name"] = name
        ConfigStore.instance().store(
            group="engine", name=name, package="_global_", node=tree, provider="archer"
        )
    if any(argument.startswith("recipe=") for argument in arguments):
        return _compose(arguments, config_dir)
    # The embedded default's learning rate would wreck a real model, so its recipe never applies to one.
    if config_dir is not None or any(_may_name_a_model(argument) for argument in arguments):
        plain = _compose([f"recipe={PLAIN_RECIPE}", *arguments], config_dir)
        if _model_path(plain):
            return plain
    return _compose([f"recipe={BUILTIN_RECIPE}", *arguments], config_dir)


def _may_name_a_model(argument: str) -> bool:
    """Whether a model's path may come out of an argument: only then is it worth composing to find out."""
    key = argument.partition("=")[0]
    whole_section = "." not in key and key != "engine"
    return "model" in key or whole_section or "$" in argument or key.startswith("hydra.")


def _engine_name(tree: dict[str, Any]) -> object:
    engine = tree["engine"]
    return engine.get("name") if isinstance(engine, dict) else None


def _model_path(tree: dict[str, Any]) -> str:
    try:
        return tree["actor_rollout_ref"]["model"]["path"] or ""
    except (KeyError, TypeError):  # a section was replaced by a value, which the parser will refuse
        return ""


def _compose(arguments: list[str], config_dir: Path | None) -> dict[str, Any]:
    try:
        with initialize_config_module("archer.conf", version_base="1.3"):
            composed = hydra_compose("config", arguments)
        resolved: Any = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ArcherError(_readable(error, arguments, config_dir)) from error
    _remember_written(flat(OmegaConf.to_container(composed)), flat(resolved))  # type: ignore[arg-type]
    return resolved


_VARIABLE = re.compile(r"\$\{oc\.env:\s*([^,}\s]+)")
_WRITTEN: dict[tuple[str, str], Any] = {}
"""(key, its value's content) -> how the user wrote it, for values that came out of the environment."""


def _remember_written(written: dict[str, Any], resolved: dict[str, Any]) -> None:
    """Note which values came from `${oc.env:...}`, also through another key: they may be secrets."""
    interpolated = {key for key, text in written.items() if "${" in str(text)}
    secret = {str(resolved[key]) for key in interpolated if "oc.env" in str(written[key])}
    for name in _VARIABLE.findall(" ".join(str(written[key]) for key in interpolated)):
        hide(os.environ.get(name, ""), f"${{oc.env:{name}}}")
    for key in interpolated:
        value = resolved.get(key)
        if "oc.env" in str(written[key]) or any(text and text in str(value) for text in secret):
            for name in (renamed(key), f"{ONLY_VERLS}{key}"):
                _WRITTEN[name, _content(value)] = written[key]


def _content(value: Any) -> str:
    """A text that stays the same when the parser makes a number or a list of a text."""
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        value = ",".join(value)
    text = str(value)
    try:
        return repr(float(text))
    except ValueError:
        return ",".join(part.strip() for part in text.split(","))


def recipes() -> dict[str, str]:
    """Return the shipped recipes: name -> the sentence at the top of its file."""
    folder = resources.files("archer.conf") / "recipe"
    found = {}
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if entry.name.endswith(".yaml"):
            found[entry.name.removesuffix(".yaml")] = _first_sentence(entry.read_text())
    return found


def to_yaml(config: TrainConfig) -> str:
    """Return the configuration as YAML text, without values out of the environment."""
    return OmegaConf.to_yaml(OmegaConf.create(stored_tree(config)))


def stored_tree(config: TrainConfig) -> dict[str, Any]:
    """Return the configuration as it may be stored, sent and shown: plain dictionaries and lists.

    What came from `${oc.env:NAME}` stands there as it was written, never as the value: it may be a key or a
    password.
    """
    tree = asdict(config, dict_factory=lambda items: {k: _plain(v) for k, v in items})
    return _as_written(tree, "")


def _as_written(tree: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {
        key: _as_written(value, f"{prefix}{key}.")
        if isinstance(value, dict)
        else _WRITTEN.get((f"{prefix}{key}", _content(value)), value)
        for key, value in tree.items()
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _readable(error: Exception, arguments: list[str], config_dir: Path | None) -> str:
    text = str(error)
    wanted = next((a.split("=", 1)[1] for a in arguments if a.startswith("recipe=")), None)
    if f"recipe/{wanted}" in text:
        own = sorted(path.stem for path in config_dir.glob("recipe/*.yaml")) if config_dir else []
        return f"There is no recipe {wanted!r}. Recipes: {', '.join([*own, *recipes()])}."
    wanted = next((a.split("=", 1)[1] for a in arguments if a.startswith("engine=")), None)
    if f"engine/{wanted}" in text:
        return f"There is no engine {wanted!r}. Engines: {', '.join(ENGINES)}."
    if any(
        sign in text for sign in ("LexerNoViableAlt", "no viable", "mismatched input", "extraneous input")
    ):
        text += "\nA value with signs in it has to be quoted, for the shell and for Hydra: 'key=\"a=b, c\"'"
    return "The overrides could not be understood: " + text.replace("++", "")


def _first_sentence(text: str) -> str:
    lines = [line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")]
    return " ".join(line for line in lines if line and not line.startswith("@")).split(". ")[0].rstrip(".")
