"""What the drawings of a report show: cost, scores, agreement."""

from collections.abc import Sequence

from archer.ablation.report import CaseReport, Report
from archer.ablation.statistics import QUANTILES
from archer.ablation.svg import Bar, Panel, Spread, SpreadPanel, matrix, rows

FIVE = tuple(QUANTILES.index(q) for q in (0.05, 0.25, 0.5, 0.75, 0.95))
LIMIT = 2.0


def cost_figure(report: Report) -> str:
    """Time, influence's share of it, and memory of each case."""
    cases = report.done
    panels = [
        _ratio_panel("time per step", cases, "step"),
        _ratio_panel("update", cases, "update"),
        Panel(
            "influence in the update",
            [
                Bar(
                    c.cost.influence_share,
                    f"{c.cost.influence_share:.0%}",
                    f"{c.label}: timed inside the update",
                )
                if c.cost and c.scores
                else Bar(None, "not traced", "")
                for c in cases
            ],
            width=180,
            largest=max([c.cost.influence_share for c in cases if c.cost] + [0.5]),
        ),
        _ratio_panel("peak memory", cases, "memory"),
    ]
    return rows([case.label for case in cases], panels, "Cost of each case against the baseline")


def _ratio_panel(title: str, cases: Sequence[CaseReport], what: str) -> Panel:
    """Ratios to the baseline, or the plain figures where the grid has none."""
    found = []
    for case in cases:
        assert case.cost is not None
        cost, ratio = case.cost, case.ratio
        plain, unit, detail = {
            "step": (
                cost.fastest_step_s,
                "s",
                f"fastest {cost.fastest_step_s:.3f} s, median {cost.step_s:.3f} s",
            ),
            "update": (
                cost.fastest_update_s,
                "s",
                f"fastest {cost.fastest_update_s:.3f} s, median {cost.update_s:.3f} s",
            ),
            "memory": (cost.memory_gb, "GiB", f"{cost.memory_gb:.3f} GiB"),
        }[what]
        text = f"{plain:.2f} {unit}"
        if ratio is not None:
            plain = {"step": ratio.fastest_step, "update": ratio.fastest_update, "memory": ratio.memory}[what]
            text = f"{plain:.2f} x"
        found.append(Bar(plain, text, f"{case.label}: {detail}"))
    compared = all(case.ratio is not None for case in cases)
    measure = "" if what == "memory" else ", fastest"
    return Panel(f"{title}{measure}", found, width=200, mark=1.0 if compared else None, mark_text="baseline")


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
