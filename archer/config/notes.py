"""Settings that change nothing in a run: another one switches them off, or the chosen algorithm does not read
them.

Where that follows from is declared with each setting: what it `needs`, the `switch` of its section, the
plug-ins that read it. Most are not refused: configurations are shared with verl, where such values lie
around. A run says of each that the user gave, and that is not at its default, why it has no effect. Settings
declared `idle="refuse"` would mislead, and are refused.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from fnmatch import fnmatchcase
from typing import Any

from archer.config.parse import flat, leaves, value_of
from archer.config.root import TrainConfig
from archer.errors import ArcherError
from archer.plugins import Plugin, PluginTable
from archer.settings import Section, declaration, default_of

VERLS_OWN = (
    (
        ("algorithm.lam", "critic.[!e]*"),  # all of critic but its enable
        "algorithm.adv_estimator",
        "gae",
    ),
)
"""Settings that only verl has, the setting that decides over them, and the value with which they act."""

TELLS_NOTHING_ALONE = ("enable", "len", "name", "path", "type")


@dataclass(frozen=True)
class Reason:
    """Why a setting has no effect, and what would let it act."""

    text: str
    remedy: str


def idle_notes(config: TrainConfig, given: Collection[str]) -> list[str]:
    """Return one sentence for each of the `given` settings (full names) that changes nothing in this run."""
    own = {name for name, _, _ in leaves(config)}
    idle = {name: sentence for name, sentence, _ in _idle(config)}
    notes = []
    for name in sorted({_holder(name, own) for name in given}):
        if name in idle:
            notes.append(idle[name])
        elif name not in own:
            notes += _verls(config, name)
    return notes


def idle_refusals(config: TrainConfig) -> Iterator[str]:
    """Yield what is wrong with settings that have no effect and would mislead, and what to do."""
    refused = {name for name, _, setting in leaves(config) if declaration(setting).idle == "refuse"}
    for name, sentence, remedy in _idle(config):
        if name in refused:
            yield f"{sentence}. Leave it out, or {remedy}"


def _idle(config: TrainConfig) -> Iterator[tuple[str, str, str]]:
    """(full name, sentence, remedy) of every setting that is not at its default and has no effect."""
    reasons = dict(reversed(list(_reasons(config))))  # of several the first is told
    for name, _, setting in leaves(config):
        value = value_of(config, name)
        if name in reasons and value != default_of(setting):
            reason = reasons[name]
            yield name, f"{name}={_shown(value)} has no effect: {reason.text}", reason.remedy


def _reasons(config: TrainConfig) -> Iterator[tuple[str, Reason]]:
    """(full name, why it has no effect), the most telling reason of a setting first."""
    for name, table in plugin_settings(config):
        chosen = table.find(value_of(config, table.key))
        if name.rpartition(".")[2] not in chosen.reads():
            yield name, _unread(table, chosen, name)
    for condition in conditions(config):
        if not condition.holds(config):
            yield condition.name, condition.reason(config)


def plugin_settings(config: Section, prefix: str = "") -> Iterator[tuple[str, PluginTable[Any]]]:
    """Yield every setting that the package's plug-ins declare, with the table of these plug-ins."""
    for table in config.tables:
        yield from ((f"{prefix}{name}", table) for plugin in table for name in plugin.reads())
    for setting in fields(config):
        inner = getattr(config, setting.name)
        if is_dataclass(inner):
            yield from plugin_settings(inner, f"{prefix}{setting.name}.")  # type: ignore[arg-type]


def _unread(table: PluginTable[Any], chosen: Plugin[Any], name: str) -> Reason:
    """Why a setting that other plug-ins of the table read has no effect with the chosen one."""
    readers = ", ".join(plugin.names[0] for plugin in table if name.rpartition(".")[2] in plugin.reads())
    read = ", ".join(setting.name for setting in fields(chosen.settings))
    return Reason(
        f"{_beside(table.key, name)} is {chosen.names[0]}; it is read by {readers}",
        f"set what {chosen.names[0]} reads: {read}" if read else f"choose another {table.key}",
    )


