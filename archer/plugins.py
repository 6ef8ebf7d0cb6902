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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from archer.errors import ArcherError
from archer.settings import Section

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

    def reads(self) -> frozenset[str]:
        """Names of the settings that it reads."""
        return frozenset(setting.name for setting in fields(self.settings))

    def settings_from(self, section: Any) -> Any:
        """Return its settings, taken from the section of the configuration that holds them."""
        return self.settings(**{name: getattr(section, name) for name in self.reads()})


class PluginTable(Generic[T]):
    """The algorithms that one setting chooses from."""

    def __init__(self, key: str, package: str) -> None:
        self.key = key  # full name of the setting that chooses
        self._package = package  # whose modules register themselves when they are imported
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
        """All algorithms that are known so far, each once."""
        self._import_package()
        return iter({id(plugin.function): plugin for plugin in self._plugins.values()}.values())

    def names(self) -> tuple[str, ...]:
        """The package's own names."""
        self._import_package()
        return tuple(name for name in self._plugins if not is_reference(name))

    def __getitem__(self, name: str) -> Plugin[T]:
        """Return the algorithm of a name, or that of a user's file; others are an error with the choices."""
        self._import_package()
        if name not in self._plugins and is_reference(name):
            self._plugins[name] = self._load(name)
        if name in self._plugins:
            return self._plugins[name]
        close = get_close_matches(name, self.names(), n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ArcherError(
            f"{self.key}={name} is not known. Choose one of: {', '.join(self.names())}, or your own, "
            f"path/to/file.py:function.{hint}"
        )

    def _load(self, name: str) -> Plugin[T]:
        """A user's function may declare the settings it reads as its attribute `settings`."""
        path, _, function_name = name.rpartition(":")
        function = load_function(path, function_name, self.key)
        settings = getattr(function, "settings", NoSettings)
        if not (isinstance(settings, type) and issubclass(settings, Section)):
            raise ArcherError(
                f"{self.key}={name}: the attribute `settings` of the function must be a dataclass that "
                "derives from archer.settings.Section."
            )
        facts = getattr(function, "facts", {})
        return Plugin((name,), function, settings, dict(facts))

    def _import_package(self) -> None:
        if not self._complete:
            self._complete = True
            package = importlib.import_module(self._package)
            for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
                importlib.import_module(f"{self._package}.{module.name}")


def is_reference(name: str) -> bool:
    """Whether a name stands for a user's own function: `path/to/file.py:function`."""
    return name.rpartition(":")[0].endswith(".py")


def settings_of(table: PluginTable[Any]) -> dict[str, Any]:
    """Return every setting that some algorithm of a table reads: name -> dataclass field."""
    found: dict[str, Any] = {}
    for plugin in table:
        for setting in fields(plugin.settings):
            known = found.setdefault(setting.name, setting)
            if known.default != setting.default or known.metadata != setting.metadata:
                raise ValueError(f"{table.key}: two algorithms declare {setting.name} differently")
    return found


@cache
def load_function(path: str, name: str, key: str) -> Any:
    """Import a user's Python file, once in this process, and return what it calls `name`.

    `key` is the setting that an error points at.
    """
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise ArcherError(f"{key}={path}: there is no such file. Give the path of a Python file.")
    module = _load_module(file, key)
    if name not in vars(module):
        defined = sorted(entry for entry, value in vars(module).items() if inspect.isfunction(value))
        raise ArcherError(
            f"{key}: {path} defines no {name!r}. It has: {', '.join(defined) or 'no functions'}."
        )
    return vars(module)[name]


@cache
def _load_module(file: Path, key: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"archer_user_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ArcherError(f"{key}={file} is not a Python file: its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up here
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ArcherError(f"{key}={file} cannot be imported: {type(error).__name__}: {error}") from error
    return module
