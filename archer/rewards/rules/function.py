"""The rule of a user's function, called as verl calls it.

    def compute_score(data_source, solution_str, ground_truth, extra_info, **kwargs):
        return 1.0                                     # or {"score": 1.0, "acc": True, "format": 0.5}

Beside it, in the same file or as attributes of the function, may stand

    def check_ground_truth(ground_truth): ...   # returns None, or what is wrong with it (or raises)
    def extract_answer(response): ...           # the final answer or None: majority@n counts these
    def same_answer(answer, other): ...         # whether two are the same, if not by being the same text
"""

import importlib
import inspect
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from archer.errors import ArcherError
from archer.plugins import load_function
from archer.rewards.config import RewardConfig
from archer.rewards.rules import RULES, RewardRequest, RewardResult, Rule, Task, known_sources

RewardFunction = Callable[..., Any]
_Function = TypeVar("_Function", bound=RewardFunction)
_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
_PATH_SETTING = "reward.custom_reward_function.path"
_CHECK, _EXTRACT, _SAME = "check_ground_truth", "extract_answer", "same_answer"
_COMPANIONS = {_CHECK: ("ground_truth",), _EXTRACT: ("response",), _SAME: ("answer", "other")}

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FunctionSource:
    """The function `name` of an importable module, or in a Python file; imported once in a process."""

    home: str
    name: str
    is_file: bool = False

    def load(self) -> RewardFunction:
        """Import the module or file and return the function."""
        if self.is_file:
            return load_function(self.home, self.name, _PATH_SETTING)
        return getattr(importlib.import_module(self.home), self.name)

    def beside(self, name: str) -> Any:
        """Return what else stands there under a name, or None."""
        try:
            return FunctionSource(self.home, name, self.is_file).load()
        except (ArcherError, AttributeError):
            return None

    def __str__(self) -> str:
        return f"{self.name} in {self.home}" if self.is_file else f"{self.home}.{self.name}"


class FunctionRule(Rule):
    """A user's function, called in worker processes. What is wrong with it is found when the rule is made."""

    def __init__(self, config: RewardConfig, source: FunctionSource, kwargs: Mapping[str, Any]) -> None:
        super().__init__(config)
        check_function(source.load(), str(source), kwargs)
        self.preparation: tuple[Callable[[], object], ...] = (source.load,)
        self._source, self._kwargs = source, kwargs
        self._check = find_companion(source, _CHECK)
        self._extract = find_companion(source, _EXTRACT)
        self._compares = find_companion(source, _SAME) is not None
        self.has_answers = self._extract is not None

    def check(self, ground_truth: Any) -> None:
        """Ask the user's `check_ground_truth`, if there is one."""
        if self._check is None:
            return
        try:
            problem = self._check(ground_truth)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is False or (isinstance(problem, str) and problem):
            raise ArcherError(
                f"The ground truth {ground_truth!r:.200} is refused by {_CHECK} beside {self._source}: "
                f"{problem}. Correct reward_model.ground_truth in the data."
            )

    def judge(self, request: RewardRequest) -> RewardResult | Task:
        """Leave the call to a worker."""
        return FunctionTask(self._source, request, self._kwargs)

    def answer(self, response: str) -> str | None:
        """Ask the user's `extract_answer`; a response that it cannot take has no answer."""
        if self._extract is None:
            return None
        try:
            answer = self._extract(response)
        except Exception as error:
            _logger.warning("%s beside %s raised %s: %s", _EXTRACT, self._source, type(error).__name__, error)
            return None
        return None if answer is None else str(answer)

    def same(self, answer: str, other: str) -> RewardResult | Task:
        """Compare as strings, and leave what differs to the user's `same_answer`, if there is one."""
        if answer != other and self._compares:
            return SameAnswerTask(self._source, answer, other)
        return RewardResult.of_verdict(answer == other)


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
            f"reward.custom_kwargs may not contain {', '.join(clashing)}: every call gives these already."
        )
    try:
        inspect.signature(function).bind(**dict.fromkeys(_ARGUMENTS), **kwargs)
    except TypeError as error:
        wanted = ", ".join([*_ARGUMENTS, *kwargs])
        raise ArcherError(
            f"The reward function {where} has the signature {inspect.signature(function)}, but is called "
            f"with the keyword arguments {wanted}: {error}. Add what is missing, or **kwargs."
        ) from error


def find_companion(source: FunctionSource, name: str) -> Callable[..., Any] | None:
    """Return what the user gave beside the reward function under one of the three names, or None.

    Something of that name in the file that cannot be called so is the user's own business, and left alone;
    an attribute of the function is meant, and must fit.
    """
    parameters = _COMPANIONS[name]
    attribute = getattr(source.load(), name, None)
    found = source.beside(name) if attribute is None else attribute
    if found is None or _can_be_called(found, len(parameters)):
        return found
    call = f"{name}({', '.join(parameters)})"
    if attribute is not None:
        raise ArcherError(f"{name} of the reward function {source} cannot be called as {call}.")
    _logger.warning("%s beside %s cannot be called as %s, so it is not used.", name, source, call)
    return None


def _can_be_called(function: Any, arguments: int) -> bool:
    if not callable(function) or inspect.iscoroutinefunction(function):
        return False
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError:
        return False
    except ValueError:  # a builtin that does not tell its parameters
        pass
    return True


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
    repeatable: ClassVar[bool] = False  # it may draw random numbers, or count its calls

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


@dataclass(frozen=True)
class SameAnswerTask:
    """One call of a user's `same_answer`, for a worker process."""

    function: FunctionSource
    answer: str
    other: str
    repeatable: ClassVar[bool] = True

    def run(self) -> RewardResult:
        """Compare; it may do anything."""
        same = find_companion(self.function, _SAME)
        return RewardResult.of_verdict(same is not None and bool(same(self.answer, self.other)))


@dataclass(frozen=True)
class RegisteredFunction:
    """Makes the rule of a function that was registered for a data source."""

    source: FunctionSource

    def __call__(self, config: RewardConfig) -> FunctionRule:
        """Return the rule."""
        return FunctionRule(config, self.source, {})


def register_reward(name: str) -> Callable[[_Function], _Function]:
    """Register a function, called as a custom reward function is, for a data source.

    A name that ends in `*` stands for all data sources that begin so. The function must be at the top level
    of an importable module, because worker processes import it from there.
    """

    def register(function: _Function) -> _Function:
        source = FunctionSource(function.__module__, function.__qualname__)
        if source.home == "__main__" or not source.name.isidentifier():
            raise ArcherError(
                f"The reward function {source} for {name!r} cannot be imported by worker processes. "
                "Define it with def at the top level of a separate module, or give its file as "
                f"{_PATH_SETTING}."
            )
        if "*" in name[:-1] or not name:
            raise ArcherError(f"{name!r} is no data source: give a full name, or a prefix with * at its end.")
        maker, known = RegisteredFunction(source), known_sources()
        if known.get(name, maker) != maker:
            raise ArcherError(
                f"{name!r} already has a reward ({known[name]}); register yours under another name."
            )
        check_function(function, str(source), {})
        if name not in known:
            RULES.register(f"function for {name}", sources=(name,))(maker)
        return function

    return register
