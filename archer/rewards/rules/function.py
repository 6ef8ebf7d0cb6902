"""The rule of a user's function. How the function is called stands in `call.py`.

Beside the function, in the same file or as attributes of it, may stand

    def check_ground_truth(ground_truth): ...   # returns None, or what is wrong with it (or raises)
    def extract_answer(response): ...           # the final answer or None: majority@n counts these
    def same_answer(answer, other): ...         # whether two are the same, if not by being the same text
"""

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from archer.errors import ArcherError
from archer.rewards.config import CustomRewardConfig, RewardConfig
from archer.rewards.rules import RULES, RewardRequest, RewardResult, Rule, Task, Workers, known_sources
from archer.rewards.rules.call import (
    PATH_SETTING,
    FunctionSource,
    FunctionTask,
    RewardFunction,
    check_function,
    is_async,
)

_Function = TypeVar("_Function", bound=RewardFunction)
_CHECK, _EXTRACT, _SAME = "check_ground_truth", "extract_answer", "same_answer"
_COMPANIONS = {_CHECK: ("ground_truth",), _EXTRACT: ("response",), _SAME: ("answer", "other")}

_logger = logging.getLogger(__name__)


class FunctionRule(Rule):
    """A user's function, called in worker processes. What is wrong with it is found when the rule is made."""

    def __init__(
        self,
        config: RewardConfig,
        source: FunctionSource,
        kwargs: Mapping[str, Any],
        batched: bool = False,
        max_concurrency: int = CustomRewardConfig.max_concurrency,
    ) -> None:
        super().__init__(config)
        function = source.load()
        check_function(function, str(source), kwargs, batched)
        self.preparation: tuple[Callable[[], object], ...] = (source.load,)
        self.source, self.kwargs, self.batched = source, kwargs, batched
        self._concurrency = max_concurrency if is_async(function) and not batched else 0
        self._check = find_companion(source, _CHECK)
        self._extract = find_companion(source, _EXTRACT)
        self._compares = find_companion(source, _SAME) is not None
        self.has_answers = self._extract is not None

    @property
    def workers(self) -> Workers:
        """Processes with event loops for `async def`, of its own so that the limit is its own."""
        if not self._concurrency:
            return super().workers
        return replace(super().workers, kind=f"async {self.source}", concurrency=self._concurrency)

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
                f"The ground truth {ground_truth!r:.200} is refused by {_CHECK} beside {self.source}: "
                f"{problem}. Correct reward_model.ground_truth in the data."
            )

    def judge(self, request: RewardRequest) -> RewardResult | Task:
        """Leave the call to a worker; the scorer makes one call of many where the function takes lists."""
        return FunctionTask(self.source, request, self.kwargs)

    def answer(self, response: str) -> str | None:
        """Ask the user's `extract_answer`; a response that it cannot take has no answer."""
        if self._extract is None:
            return None
        try:
            answer = self._extract(response)
        except Exception as error:
            _logger.warning("%s beside %s raised %s: %s", _EXTRACT, self.source, type(error).__name__, error)
            return None
        return None if answer is None else str(answer)

    def same(self, answer: str, other: str) -> RewardResult | Task:
        """Compare as strings, and leave what differs to the user's `same_answer`, if there is one."""
        if answer != other and self._compares:
            return SameAnswerTask(self.source, answer, other)
        return RewardResult.of_verdict(answer == other)


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
    batched: bool
    max_concurrency: int

    def __call__(self, config: RewardConfig) -> FunctionRule:
        """Return the rule."""
        return FunctionRule(config, self.source, {}, self.batched, self.max_concurrency)


def register_reward(
    name: str, batched: bool = False, max_concurrency: int = CustomRewardConfig.max_concurrency
) -> Callable[[_Function], _Function]:
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
                f"{PATH_SETTING}."
            )
        if "*" in name[:-1] or not name:
            raise ArcherError(f"{name!r} is no data source: give a full name, or a prefix with * at its end.")
        maker, known = RegisteredFunction(source, batched, max_concurrency), known_sources()
        if known.get(name, maker) != maker:
            raise ArcherError(
                f"{name!r} already has a reward ({known[name]}); register yours under another name."
            )
        check_function(function, str(source), {}, batched)
        if name not in known:
            RULES.register(f"function for {name}", sources=(name,))(maker)
        return function

    return register
