"""A user's own reward function, called as verl calls it.

def compute_score(data_source, solution_str, ground_truth, extra_info, **reward_kwargs):
    return 1.0                                     # or {"score": 1.0, "acc": True, "format": 0.5}
"""

import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from archer.errors import ArcherError
from archer.rewards.types import RewardRequest, RewardResult

RewardFunction = Callable[..., Any]
_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")


@dataclass(frozen=True)
class FileFunction:
    """The function `name` in the Python file `path`."""

    path: str
    name: str

    def load(self) -> RewardFunction:
        """Import the file once in this process and return the function."""
        return _load_from_file(self)

    def __str__(self) -> str:
        return f"{self.name} in {self.path}"


@dataclass(frozen=True)
class ModuleFunction:
    """The function `name` of an importable module."""

    module: str
    name: str

    def load(self) -> RewardFunction:
        """Import the module and return the function."""
        return getattr(importlib.import_module(self.module), self.name)

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


FunctionSource = FileFunction | ModuleFunction


@cache
def _load_from_file(source: FileFunction) -> RewardFunction:
    path = Path(source.path)
    setting = "reward.custom_reward_function"
    if not path.is_file():
        raise ArcherError(
            f"{setting}.path={source.path}: there is no such file. Give the path of a Python file."
        )
    spec = importlib.util.spec_from_file_location(f"archer_custom_reward_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ArcherError(f"{setting}.path={source.path} is not a Python file: its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up here
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ArcherError(
            f"{setting}.path={source.path} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if source.name not in vars(module):
        defined = sorted(name for name, value in vars(module).items() if inspect.isfunction(value))
        raise ArcherError(
            f"{setting}.name={source.name}: {source.path} defines no such function. "
            f"It has: {', '.join(defined) or 'no functions'}."
        )
    return vars(module)[source.name]


def check_function(function: Any, where: str, kwargs: Mapping[str, Any]) -> None:
    """Raise an ArcherError unless the function can be called as rewards call it."""
    if not callable(function):
        raise ArcherError(f"The reward function {where} is a {type(function).__name__}, not a function.")
    if inspect.iscoroutinefunction(function):
        raise ArcherError(
            f"The reward function {where} is asynchronous. Worker processes already run rewards in parallel: "
            "define it with plain def."
        )
    clashing = [name for name in kwargs if name in _ARGUMENTS]
    if clashing:
        raise ArcherError(
            f"reward_kwargs may not contain {', '.join(clashing)}: every call gives these already."
        )
    try:
        inspect.signature(function).bind(**dict.fromkeys(_ARGUMENTS), **kwargs)
    except TypeError as error:
        wanted = ", ".join([*_ARGUMENTS, *kwargs])
        raise ArcherError(
            f"The reward function {where} has the signature {inspect.signature(function)}, but is called "
            f"with the keyword arguments {wanted}: {error}. Add what is missing, or **kwargs."
        ) from error


def to_result(value: Any) -> RewardResult:
    """Turn what a reward function returned into a result.

    A number is the score, and the response is right when it is over 0. A dictionary has `score` and may
    have `acc`, which then says whether the response is right; its other numbers become extra figures,
    anything else is for the function's own use.
    """
    if not isinstance(value, Mapping):
        score = _number(value, "the score")
        return RewardResult(score=score, correct=score > 0)
    if "score" not in value:
        raise ValueError(
            f"the reward function returned a dictionary without 'score': {sorted(map(str, value))}"
        )
    score = _number(value["score"], "score")
    correct = _number(value["acc"], "acc") > 0 if "acc" in value else score > 0
    extra = {
        str(name): _number(entry, str(name))
        for name, entry in value.items()
        if name not in ("score", "acc") and _is_numeric(entry)
    }
    return RewardResult(score=score, correct=correct, extra=extra)


def _is_numeric(value: Any) -> bool:
    return hasattr(value, "__float__")  # also numpy and torch scalars, without importing either


def _number(value: Any, name: str) -> float:
    if not _is_numeric(value):
        raise TypeError(f"the reward function returned {name} as {type(value).__name__}, expected a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"the reward function returned {name} = {number}, expected a finite number")
    return number


@dataclass(frozen=True)
class FunctionTask:
    """One call of a user's function, for a worker process."""

    function: FunctionSource
    request: RewardRequest
    kwargs: Mapping[str, Any]

    def run(self) -> RewardResult:
        """Call the function; it may do anything."""
        function = self.function.load()
        return to_result(
            function(
                data_source=self.request.data_source,
                solution_str=self.request.response,
                ground_truth=self.request.ground_truth,
                extra_info=self.request.extra_info,
                **self.kwargs,
            )
        )
