"""The report as one HTML page that needs nothing but itself, in light and dark."""

from collections.abc import Sequence
from html import escape

from archer.ablation.figures import FIVE, agreement_figure, cost_figure, score_figure
from archer.ablation.report import CaseReport, Report
from archer.ablation.style import STYLE
from archer.ablation.words import SPEARMAN, comparable, findings, time_caption


def page(report: Report) -> str:
    """Return the whole page."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Ablation {escape(report.grid)}</title>
<style>
{STYLE}</style>
</head>
<body>
<main>
{_body(report)}
</main>
</body>
</html>
"""


def _body(report: Report) -> str:
    done = sum(case.state.status == "done" for case in report.cases)
    parts = [
        f"<header><h1>Ablation <code>{escape(report.grid)}</code></h1>",
        f"<p class='lead'>{done} of {len(report.cases)} cases done, {len(report.broken)} failed</p></header>",
    ]
    if report.done:
        parts.append(_list(findings(report), "findings"))
        parts.append(_section("What is comparable", _list(comparable(report)), ""))
        parts.append(_section("Cost", _figure(cost_figure(report)), time_caption(report)))
    if report.scored:
        parts.append(_section("Scores", _figure(score_figure(report)), _SPREAD_CAPTION))
    if report.agreements:
        for title, caption, by_prompt in _MATRICES:
            parts.append(_section(title, _figure(agreement_figure(report, by_prompt)), caption))
    if report.done:
        parts.append(_section("All figures", _figure(_table(report)), "x: over the baseline."))
    for case in report.broken:
        parts.append(_failure(case))
    parts.append(_section("Overrides", _overrides(report), ""))
    return "\n".join(parts)


_SPREAD_CAPTION = (
    "Over all traced tokens of all steps. Line: 5 % to 95 % of the tokens; bar: the middle half; point: the "
    "median; in units of the case's own standard deviation, because sizes do not compare between cases."
)
_MATRICES = (
    (
        "Rank correlation of influence, over all tokens of a step",
        f"{SPEARMAN} of the scores that two cases gave the same tokens; mean over steps. 1: the same order; "
        "0: unrelated; -1: reversed. Hover for steps, tokens and range.",
        False,
    ),
    (
        "Rank correlation of influence, within the responses to one prompt",
        "The same within each prompt's group of responses, which is what the viewer shows side by side; mean "
        "over prompts. Differences of scale between prompts do not count here.",
        True,
    ),
)


def _table(report: Report) -> str:
    heads = [
        "case",
        "step s",
        "x",
        "update s",
        "x",
        "influence",
        "CPU s",
        "x",
        "peak GiB",
        "x",
        "rows",
        "tokens",
    ]
    heads += ["mean", "std", "5 %", "25 %", "50 %", "75 %", "95 %", "positive", "state"]
    lines = []
    for case in report.cases:
        cost, ratio, s = case.cost, case.ratio, case.scores
        cells = [""] * (len(heads) - 2)
        if cost is not None:
            x = [""] * 4
            if ratio is not None:
                x = [f"{value:.2f}" for value in (ratio.step, ratio.update, ratio.cpu, ratio.memory)]
            cells[:10] = [
                *(f"{cost.step_s:.3f}", x[0], f"{cost.update_s:.3f}", x[1], f"{cost.influence_share:.0%}"),
                *(f"{cost.cpu_s:.1f}", x[2], f"{cost.memory_gb:.2f}", x[3], f"{cost.rows_emitted:,}"),
            ]
        if s is not None:
            values = [s.mean, s.std, *(s.quantiles[at] for at in FIVE)]
            cells[10:] = [f"{s.tokens:,}", *(f"{v:.3g}" for v in values), f"{s.share_positive:.1%}"]
        state = "done, offloaded" if case.state.offloaded else case.state.status
        row = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        lines.append(f"<tr><th scope='row'>{escape(case.label)}</th>{row}<td>{state}</td></tr>")
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in heads)
    return (
        "<table><caption>Seconds of step and update are medians; influence is its share of the update; CPU "
        "time is of the whole case; rows are responses with scores; mean to positive are of the scores."
        "</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )


def _failure(case: CaseReport) -> str:
    last = case.state.attempts[-1]
    reason = last.out_of_memory or f"exit status {last.returncode}"
    text = escape("\n".join(last.last_lines))
    return _section(f"Failed: {case.label}", f"<p>{escape(reason)}</p><pre>{text}</pre>", "")


def _overrides(report: Report) -> str:
    shared = "".join(f"<li><code>{escape(override)}</code></li>" for override in report.shared)
    rows = "".join(
        f"<tr><th scope='row'>{escape(case.name)}</th><td><code>{escape(' '.join(case.own))}</code></td></tr>"
        for case in report.cases
    )
    return (
        f"<details><summary>of every case</summary><ul>{shared}</ul></details>"
        f"<details><summary>of each case</summary><div class='wide'><table class='text'>{rows}</table></div>"
        "</details>"
    )


def _section(title: str, inside: str, caption: str) -> str:
    note = f"<p class='caption'>{escape(caption)}</p>" if caption else ""
    return f"<section><h2>{escape(title)}</h2>{note}{inside}</section>"


def _figure(inside: str) -> str:
    return f"<div class='wide'>{inside}</div>"


def _list(lines: Sequence[str], style: str = "") -> str:
    return f"<ul class='{style}'>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
