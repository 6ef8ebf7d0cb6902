"""Reward rules: how the responses of a data source are judged.

A rule is a class in a file of this folder. It registers itself with the data sources that it judges, by name
or by a prefix that ends in `*`:

    @RULES.register("math", sources=("openai/gsm8k", "aime*"))
    class MathRule(Rule): ...

A user's function becomes a rule too, in `function.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Protocol

from archer.errors import ArcherError
from archer.plugins import PluginTable
from archer.rewards.config import RewardConfig

NO_OPINION = "no reward function had an opinion"
"""The failure of a response for which every function returned None."""


@dataclass(frozen=True)
class RewardRequest:
    """One response to be judged, in verl's terms."""

    data_source: str  # names the rule that judges the response, for example `openai/gsm8k`
    response: str  # the response as decoded text, without the prompt
    ground_truth: Any  # a string, a number or a list of accepted ones; for a custom function, anything
    extra_info: dict[str, Any] = field(default_factory=dict)  # the rest of the data row, untouched
    prompt: str = ""  # as the model read it: chat template applied, special tokens included
    messages: tuple[dict[str, Any], ...] = ()  # the chat that the prompt was made of


@dataclass(frozen=True)
class RewardResult:
    """The judgement of one response."""

    score: float  # the raw reward, before any shaping; always finite
    correct: bool  # what accuracy and group filtering count, whatever the score's scale
    extra: Mapping[str, float | str] = field(default_factory=dict)  # further figures and texts, by name
    failure: str | None = None  # "timeout", or "crash: ...": not judged; score and verdict mean nothing
    detail: str | None = None  # what was wrong, in a line for the eye, where the rule can tell
    states_verdict: bool = False  # whether a function itself said what is right (`acc`)
    extracted: str | None = None  # the answer that was judged; None: none was found, or nothing is extracted
    reason: str | None = None  # why the verdict is what it is: "expected 18, found 24", "test 3 of 9 failed"

    @property
    def unjudged(self) -> bool:
        """Whether judging failed, so that the response has no reward: nothing is learnt from it."""
        return self.failure is not None

    @classmethod
    def of_verdict(cls, correct: bool) -> "RewardResult":
        """Return 1 for right and 0 for wrong."""
        return cls(score=1.0 if correct else 0.0, correct=correct)

    @classmethod
    def of_failure(cls, failure: str) -> "RewardResult":
        """Return a score of 0 that says why there is no judgement."""
        return cls(score=0.0, correct=False, failure=failure)


class Task(Protocol):
    """A judgement that needs a worker process. It travels there by pickle."""

    repeatable: ClassVar[bool]
    """Whether equal tasks have equal results, so that one of them is run for all; they are then hashable."""

    def run(self) -> Any:
        """Judge; may loop for ever, raise or kill its process.

        Returns the result, or something to be awaited that gives it. A task with a `size` judges so many
        responses together, has the time of all of them, and returns a list.
        """
        ...


@dataclass(frozen=True)
class Workers:
    """The worker processes that run a rule's tasks. Rules with equal ones share them."""

    kind: str
    timeout_s: float  # the most seconds that one task may take
    memory_limit_bytes: int | None  # the most private memory that a process may have
    concurrency: int = 0  # tasks that wait in event loops at the same time; 0: a process has one at a time


class Rule(ABC):
    """Judges the responses of a data source. One is made for each scorer, with its settings."""

    has_answers: bool = False
    """Whether responses have final answers that can be compared with each other: what majority@n counts."""
    preparation: tuple[Callable[[], object], ...] = ()
    """What a worker process calls before its first task, so that no task's time is spent on it."""

    def __init__(self, config: RewardConfig) -> None:
        self.config = config

    @property
    def workers(self) -> Workers:
        """The worker processes that its tasks need."""
        limit = self.config.memory_limit_gb
        return Workers("plain", self.config.timeout_s, None if limit is None else int(limit * 2**30))

    @abstractmethod
    def check(self, ground_truth: Any) -> None:
        """Raise an ArcherError if no response could be judged by this ground truth."""

    @abstractmethod
    def judge(self, request: RewardRequest) -> RewardResult | Task:
        """Return the result if it is certain at once, else the task that will give it."""

    def answer(self, response: str) -> str | None:
        """Return a response's final answer; None if it gives none."""
        return None

    def same(self, answer: str, other: str) -> RewardResult | Task:
        """Judge one final answer by another: right where they are the same."""
        return RewardResult.of_verdict(answer == other)


RULES = PluginTable[Callable[[RewardConfig], Rule]]("data_source", package=__name__)


def known_sources() -> dict[str, Callable[[RewardConfig], Rule]]:
    """Return what makes the rule of each data source, or pattern of data sources, that is known."""
    return {source: plugin.function for plugin in RULES for source in plugin.facts["sources"]}


def find_rule(data_source: str) -> Callable[[RewardConfig], Rule]:
    """Return what makes the rule of a data source: by its name, else by the longest pattern that fits."""
    known = known_sources()
    if data_source in known:
        return known[data_source]
    fitting = [name for name in known if name.endswith("*") and fnmatchcase(data_source, name)]
    if fitting:
        return known[max(fitting, key=len)]
    raise ArcherError(
        f"No reward is known for data_source {data_source!r}. Known: {', '.join(sorted(known))}. "
        "Use one of these in the data, or give your own function: reward.custom_reward_function.path=FILE.py "
        "reward.custom_reward_function.name=FUNCTION (from Python: archer.rewards.register_reward)."
    )