@dataclass(frozen=True)
class Condition:
    """What a setting `needs`: that another one is set, or compares so with a value."""

    name: str  # full name of the setting that has an effect only where this holds
    key: str  # full name of the other
    sign: str  # empty: it is set, and not False or empty
    wanted: str
    otherwise: "Condition | None" = None  # what will do as well

    @staticmethod
    def read(text: str, name: str) -> "Condition":
        """Read `use_kl_loss`, `lr_scheduler_type=cosine`, `engine.device!=cpu` or `this or that`."""
        text, _, rest = text.partition(" or ")
        otherwise = Condition.read(rest, name) if rest else None
        sign = next((sign for sign in ("!=", "<=", "=") if sign in text), "")
        key, _, wanted = text.partition(sign) if sign else (text, "", "")
        full = key if "." in key else f"{name.rpartition('.')[0]}.{key}"
        return Condition(name, full, sign, wanted, otherwise)

    def holds(self, config: TrainConfig) -> bool:
        """Whether it holds in a configuration."""
        try:
            value = value_of(config, self.key)
        except AttributeError:
            raise ArcherError(f"{self.name} is declared to need {self.key}, which is no setting.") from None
        if self.otherwise is not None and self.otherwise.holds(config):
            return True
        if self.sign == "<=":
            return value <= float(self.wanted)
        if self.sign:
            return (str(value) == self.wanted) == (self.sign == "=")
        return bool(value)

    def reason(self, config: TrainConfig) -> Reason:
        """What is said where it does not hold."""
        value = value_of(config, self.key)
        remedy = {
            "": f"set {self.key}=True" if value is False else f"set {self.key}",
            "=": f"set {self.key}={self.wanted}",
            "!=": f"choose another {self.key}",
            "<=": f"set {self.key} to {self.wanted} or less",
        }[self.sign]
        return Reason(f"{_beside(self.key, self.name)} is {_shown(value)}", remedy)


def conditions(config: Section, prefix: str = "", outer: str = "") -> Iterator[Condition]:
    """Yield all that is declared, of a setting first what the sections around it need (`outer`)."""
    for setting in fields(config):
        name, inner = f"{prefix}{setting.name}", getattr(config, setting.name)
        if is_dataclass(inner):
            needs = "; ".join(filter(None, (outer, setting.metadata.get("needs", ""))))
            yield from conditions(inner, f"{name}.", needs)  # type: ignore[arg-type]
            continue
        switch = "" if setting.name in (config.switch, *config.without_it) else config.switch
        declared = "; ".join((outer, switch, declaration(setting).needs)).split("; ")
        yield from (Condition.read(text, name) for text in declared if text)


def _verls(config: TrainConfig, name: str) -> Iterator[str]:
    """Of a setting that only verl has."""
    for patterns, decides, acts_with in VERLS_OWN:
        chosen = value_of(config, decides)
        if any(fnmatchcase(name, pattern) for pattern in patterns) and chosen != acts_with:
            value = flat(config.engine.verl)[name]
            yield f"{name}={_shown(value)} has no effect: {_beside(decides, name)} is {chosen}"


def _holder(name: str, own: Collection[str]) -> str:
    """The setting that a name belongs to: itself, or the one that holds a dictionary with it."""
    return next((key for key in own if name.startswith(f"{key}.")), name)


def _beside(key: str, name: str) -> str:
    """How a key is called where `name` has just been said: without their section, if that is clear."""
    short = key.removeprefix(name.rpartition(".")[0] + ".")
    return key if short in TELLS_NOTHING_ALONE else short


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, tuple | list):
        return "[" + ",".join(map(str, value)) + "]" if value else "empty"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_shown(inner)}" for key, inner in value.items()) + "}"
    return str(value)
