"""What goes into a reward and what comes out of it."""

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class RewardRequest:
    """One response to be judged, in verl's terms."""

    data_source: str
    """Names the rule that judges the response, for example `openai/gsm8k`."""
    response: str
    """The response as decoded text, without the prompt."""
    ground_truth: Any
    """A string, a number or a list of accepted alternatives; for a custom function, anything."""
    extra_info: dict[str, Any] = field(default_factory=dict)
    """Whatever else the data row carries; handed to custom functions untouched."""


@dataclass(frozen=True)
class RewardResult:
    """The judgement of one response."""

    score: float
    """The raw reward, before any shaping. Always finite."""
    correct: bool
    """Whether the response is right: what accuracy and group filtering count, whatever the score's scale."""
    extra: dict[str, float] = field(default_factory=dict)
    """Further figures of the rule or custom function, by name."""
    failure: str | None = None
    """None, "timeout", or "crash: ..." with what happened. A failed response scores 0."""
    detail: str | None = None
    """What was wrong with the response, in a line for the eye, where the rule can tell."""

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

    def run(self) -> RewardResult:
        """Judge; may loop for ever, raise or kill its process."""
        ...
