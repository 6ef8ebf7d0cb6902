"""Responses that a person reads: those of a validation, and the best and worst of a training step.

A kind of sample knows its own table, so that every tracker shows every kind.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from rich.panel import Panel
from rich.text import Text

from archer.errors import visible

Cell = str | float | int | None


class ShownResponse(Protocol):
    """One response as a row of its table, a panel of the console and a text in Markdown."""

    table: ClassVar[str]  # the table's name in a tracker
    columns: ClassVar[tuple[str, ...]]

    def row(self) -> list[Cell]:
        """The values of `columns`."""
        ...

    def panel(self, step: int) -> Panel:
        """What the console shows; control characters of the texts are made visible."""
        ...

    def markdown(self) -> str:
        """The same as Markdown, texts in blocks that nothing in them can end."""
        ...


@dataclass(frozen=True)
class ValidationSample:
    """A validation prompt, a response to it, and its score; None where it could not be judged."""

    table: ClassVar[str] = "val/generations"
    columns: ClassVar[tuple[str, ...]] = ("prompt", "response", "score")

    prompt: str
    response: str
    score: float | None

    def row(self) -> list[Cell]:
        """The values of `columns`."""
        return [self.prompt, self.response, self.score]

    def panel(self, step: int) -> Panel:
        """What the console shows; control characters of the texts are made visible."""
        return _panel((self.prompt, self.response), f"validation at step {step}, {self._said()}")

    def markdown(self) -> str:
        """The same as Markdown, texts in blocks that nothing in them can end."""
        return _markdown(self._said(), (self.prompt, self.response))

    def _said(self) -> str:
        return "unjudged" if self.score is None else f"score {self.score:g}"


@dataclass(frozen=True)
class StepResponse:
    """One of the best or worst responses that a step trained on, with what is known of its verdict."""

    table: ClassVar[str] = "train/responses"
    columns: ClassVar[tuple[str, ...]] = (
        "step",
        "rank",
        "prompt",
        "response",
        "reward",
        "verdict",
        "length",
        "mean_entropy",
        "ground_truth",
        "reason",
    )

    step: int
    rank: Literal["best", "worst"]
    prompt: str
    response: str
    reward: float  # as trained on, shaping included
    verdict: str  # accepted, rejected
    length: int  # tokens
    mean_entropy: float | None  # nats; None where it was not computed
    ground_truth: str | None = None  # None: not known
    reason: str | None = None  # why the verdict is what it is, where the reward says

    def row(self) -> list[Cell]:
        """The values of `columns`."""
        return [getattr(self, name) for name in self.columns]

    def panel(self, step: int) -> Panel:
        """What the console shows; control characters of the texts are made visible."""
        return _panel((self.prompt, self.response, *self._why()), visible(f"step {step}: {self._said()}"))

    def markdown(self) -> str:
        """The same as Markdown, texts in blocks that nothing in them can end."""
        return _markdown(self._said(), (self.prompt, self.response, *self._why()))

    def _said(self) -> str:
        parts = [f"{self.rank} of the step", f"reward {self.reward:g}", self.verdict, f"{self.length} tokens"]
        if self.mean_entropy is not None:
            parts.append(f"mean entropy {self.mean_entropy:.3f}")
        return ", ".join(part for part in parts if part)

    def _why(self) -> list[str]:
        told = {"ground truth": self.ground_truth, "reason": self.reason}
        lines = [f"{name}: {text}" for name, text in told.items() if text]
        return ["\n".join(lines)] if lines else []


def _panel(texts: tuple[str, ...], title: str) -> Panel:
    joined = "\n---\n".join(text.strip() for text in texts)
    shown = "\n".join(visible(line) for line in joined.splitlines())
    return Panel(Text(shown), title=Text(title), title_align="left")


def _markdown(title: str, texts: tuple[str, ...]) -> str:
    blocks = ("    " + "\n    ".join(text.splitlines()) for text in texts)
    return f"**{title}**\n\n" + "\n\n---\n\n".join(blocks)
