"""What a person sees while a grid runs: a live table on a terminal, a line per event elsewhere."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from archer.ablation.planning import PlannedCase
from archer.ablation.state import AblationFolder, CaseState
from archer.tracking.console import duration

STYLES = {"done": "green", "failed": "bold red", "running": "cyan", "stopped": "yellow", "pending": "dim"}
TAIL_BYTES = 64 * 1024
REFRESH_S = 1.0
BAR, ROOM_FOR_A_BAR = 12, 100  # columns; names of cases come first


class Display:
    """Shows the cases of a grid."""

    def __init__(self, console: Console, folder: AblationFolder, cases: Sequence[PlannedCase]) -> None:
        self.console, self.folder, self.cases = console, folder, tuple(cases)
        # No refreshing thread: a process that forks while a thread prints may hang.
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._drawn_at = -REFRESH_S
        self._bar = BAR if console.width >= ROOM_FOR_A_BAR else 0

    def __enter__(self) -> "Display":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.update(self.table({}), refresh=True)
            self._live.stop()

    def update(self, seconds: dict[str, float]) -> None:
        """Show where the running cases are; `seconds` since each began."""
        if self._live is None:
            return
        now = self.console.get_time()
        if now - self._drawn_at >= REFRESH_S:
            self._drawn_at = now
            self._live.update(self.table(seconds), refresh=True)

    def say(
        self,
        name: str,
        event: str,
        *,
        seconds: float | None = None,
        offloaded: bool = False,
        note: str = "",
    ) -> None:
        """Away from a terminal: one line."""
        self._drawn_at = -REFRESH_S
        if self._live is not None:
            return
        took = "" if seconds is None else f" after {duration(seconds)}"
        how = " with factors offloaded to the CPU" if offloaded else ""
        tail = f": {note}" if note else ""
        self.console.print(f"{name}  {event}{took}{how}{tail}", highlight=False, markup=False, soft_wrap=True)

    def table(self, seconds: dict[str, float]) -> Group:
        """All cases; of a grid longer than the screen those that are under way or broken."""
        states = {case.name: self.folder.case(case.name).read() for case in self.cases}
        shown = self.cases
        if len(shown) > self.console.height - 5:
            shown = tuple(c for c in shown if states[c.name].status not in ("pending", "done"))
        table = Table(box=None, padding=(0, 2, 0, 0))
        for column in ("case", "state", "steps", "s/step", "time", ""):
            table.add_column(
                column, justify="right" if column in ("s/step", "time") else "left", no_wrap=True
            )
        for case in shown:
            table.add_row(*self._row(case, states[case.name], seconds.get(case.name)))
        notes = [
            Text(f"{case.name}: {note}", style="dim")
            for case in shown
            if (note := note_of(states[case.name]))
        ]
        counts = [(s, sum(state.status == s for state in states.values())) for s in STYLES]
        line = Text("  ").join(Text(f"{n} {status}", style=STYLES[status]) for status, n in counts if n)
        return Group(table, *notes, line)

    def _row(self, case: PlannedCase, state: CaseState, seconds: float | None) -> list[RenderableType]:
        line = latest_metrics(self.folder.case(case.name).run(state.offloaded) / "metrics.jsonl")
        step = int(line.get("step", 0))
        total = case.total_steps
        pace = line.get("timing_s/step")
        last = state.attempts[-1] if state.attempts else None
        running = total and state.status == "running"
        if seconds is None and last is not None:
            seconds = last.seconds
        return [
            case.name,
            Text(state.status, style=STYLES[state.status]),
            f"{step}/{total or '?'}",
            "" if pace is None else f"{pace:.2f}",
            "" if not seconds else duration(seconds),
            ProgressBar(total=total, completed=step, width=self._bar) if self._bar and running else "",
        ]


def note_of(state: CaseState) -> str:
    """What is special about a case, in a few words."""
    if not state.attempts:
        return ""
    last = state.attempts[-1]
    notes = ["factors offloaded after it ran out of memory"] if last.offloaded else []
    if state.status == "failed":
        notes.append(last.out_of_memory or (last.last_lines[-1][:80] if last.last_lines else ""))
    return "; ".join(note for note in notes if note)


def latest_metrics(path: Path) -> dict[str, float]:
    """The last whole line of a metrics file that may be growing; empty where there is none."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        lines = file.read().split(b"\n")[:-1]
    return json.loads(lines[-1]) if lines and lines[-1].startswith(b"{") else {}
