"""How a user's function is called, as verl or TRL would, and what becomes of what it returns.

once for each response, in verl's terms; `prompt` and `messages` are given to those who take them:

    def compute_score(data_source, solution_str, ground_truth, extra_info, prompt, messages, **kwargs):
        return 1.0       # or {"score": 1.0, "acc": True, "format": 0.5, "why": "text"}, or None: no opinion

once for all responses (`batched`), with lists, in verl's terms or in TRL's:

    def compute_score(data_sources, solution_strs, ground_truths, extra_infos, **kwargs): ...
    def reward(prompts, completions, ground_truth, **columns): ...

Any of them may be `async def`.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from archer.errors import ArcherError
from archer.plugins import load_function
from archer.rewards.rules import NO_OPINION, RewardRequest, RewardResult

RewardFunction = Callable[..., Any]
PATH_SETTING = "reward.custom_reward_function.path"
REQUIRED = ("data_source", "solution_str", "ground_truth", "extra_info")
OPTIONAL = ("prompt", "messages")
TEXTS = ("completions", "solution_strs")  # of a function that is called once for all; it takes one of these


@dataclass(frozen=True)
class FunctionSource:
    """The function `name` of an importable module, or in a Python file; imported once in a process."""

    home: str
    name: str
    is_file: bool = False
    key: str = PATH_SETTING  # the setting that an error points at

    def load(self) -> RewardFunction:
        """Import the module or file and return the function."""
        if self.is_file:
            return load_function(self.home, self.name, self.key)
        return getattr(importlib.import_module(self.home), self.name)

    def beside(self, name: str) -> Any:
        """Return what else stands there under a name, or None."""
        try:
            return replace(self, name=name).load()
        except (ArcherError, AttributeError):
            return None

    def __str__(self) -> str:
        return f"{self.name} in {self.home}" if self.is_file else f"{self.home}.{self.name}"


def is_async(function: Any) -> bool:
    """Tell whether a function, or an object that is called like one, is `async def`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - its kind is asked, not whether it is there
    )


def check_function(function: Any, where: str, kwargs: Mapping[str, Any], batched: bool = False) -> None:
    """Raise an ArcherError unless the function can be called as rewards call it."""
    if not callable(function):
        raise ArcherError(f"The reward function {where} is a {type(function).__name__}, not a function.")
    given = [*columns_of([]), *TEXTS] if batched else REQUIRED
    clashing = [name for name in kwargs if name in given]
    if clashing:
        raise ArcherError(
            f"reward.custom_kwargs may not contain {', '.join(clashing)}: every call gives these already."
        )
    if batched:
        _check_batched(function, where)
        return
    signature = inspect.signature(function)
    try:
        offered = dict.fromkeys((*REQUIRED, *OPTIONAL))
        signature.bind(**{**_accepted(function, offered, REQUIRED), **kwargs})
    except TypeError as error:
        lists = any(name in signature.parameters for name in TEXTS)
        hint = "It takes lists: set batched=true for it." if lists else "Add what is missing, or **kwargs."
        raise ArcherError(
            f"The reward function {where} has the signature {signature}, but is called with the keyword "
            f"arguments {', '.join([*REQUIRED, *kwargs])}: {error}. {hint}"
        ) from error


def _check_batched(function: Any, where: str) -> None:
    if not _accepted(function, dict.fromkeys(TEXTS)):
        raise ArcherError(
            f"The reward function {where} has the signature {inspect.signature(function)}, but with "
            "batched=true it is called with lists: take completions (as in TRL) or solution_strs (as in "
            f"verl), and what else is wanted of {', '.join(columns_of([]))}."
        )


