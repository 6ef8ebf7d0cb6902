"""What a person sees while a run trains: a live panel on a terminal, one line per step elsewhere."""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

BARS = "▁▂▃▄▅▆▇█"
SHOWN = (
    ("reward", "critic/rewards/mean", "{:.3f}"),
    ("accuracy", "reward/accuracy", "{:.1%}"),
    ("entropy", "actor/entropy", "{:.3f}"),
    ("length", "response_length/mean", "{:.1f}"),
    ("tok/s", "perf/throughput", "{:,.0f}"),
)


class ConsoleProgress:
    """Shows step, reward, accuracy, entropy, response length, tokens/s, time left and the reward's course."""

    def __init__(self, console: Console, first_step: int, total_steps: int) -> None:
        self.console = console
        self.total = total_steps
        self._first = first_step
        self._started = time.monotonic()
        self._rewards: list[float] = []
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> "ConsoleProgress":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, step: int, metrics: dict[str, float]) -> None:
        """Show the metrics of a finished step."""
        if "critic/rewards/mean" in metrics:
            self._rewards.append(metrics["critic/rewards/mean"])
        if self._live is not None:
            self._live.update(self._panel(step, metrics), refresh=True)
        else:
            values = "  ".join(
                f"{label} {form.format(metrics[key])}" for label, key, form in _present(metrics)
            )
            self.console.print(
                f"step {step}/{self.total}  {values}  eta {duration(self._eta(step))}",
                highlight=False,
                soft_wrap=True,
            )

    def say(self, text: str) -> None:
        """Print a line above the panel."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def _panel(self, step: int, metrics: dict[str, float]) -> RenderableType:
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            Text(f"step {step}/{self.total}", style="bold"),
            ProgressBar(total=self.total, completed=step, width=40),
            Text(
                f"{duration(time.monotonic() - self._started)} gone, {duration(self._eta(step))} left",
                style="dim",
            ),
        )
        values = Table.grid(padding=(0, 3))
        values.add_row(
            *(
                Text.assemble((f"{label} ", "dim"), (form.format(metrics[key]), "bold"))
                for label, key, form in _present(metrics)
            )
        )
        course = Text.assemble(("reward ", "dim"), (sparkline(self._rewards, 60), "green"))
        return Group(bar, values, course)

    def _eta(self, step: int) -> float:
        done = max(1, step - self._first)
        return (time.monotonic() - self._started) / done * (self.total - step)


class SamplingOptions(Protocol):
    """What `sampled_how` reads of a section of settings."""

    @property
    def n(self) -> int:
        """Responses per prompt."""

    @property
    def do_sample(self) -> bool:
        """False: greedy."""

    @property
    def temperature(self) -> float:
        """Of the sampling."""

    @property
    def top_p(self) -> float:
        """1: all tokens."""

    @property
    def top_k(self) -> int:
        """-1: all tokens."""


def sampled_how(options: SamplingOptions) -> str:
    """Say how an accuracy was sampled, without which it means little: `4 samples a prompt, temperature 1`."""
    if not options.do_sample:
        return "greedy"
    said = [
        f"{options.n} sample{'' if options.n == 1 else 's'} a prompt",
        f"temperature {options.temperature:g}",
    ]
    if options.top_p < 1:
        said.append(f"top_p {options.top_p:g}")
    if options.top_k != -1:
        said.append(f"top_k {options.top_k}")
    return ", ".join(said)


def accuracy_text(accuracy: float, how: str) -> str:
    """`35.5% (greedy)`; figures of a checkpoint that did not say how they were sampled stand alone."""
    return f"{accuracy:.1%} ({how})" if how else f"{accuracy:.1%}"


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values as bars from the smallest to the largest, averaged into at most `width` columns."""
    if not values:
        return ""
    columns = min(width, len(values))
    edges = [round(i * len(values) / columns) for i in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if high == low:
        return BARS[0] * columns
    return "".join(BARS[round((value - low) / (high - low) * (len(BARS) - 1))] for value in means)


def duration(seconds: float) -> str:
    """Write seconds as 8s, 1m05s or 2h03m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def _present(metrics: dict[str, float]) -> list[tuple[str, str, str]]:
    return [item for item in SHOWN if item[1] in metrics]
