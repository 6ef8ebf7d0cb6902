"""Tables of algorithms that are chosen by name: the package's files, and a user's `path/file.py:function`.

A table is filled by its files: each registers a function under its names, with the settings that it reads.

    LOSSES = PluginTable[Loss]("actor_rollout_ref.actor.policy_loss.loss_mode", package=__name__)

    @LOSSES.register("sapo", settings=SapoSettings)
    def sapo(inputs, settings): ...

The choices of the setting, its help, the range checks, the notes on settings without effect and the generated
docs all follow from the table, so that a new algorithm is one file.
"""

import importlib
import importlib.util
import inspect
import pkgutil
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

from archer.errors import ArcherError
from archer.files import real_path
from archer.settings import Section, default_of

T = TypeVar("T", bound=Callable[..., Any])
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class NoSettings(Section):
    """Of an algorithm that reads none."""


@dataclass(frozen=True)
class Plugin(Generic[T]):
    """An algorithm: what computes it, the settings it reads, and what else its table wants to know."""

    names: tuple[str, ...]
    function: T
    settings: type[Section]
    facts: dict[str, Any]

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.function) or "").split("\n")[0]

    def reads(self) -> tuple[str, ...]:
        """Names of the settings that it reads."""
        return tuple(setting.name for setting in fields(self.settings))

    def settings_from(self, section: Any) -> Any:
        """Return its settings, taken from the section of the configuration that holds them."""
        return self.settings(**{name: getattr(section, name) for name in self.reads()})