def _accepted(function: Any, offered: Mapping[str, Any], always: Sequence[str] = ()) -> dict[str, Any]:
    """Those of the offered arguments that a function takes by name, or all if it takes any."""
    parameters = inspect.signature(function).parameters.values()
    named = {each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    return {name: value for name, value in offered.items() if takes_any or name in named or name in always}


def columns_of(requests: Sequence[RewardRequest]) -> dict[str, list[Any]]:
    """The lists that a function for all responses may take, but for the columns of extra_info.

    As in TRL, prompts and completions of chats are lists of messages, others are texts.
    """
    columns: dict[str, list[Any]] = {
        "prompts": [list(each.messages) or each.prompt for each in requests],
        "completions": [
            [{"role": "assistant", "content": each.response}] if each.messages else each.response
            for each in requests
        ],
        "solution_strs": [each.response for each in requests],
        "messages": [list(each.messages) for each in requests],
    }
    for name in ("data_source", "ground_truth", "extra_info"):
        columns[name] = columns[f"{name}s"] = [getattr(each, name) for each in requests]
    return columns


@dataclass(frozen=True)
class FunctionTask:
    """One call of a user's function, for one response, for a worker process."""

    function: FunctionSource
    request: RewardRequest
    kwargs: Mapping[str, Any]
    repeatable: ClassVar[bool] = False  # it may draw random numbers, or count its calls

    def run(self) -> Any:
        """Call the function; it may do anything."""
        function, request = self.function.load(), self.request
        offered = {
            "data_source": request.data_source,
            "solution_str": request.response,
            "ground_truth": request.ground_truth,
            "extra_info": request.extra_info,
            "prompt": request.prompt,
            "messages": [dict(message) for message in request.messages],
        }
        value = function(**{**_accepted(function, offered, REQUIRED), **self.kwargs})
        return _after(value, to_result)


@dataclass(frozen=True)
class BatchTask:
    """One call of a user's function, for several responses, for a worker process."""

    function: FunctionSource
    requests: tuple[RewardRequest, ...]
    kwargs: Mapping[str, Any]
    repeatable: ClassVar[bool] = False

    @property
    def size(self) -> int:
        """How many responses it judges."""
        return len(self.requests)

    def run(self) -> Any:
        """Call the function; it may do anything."""
        function = self.function.load()
        infos = [each.extra_info for each in self.requests]
        names = [name for name in dict.fromkeys(key for info in infos for key in info) if name.isidentifier()]
        offered = {name: [info.get(name) for info in infos] for name in names} | columns_of(self.requests)
        arguments = {**_accepted(function, offered), **self.kwargs}
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            raise TypeError(f"{error}; the data has the columns {', '.join(offered)}") from None
        return _after(function(**arguments), self._results)

    def _results(self, values: Any) -> list[RewardResult]:
        if not isinstance(values, list | tuple) and not hasattr(values, "__array__"):  # also torch's
            raise TypeError(
                f"the reward function returned a {type(values).__name__}, expected a list of {self.size} "
                "scores"
            )
        if len(values) != self.size:
            raise ValueError(
                f"the reward function returned {len(values)} scores for {self.size} responses: "
                "expected one for each, None where it has no opinion"
            )
        return [_result_or_failure(value) for value in values]


LARGEST = 1e15
"""Most that a score may be: its square, which deviations need, is still far from float32's limit."""


EXTRACTED = ("extracted_answer", "pred")
"""Names under which a function's dictionary may tell the answer that it found in the response."""


def _after(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Convert what a function returned: at once, or when it has been awaited."""
    if not inspect.isawaitable(value):
        return convert(value)

    async def convert_later() -> Any:
        return convert(await value)

    return convert_later()


def _result_or_failure(value: Any) -> RewardResult:
    try:
        return to_result(value)
    except (TypeError, ValueError) as error:
        return RewardResult.of_failure(f"crash: {type(error).__name__}: {error}")


def to_result(value: Any) -> RewardResult:
    """Turn what a reward function returned for a response into a result.

    A number is the score, and the response is right when it is over 0. None is no opinion. A dictionary has
    `score` and may have `acc`, which then says whether the response is right; its other numbers and texts
    are kept, anything else is for the function's own use. A trace shows the text `extracted_answer`, or as in
    verl `pred`, as the response's answer, and `reason` as why it was judged so.
    """
    if value is None:
        return RewardResult.of_failure(NO_OPINION)
    if not isinstance(value, Mapping):
        score = _number(value, "the score", LARGEST)
        return RewardResult(score=score, correct=score > 0)
    if "score" not in value:
        raise ValueError(
            f"the reward function returned a dictionary without 'score': {sorted(map(str, value))}"
        )
    extra = {
        str(name): entry if isinstance(entry, str) else _number(entry, str(name))
        for name, entry in value.items()
        if name not in ("score", "acc") and (isinstance(entry, str) or _is_numeric(entry))
    }
    if value["score"] is None:
        return replace(RewardResult.of_failure(NO_OPINION), extra=extra)
    score, states_verdict = _number(value["score"], "score", LARGEST), value.get("acc") is not None
    correct = _number(value["acc"], "acc") > 0 if states_verdict else score > 0
    return RewardResult(
        score=score,
        correct=correct,
        extra=extra,
        states_verdict=states_verdict,
        extracted=next((str(value[name]) for name in EXTRACTED if isinstance(value.get(name), str)), None),
        reason=value["reason"] if isinstance(value.get("reason"), str) else None,
    )


def _is_numeric(value: Any) -> bool:
    return hasattr(value, "__float__")  # also numpy and torch scalars, without importing either


def _number(value: Any, name: str, largest: float = sys.float_info.max) -> float:
    if not _is_numeric(value):
        raise TypeError(f"the reward function returned {name} as {type(value).__name__}, expected a number")
    number = float(value)
    if not abs(number) <= largest:
        within = "" if largest == sys.float_info.max else f" within ±{largest:g}"
        raise ValueError(f"the reward function returned {name} = {number}, expected a finite number{within}")
    return number
