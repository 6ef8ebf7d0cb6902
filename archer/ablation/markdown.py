"""The report as Markdown: the figures that a diary or a pull request wants."""

from collections.abc import Sequence

from archer.ablation.report import CaseReport, Report
from archer.ablation.statistics import QUANTILES
from archer.ablation.words import SPEARMAN, comparable, findings, time_caption


def document(report: Report) -> str:
    """Return the whole text."""
    parts = [f"# Ablation {report.grid}", _counts(report)]
    if report.done:
        parts += [
            _list(findings(report)),
            "## What is comparable",
            _list(comparable(report)),
            "## Cost",
            time_caption(report) + " x: over the baseline.",
            _cost(report),
        ]
    if report.scored:
        parts += ["## Scores", "Over all traced tokens of all steps.", _scores(report)]
    if report.agreements:
        parts += ["## Rank correlation of influence", _CORRELATION, _matrix(report)]
    if report.broken:
        parts += ["## Failures", *(_failure(case) for case in report.broken)]
    parts += ["## Overrides", "Of every case:", _list([f"`{o}`" for o in report.shared]), _own(report)]
    return "\n\n".join(parts) + "\n"


_CORRELATION = (
    f"{SPEARMAN} over the same tokens. Above the diagonal: over all tokens of a step, mean over steps. "
    "Below: within the responses to one prompt, mean over prompts. Numbers are those of the table of scores."
)


def _counts(report: Report) -> str:
    done = sum(case.state.status == "done" for case in report.cases)
    return f"{done} of {len(report.cases)} cases done, {len(report.broken)} failed."


def _cost(report: Report) -> str:
    head = ["case", "step s", "x", "fastest x", "update s", "x", "fastest x", "influence in it"]
    head += ["CPU s", "x", "peak GiB", "x", "rows emitted", "state"]
    rows = []
    for case in report.cases:
        cost, ratio = case.cost, case.ratio
        if cost is None:
            rows.append([f"`{case.name}`", *[""] * 12, case.state.status])
            continue
        ratios = [""] * 6
        if ratio is not None:
            times = (ratio.step, ratio.fastest_step, ratio.update, ratio.fastest_update)
            ratios = [f"{value:.2f}" for value in (*times, ratio.cpu, ratio.memory)]
        rows.append(
            [
                f"`{case.name}`",
                f"{cost.step_s:.3f}",
                *ratios[:2],
                f"{cost.update_s:.3f}",
                *ratios[2:4],
                f"{cost.influence_share:.0%}",
                f"{cost.cpu_s:.1f}",
                ratios[4],
                f"{cost.memory_gb:.2f}",
                ratios[5],
                f"{cost.rows_emitted:,}",
                "done, offloaded" if case.state.offloaded else case.state.status,
            ]
        )
    return _table(head, rows)


def _scores(report: Report) -> str:
    head = ["", "case", "tokens", "mean", "std", *(f"{q:.0%}" for q in QUANTILES), "positive"]
    rows = []
    for number, case in enumerate(report.scored, start=1):
        assert case.scores is not None
        s = case.scores
        values = [f"{value:.3g}" for value in (s.mean, s.std, *s.quantiles)]
        rows.append([str(number), f"`{case.name}`", f"{s.tokens:,}", *values, f"{s.share_positive:.1%}"])
    return _table(head, rows)


def _matrix(report: Report) -> str:
    names = [case.name for case in report.scored]
    found = {(a.one, a.other): a for a in report.agreements}
    rows = []
    for i, one in enumerate(names):
        cells = []
        for j, other in enumerate(names):
            pair = found.get((one, other)) or found.get((other, one))
            value = None if pair is None else pair.per_step if i < j else pair.per_prompt
            cells.append("" if i == j else "-" if value is None else f"{value:+.2f}")
        rows.append([f"**{i + 1}**", *cells])
    return _table(["", *(str(i + 1) for i in range(len(names)))], rows)


def _failure(case: CaseReport) -> str:
    last = case.state.attempts[-1]
    reason = last.out_of_memory or f"exit status {last.returncode}"
    return f"`{case.name}`: {reason}\n\n" + "\n".join(f"    {line}" for line in last.last_lines)


def _own(report: Report) -> str:
    return _table(["case", "its own"], [[f"`{c.name}`", f"`{' '.join(c.own)}`"] for c in report.cases])


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
