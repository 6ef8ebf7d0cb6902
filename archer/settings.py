"""How a setting is declared: once, by the room that reads it, with its default, its range and its help.

    @dataclass(frozen=True)
    class PoolConfig(Section):
        workers: int = knob(2, "worker processes", at_least=1)
        timeout_s: float = knob(10.0, "seconds one task may take", above=0)

A section refuses values outside its ranges and choices whenever one is made, by the parser or by hand.
Numbers that are not finite are outside every range. Docs, help, checks and notes all read these declarations.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from archer.errors import ArcherError

Idle = Literal["note", "refuse"]
"""What happens to a setting that was changed although it has no effect in this run."""


@dataclass(frozen=True)
class Range:
    """Which numbers a setting may have."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    also: tuple[float, ...] = ()  # values outside that have a meaning of their own, such as -1 for "all"

    def __contains__(self, value: float) -> bool:
        if value in self.also:
            return True
        return (
            (isinstance(value, int) or math.isfinite(value))  # of a huge one isfinite would make a float
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        low = self.at_least if self.above is None else self.above
        high = self.at_most if self.below is None else self.below
        if low is not None and high is not None:
            opening, closing = "[" if self.above is None else "(", "]" if self.below is None else ")"
            text = f"in {opening}{low:g}, {high:g}{closing}"
        elif low is not None:
            text = f"{'at least' if self.above is None else 'greater than'} {low:g}"
        elif high is not None:
            text = f"{'at most' if self.below is None else 'less than'} {high:g}"
        else:
            text = "a finite number"
        return " or ".join([*(f"{value:g}" for value in self.also), text])


@dataclass(frozen=True)
class Declaration:
    """What is known of a setting beside its name, type and default."""

    help: str
    range: Range = Range()
    unit: str = ""
    table: Any = None  # of plug-ins (archer.plugins.PluginTable), one of which the setting names
    needs: str = (
        ""  # without which it has no effect: `use_kl_loss`, `lr_scheduler_type=cosine`, `projection!=none`
    )
    idle: Idle = "note"


def knob(
    default: Any,
    help: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    also: tuple[float, ...] = (),
    unit: str = "",
    table: Any = None,
    needs: str = "",
    idle: Idle = "note",
) -> Any:
    """Return a dataclass field: a setting with its default, its explanation and the values it may have.

    `needs` names the setting that switches this one on, in the same section or, with dots, by its full name;
    several are joined by `;`. A dictionary or a list as default is copied for every section that is made.
    """
    allowed = Range(at_least, above, at_most, below, also)
    metadata = {"setting": Declaration(help, allowed, unit, table, needs, idle), "help": help}
    if isinstance(default, dict | list):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def section(factory: Callable[[], Any], needs: str = "") -> Any:
    """Return a dataclass field that holds a nested group of settings; `needs` switches all of them on."""
    return field(default_factory=factory, metadata={"needs": needs})


def declaration(setting: Any) -> Declaration:
    """Return what was declared of a dataclass field."""
    return setting.metadata.get("setting") or Declaration(setting.metadata.get("help", ""))


def default_of(setting: Any) -> Any:
    """Return the default of a dataclass field."""
    return setting.default if setting.default is not MISSING else setting.default_factory()


class SettingError(ArcherError):
    """Values outside their ranges. `problems` holds (name within the section, value, what it must be)."""

    def __init__(self, problems: list[tuple[str, object, str]]) -> None:
        super().__init__("\n".join(f"{name}={value}: must be {text}" for name, value, text in problems))
        self.problems = problems


@dataclass(frozen=True)
class Section:
    """Base of every dataclass of settings: refuses values outside the declared ranges.

    `switch` names the setting of the section that turns all others on, but for those that act `without_it`;
    `tables` hold the plug-ins whose own settings belong to the section, too.
    """

    switch: ClassVar[str] = ""
    without_it: ClassVar[tuple[str, ...]] = ()
    tables: ClassVar[tuple[Any, ...]] = ()

    def __post_init__(self) -> None:
        problems = list(range_problems(self))
        if problems:
            raise SettingError(problems)


@cache
def choices_of(section: type) -> dict[str, tuple[Any, ...]]:
    """The values of every setting that may have some values only."""
    hints = get_type_hints(section)
    return {name: get_args(kind) for name, kind in hints.items() if get_origin(kind) is Literal}


def range_problems(settings: Any) -> Iterator[tuple[str, object, str]]:
    """Yield (name, value, what it must be) of every value outside its range; None is no number."""
    choices = choices_of(settings.__class__)
    for setting in fields(settings):
        if setting.name in choices and getattr(settings, setting.name) not in choices[setting.name]:
            among = ", ".join(map(str, choices[setting.name]))
            yield setting.name, getattr(settings, setting.name), f"one of {among}"
        if "setting" not in setting.metadata:
            continue
        value, allowed = getattr(settings, setting.name), declaration(setting).range
        numbers = value if isinstance(value, tuple | list) else (value,)
        for number in numbers:
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            if is_number and number not in allowed:
                infinite = isinstance(number, float) and not math.isfinite(number) and allowed != Range()
                optional = ", or left out" if setting.default is None else ""
                yield setting.name, number, f"{'finite and ' if infinite else ''}{allowed}{optional}"
