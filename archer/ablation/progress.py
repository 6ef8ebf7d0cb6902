"""What a person sees of a grid's cases: a live table on a terminal, a line per event elsewhere, a list."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from archer.ablation.folder import AblationFolder, tail
from archer.ablation.grid import PlannedCase, short
from archer.tracking.console import duration

STYLES = {"done": "green", "failed": "bold red", "running": "cyan", "stopped": "yellow", "pending": "dim"}
REFRESH_S = 1.0


class GridProgress:
    """Shows the cases of a grid while they run."""

    def __init__(self, console: Console, folder: AblationFolder, cases: Sequence[PlannedCase]) -> None:
        self.console, self.folder, self.cases = console, folder, tuple(cases)
        # No refreshing thread: a process that forks while a thread prints may hang.
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._drawn_at = -REFRESH_S

    def __enter__(self) -> "GridProgress":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.update(self.table({}), refresh=True)
            self._live.stop()

    def update(self, seconds: dict[str, float]) -> None:
        """Show where the running cases are; `seconds` since each began."""
        now = self.console.get_time()
        if self._live is not None and now - self._drawn_at >= REFRESH_S:
            self._drawn_at = now
            self._live.update(self.table(seconds), refresh=True)

    def say(self, event: str) -> None:
        """Away from a terminal: one line; on a terminal the table says it at once."""
        self._drawn_at = -REFRESH_S
        if self._live is None:
            self.console.out(event, highlight=False)

    def table(self, seconds: dict[str, float]) -> Group:
        """All cases; of a grid longer than the screen those that are under way or broken."""
        states = {case.name: self.folder.read(case.name) for case in self.cases}
        shown = self.cases
        if len(shown) > self.console.height - 5:
            shown = tuple(c for c in shown if states[c.name].status not in ("pending", "done"))
        table = Table(box=None, padding=(0, 2, 0, 0))
        for column in ("case", "state", "steps"):
            table.add_column(column, no_wrap=True)
        for column in ("s/step", "time"):
            table.add_column(column, justify="right", no_wrap=True)
        for case in shown:
            state = states[case.name]
            line = _latest_metrics(self.folder.run(case.name, state.offloaded) / "metrics.jsonl")
            took = seconds.get(case.name) or (state.attempts[-1].seconds if state.attempts else 0.0)
            table.add_row(
                case.name,
                Text(state.label, style=STYLES[state.status]),
                f"{int(line.get('step', 0))}/{case.config.trainer.total_training_steps or '?'}",
                f"{line['timing_s/step']:.2f}" if "timing_s/step" in line else "",
                duration(took) if took else "",
            )
        counts = [(s, sum(state.status == s for state in states.values())) for s in STYLES]
        totals = Text("  ").join(Text(f"{n} {s}", style=STYLES[s]) for s, n in counts if n)
        return Group(table, totals)


def list_cases(
    console: Console, folder: AblationFolder, cases: Sequence[PlannedCase], shared: Sequence[str]
) -> None:
    """Print the cases with what is known of them; nothing is written."""
    console.out(f"folder  {folder.path}", "every case has", sep="\n", highlight=False)
    for override in shared:
        console.out(f"  {override}", highlight=False)
    console.out("cases, each with its state and what it sets itself")
    longest = max(len(case.name) for case in cases)
    for case in cases:
        console.out(f"  {case.name:<{longest}}  {folder.read(case.name).status}", highlight=False)
        console.print(Padding(Text(" ".join(map(short, case.own)), style="dim"), (0, 0, 0, 6)))


def _latest_metrics(path: Path) -> dict[str, float]:
    """The last whole line of a metrics file that may be growing; empty where there is none."""
    lines = tail(path).split(b"\n")[:-1] if path.is_file() else []
    return json.loads(lines[-1]) if lines and lines[-1].startswith(b"{") else {}
