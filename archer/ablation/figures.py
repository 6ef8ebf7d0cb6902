"""What the drawings of a report show: cost, scores, agreement."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from archer.ablation.cost import Cost, Ratio
from archer.ablation.report import CaseReport, Report
from archer.ablation.statistics import QUANTILES
from archer.ablation.svg import Bar, Panel, Spread, SpreadPanel, matrix, rows

FIVE = tuple(QUANTILES.index(q) for q in (0.05, 0.25, 0.5, 0.75, 0.95))
LIMIT = 2.0


@dataclass(frozen=True)
class _Measure:
    """A figure of a cost, and its ratio to the baseline's."""

    title: str
    unit: str
    plain: Callable[[Cost], float]
    ratio: Callable[[Ratio], float]
    detail: Callable[[Cost], str]

    def panel(self, cases: Sequence[CaseReport], width: int) -> Panel:
        """Ratios to the baseline, or the plain figures where the grid has none."""
        found = []
        for case in cases:
            assert case.cost is not None
            value, text = self.plain(case.cost), f"{self.plain(case.cost):.2f} {self.unit}"
            if case.ratio is not None:
                value = self.ratio(case.ratio)
                text = f"{value:.2f} x"
            found.append(Bar(value, text, f"{case.label}: {self.detail(case.cost)}"))
        compared = all(case.ratio is not None for case in cases)
        return Panel(self.title, found, width, mark=1.0 if compared else None, mark_text="baseline")


STEP = _Measure(
    "time per step, fastest",
    "s",
    lambda cost: cost.fastest_step_s,
    lambda ratio: ratio.fastest_step,
    lambda cost: f"fastest {cost.fastest_step_s:.3f} s, median {cost.step_s:.3f} s",
)
UPDATE = _Measure(
    "update, fastest",
    "s",
    lambda cost: cost.fastest_update_s,
    lambda ratio: ratio.fastest_update,
    lambda cost: f"fastest {cost.fastest_update_s:.3f} s, median {cost.update_s:.3f} s",
)
CPU = _Measure(
    "CPU time of the case",
    "s",
    lambda cost: cost.cpu_s,
    lambda ratio: ratio.cpu,
    lambda cost: f"{cost.cpu_s:.1f} s, its start included",
)
MEMORY = _Measure(
    "peak memory",
    "GiB",
    lambda cost: cost.memory_gb,
    lambda ratio: ratio.memory,
    lambda cost: f"{cost.memory_gb:.3f} GiB",
)


def cost_figure(report: Report) -> str:
    """Time, influence's share of it, and memory of each case; clock times only where they mean something."""
    cases = report.done
    busy = report.conditions is not None and report.conditions.busy
    width = 250 if busy else 155
    shares = [
        Bar(case.cost.influence_share, f"{case.cost.influence_share:.0%}", f"{case.label}: timed inside")
        if case.cost is not None and case.scores is not None
        else Bar(None, "not traced", "")
        for case in cases
    ]
    largest = max([bar.value for bar in shares if bar.value is not None] + [0.5])
    share = Panel("influence in the update", shares, width, largest=largest)
    clock = [] if busy else [STEP.panel(cases, width), UPDATE.panel(cases, width)]
    panels = [*clock, share, CPU.panel(cases, width), MEMORY.panel(cases, width)]
    return rows([case.label for case in cases], panels, "Cost of each case against the baseline")


def score_figure(report: Report) -> str:
    """The spread of the scores of each case, and the share of them that is positive."""
    shapes, positive = [], []
    for case in report.scored:
        s = case.scores
        assert s is not None
        low, lower, median, upper, high = (s.quantiles[at] / (s.std or 1.0) for at in FIVE)
        title = f"{case.label}: mean {s.mean:.3g}, std {s.std:.3g}, {s.tokens:,} tokens"
        shapes.append(Spread((low, lower, median, upper, high), title))
        positive.append(
            Bar(s.share_positive, f"{s.share_positive:.1%}", f"{case.label}: {s.tokens:,} tokens")
        )
    panels: list[Panel | SpreadPanel] = [
        SpreadPanel("score, in standard deviations", shapes, 540, LIMIT),
        Panel("share of positive scores", positive, 290, mark=0.5, mark_text="half", largest=1.0),
    ]
    labels = [case.label for case in report.scored]
    return rows(labels, panels, "Spread and sign of the scores of each case")


def agreement_figure(report: Report, by_prompt: bool) -> str:
    """The correlation of every pair of cases, over steps or within prompts."""
    names = [case.name for case in report.scored]
    labels = {case.name: case.label for case in report.scored}
    found = {(a.one, a.other): a for a in report.agreements}
    cells: list[list[tuple[float | None, str]]] = []
    for one in names:
        row: list[tuple[float | None, str]] = []
        for other in names:
            pair = found.get((one, other)) or found.get((other, one))
            if pair is None:
                row.append((None, ""))
                continue
            low, high = pair.per_step_range or (0.0, 0.0)
            over = (
                f"{pair.prompts:,} prompts of {pair.steps} steps"
                if by_prompt
                else f"{pair.steps} steps ({low:+.3f} to {high:+.3f})"
            )
            title = f"{labels[one]} / {labels[other]}: over {over}, {pair.tokens:,} tokens"
            row.append((pair.per_prompt if by_prompt else pair.per_step, title))
        cells.append(row)
    return matrix([labels[name] for name in names], cells, "Rank correlations between cases")