class PluginTable(Generic[T]):
    """The algorithms that one setting chooses from."""

    def __init__(self, key: str, package: str, takes: tuple[str, ...] = ("inputs", "settings")) -> None:
        self.key = key  # full name of the setting that chooses
        self._package = package  # whose modules register themselves when they are imported
        self._takes = takes  # what its functions are called with
        self._plugins: dict[str, Plugin[T]] = {}
        self._complete = False

    def register(
        self, *names: str, settings: type[Section] = NoSettings, **facts: Any
    ) -> Callable[[Function], Function]:
        """Register the decorated function under its names."""

        def add(function: Function) -> Function:
            for name in names:
                if name in self._plugins:
                    raise ValueError(f"{self.key}: two algorithms are called {name!r}")
                self._plugins[name] = Plugin(names, function, settings, facts)  # type: ignore[arg-type]
            return function

        return add

    def __iter__(self) -> Iterator[Plugin[T]]:
        """The package's own algorithms, each once."""
        self._import_package()
        return iter({plugin.names: plugin for plugin in self._plugins.values()}.values())

    def names(self) -> tuple[str, ...]:
        """The package's own names."""
        self._import_package()
        return tuple(self._plugins)

    def find(self, name: str, key: str = "") -> Plugin[T]:
        """Return the algorithm of a name, or that of a user's file; others are an error with the choices.

        `key` is the setting that an error points at, where the table serves several.
        """
        self._import_package()
        if name in self._plugins:
            return self._plugins[name]
        if is_reference(name):
            return self._load(name, key or self.key)
        close = get_close_matches(name, self._plugins, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ArcherError(
            f"{key or self.key}={name!r}: choose one of {', '.join(self._plugins)}, or your own, "
            f"path/to/file.py:function.{hint}"
        )

    def _load(self, name: str, key: str) -> Plugin[T]:
        """A user's function may declare the settings it reads, by `reads`."""
        path, _, function_name = name.rpartition(":")
        function = load_function(path, function_name, key)
        settings = getattr(function, "settings", NoSettings)
        is_section = isinstance(settings, type) and issubclass(settings, Section)
        if not is_section or "__dataclass_fields__" not in vars(settings):
            raise ArcherError(
                f"{key}={name}: what the function @reads must be a dataclass that derives from "
                "archer.settings.Section."
            )
        plain = [setting.name for setting in fields(settings) if "setting" not in setting.metadata]
        if plain:
            raise ArcherError(
                f"{key}={name}: declare {settings.__name__}.{plain[0]} as archer.settings.knob(default, "
                "help), with the range that it may have."
            )
        if settings is not NoSettings and "settings" not in self._takes:
            raise ArcherError(f"{key}={name}: such a function has no settings: remove its @reads.")
        if not _accepts(function, len(self._takes)):
            raise ArcherError(f"{key}={name}: must be a function of ({', '.join(self._takes)}).")
        return Plugin((name,), function, settings, dict(getattr(function, "facts", {})))

    def _import_package(self) -> None:
        if not self._complete:
            self._complete = True
            package = importlib.import_module(self._package)
            for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
                importlib.import_module(f"{self._package}.{module.name}")
            by_module = sorted(self._plugins.items(), key=lambda item: item[1].function.__module__)
            self._plugins = dict(by_module)  # the same order, whoever imported one of them first


def reads(settings: type[Section], **facts: Any) -> Callable[[Function], Function]:
    """Declare the settings that a user's own function reads and is given; facts are those of `register`."""

    def declare(function: Function) -> Function:
        function.settings = settings  # type: ignore[attr-defined]
        function.facts = facts  # type: ignore[attr-defined]
        return function

    return declare


def _accepts(function: Any, count: int) -> bool:
    """Whether something can be called with so many arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


def is_reference(name: str) -> bool:
    """Whether a name stands for a user's own function: `path/to/file.py:function`."""
    return name.rpartition(":")[0].endswith(".py")


S = TypeVar("S", bound=Section)


def extended(section: type[S], own: Sequence[type[Section]] = ()) -> type[S]:
    """Return a section with the settings that its plug-ins declare; `own` are those of a user's plug-ins.

    The same arguments give the same class. Two algorithms may read the same setting, declared the same way.
    """
    declared = [plugin.settings for table in getattr(section, "tables", ()) for plugin in table] + list(own)
    if not declared:
        return section
    return _extended(section, tuple(dict.fromkeys(declared)))  # type: ignore[arg-type]


@cache
def _extended(section: type[S], declared: tuple[type[Section], ...]) -> type[S]:
    found: dict[str, tuple[Any, Any]] = {}
    for settings in declared:
        hints = get_type_hints(settings)
        for setting in fields(settings):
            _, known = found.setdefault(setting.name, (hints[setting.name], setting))
            if default_of(known) != default_of(setting) or known.metadata != setting.metadata:
                raise ArcherError(
                    f"{settings.__name__}.{setting.name}: another algorithm declares this setting "
                    "differently. Choose another name, or derive from the class that has it."
                )
            if setting.name in {own.name for own in fields(section)}:
                raise ArcherError(
                    f"{settings.__name__}.{setting.name}: {section.__name__} has this setting already. "
                    "Choose another name."
                )
    added = [(name, hint, _copy(known)) for name, (hint, known) in found.items()]
    return make_dataclass(section.__name__, added, bases=(section,), frozen=True)


def _copy(setting: Any) -> Any:
    """The same field for another dataclass."""
    if setting.default_factory is not MISSING:
        return field(default_factory=setting.default_factory, metadata=setting.metadata)
    return field(default=setting.default, metadata=setting.metadata)


def load_function(path: str, name: str, key: str) -> Any:
    """Import a user's Python file, once in this process, and return what it calls `name`.

    `key` is the setting that an error points at.
    """
    file = real_path(Path(path).expanduser())
    if not file.is_file():
        raise ArcherError(f"{key}={path}: there is no such file. Give the path of a Python file.")
    try:
        module = _load_module(file)
    except (Exception, SystemExit) as error:
        raise ArcherError(f"{key}={path} cannot be imported: {type(error).__name__}: {error}") from error
    if name not in vars(module):
        defined = sorted(entry for entry, value in vars(module).items() if inspect.isfunction(value))
        raise ArcherError(
            f"{key}: {path} defines no {name!r}. It has: {', '.join(defined) or 'no functions'}."
        )
    return vars(module)[name]


@cache
def _load_module(file: Path) -> Any:
    """Several files may be called the same, so a module's name holds the whole path."""
    spec = importlib.util.spec_from_file_location(
        f"archer_user_{file.stem}_{zlib.crc32(bytes(file)):08x}", file
    )
    if spec is None or spec.loader is None:
        raise ImportError("the name of a Python file must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up here
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module
