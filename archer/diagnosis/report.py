"""What is wrong with a run, for people and for programs."""

from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from archer.diagnosis.diagnosis import Diagnosis
from archer.diagnosis.evidence import RunFinding
from archer.diagnosis.rules import RULES
from archer.errors import visible

STYLES = {"critical": "bold red", "warning": "bold yellow"}
ADDRESS = "http://127.0.0.1:7862/"


@dataclass(frozen=True)
class DiagnosisReport:
    """The findings of a run and what could not be looked at."""

    run: str
    folder: str
    steps: list[int]
    traced: int
    findings: list[RunFinding]
    not_checked: dict[str, str]
    notes: list[str]

    @classmethod
    def of(
        cls, diagnosis: Diagnosis, run: str, folder: str, steps: list[int], notes: list[str]
    ) -> "DiagnosisReport":
        """Close a diagnosis."""
        traced = len(diagnosis.history.traces)
        return cls(
            run,
            folder,
            steps,
            traced,
            diagnosis.findings,
            diagnosis.not_checked(),
            [*diagnosis.gaps(), *notes],
        )

    @property
    def checked(self) -> int:
        """Rules that could look at the run."""
        return len(RULES) - len(self.not_checked)

    def to_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {
            "run": self.run,
            "folder": self.folder,
            "steps": {"count": len(self.steps), "first": self.steps[0], "last": self.steps[-1]},
            "traced_steps": self.traced,
            "findings": [self._finding(found) for found in self.findings],
            "checked": [rule.name for rule in RULES if rule.name not in self.not_checked],
            "not_checked": self.not_checked,
            "notes": self.notes,
        }

    def _finding(self, found: RunFinding) -> dict[str, Any]:
        return {
            "name": found.name,
            "severity": found.severity,
            "since": found.since,
            "found_at": found.step,
            "until": found.until,
            "what": found.what,
            "evidence": dict(found.figures),
            "tokens": list(found.tokens),
            "advice": found.advice,
            "link": None if found.place is None else found.place.link(self.run),
        }

    def print(self, console: Console) -> None:
        """The table, what was not checked, and what to do next."""
        steps = (
            f"steps {self.steps[0]} to {self.steps[-1]}" if len(self.steps) > 1 else f"step {self.steps[0]}"
        )
        head = f"{visible(self.run)}: {steps}, {self.traced} of {len(self.steps)} traced"
        console.print(Text(head, style="bold"), soft_wrap=True)
        for number, found in enumerate(self.findings, 1):
            console.print()
            console.print(self._rows(number, found))
        console.print()
        of = f"{self.checked} of {len(RULES)} rules could look"
        if not self.findings:
            console.print(Text(f"Nothing found; {of}.", style="green"), soft_wrap=True)
        elif any(found.place is not None for found in self.findings):
            view = f"archer view {visible(self.folder)}"
            console.print(Text(f"The links open in the viewer: {view}   ({of})"), soft_wrap=True)
        else:
            console.print(Text(f"{of}."), soft_wrap=True)
        for name, reason in self.not_checked.items():
            console.print(Text(f"not checked: {name}: {reason}", style="dim"), soft_wrap=True)
        for note in self.notes:
            console.print(Text(f"note: {visible(note)}", style="dim"), soft_wrap=True)

    def _rows(self, number: int, found: RunFinding) -> RenderableType:
        when = f"since step {found.since}, found at step {found.step}"
        if found.until < self.steps[-1]:
            when += f", last seen at step {found.until}"
        title = Text.assemble(
            f"{number}. ",
            (f"{found.severity} ", STYLES[found.severity]),
            (found.name, "bold"),
            f"  {when}",
        )
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        table.add_row("what", Text(visible(found.what)))
        table.add_row(
            "evidence", Text(", ".join(f"{name} {value:.4g}" for name, value in found.figures.items()))
        )
        table.add_row("try", Text(found.advice))
        if found.place is not None:
            table.add_row("look", Text(visible(ADDRESS + found.place.link(self.run)), style="cyan"))
        return Group(title, Padding(table, (0, 0, 0, 3)))
