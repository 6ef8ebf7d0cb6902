"""The report of a grid: Markdown and plots for people, CSV for programs."""

import csv
import io
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from archer.ablation.comparison import Comparison
from archer.ablation.folder import CaseState
from archer.ablation.scores import QUANTILES
from archer.errors import install_hint
from archer.files import write_atomically

PLOTS = ("cost.png", "scores.png", "agreement.png")
NO_PLOTS = f"No plots: matplotlib is not installed. {install_hint('ablation')} adds it; then collect again."
COST_COLUMNS = (  # head, column of cases.csv, format
    ("step s", "step_s_median", ".3f"),
    ("x", "step_ratio_median", ".2f"),
    ("update s", "update_s_median", ".3f"),
    ("x", "update_ratio_median", ".2f"),
    ("influence in it", "influence_share_of_update", ".0%"),
    ("CPU s", "cpu_s", ".1f"),
    ("x", "cpu_ratio", ".2f"),
    ("peak GiB", "peak_memory_gib", ".2f"),
    ("x", "peak_memory_ratio", ".2f"),
    ("rows emitted", "rows_emitted", ",d"),
)
SCORE_COLUMNS = (
    ("tokens", "tokens_scored", ",d"),
    ("mean", "score_mean", ".3g"),
    ("std", "score_std", ".3g"),
    *((f"{q:.0%}", f"score_q{q * 100:02.0f}", ".3g") for q in QUANTILES),
    ("positive", "score_share_positive", ".1%"),
)
COST_NOTE = (
    "Seconds are medians over the steps of a case without its first, which pays for what is done once; CPU "
    "time is that of the whole case, its start included. x: over the baseline."
)
SCORE_NOTE = (
    "Over all traced tokens of all steps. Scores have their own unit in each case: compare their order, sign "
    "and shape, not their size."
)
AGREEMENT_NOTE = (
    "Spearman's rank correlation of the scores that two cases gave the same tokens, checked token by token. "
    "Above the diagonal: over all tokens of a step, mean over steps. Below: within the responses to one "
    "prompt, mean over prompts. Numbers are those of the table of scores."
)


def write_report(comparison: Comparison, out: Path) -> list[str]:
    """Write all files of a report into a folder; return their paths and what else the user should know."""

    def draw(out: Path) -> list[str]:
        from archer.ablation.plots import draw_plots

        return draw_plots(comparison, out)

    plots, notes = with_plots(draw, out, PLOTS)
    tables = {
        "cases.csv": [case.row() for case in comparison.cases],
        "correlations.csv": [asdict(pair) for pair in comparison.agreements],
    }
    return [*write_files(out, tables, markdown(comparison, plots, notes), plots), *notes]


def with_plots(
    draw: Callable[[Path], list[str]], out: Path, names: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Draw into a folder; return what was drawn, and what the user should know where nothing could be.

    names: of all plots; those of an earlier report are removed
    """
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        (out / name).unlink(missing_ok=True)
    try:
        return draw(out), []
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        return [], [NO_PLOTS]


def write_files(
    out: Path, tables: Mapping[str, Sequence[Mapping[str, object]]], text: str, plots: Sequence[str]
) -> list[str]:
    """Write tables as CSV and the report; return the paths of all files of the report."""
    files = {name: _csv(rows) for name, rows in tables.items()} | {"report.md": text}
    for name, written in files.items():
        write_atomically(out / name, written)
    return [str(out / name) for name in (*plots, *files)]


def markdown(comparison: Comparison, plots: Sequence[str] = (), notes: Sequence[str] = ()) -> str:
    """Return `report.md`, showing those of `PLOTS` that were drawn."""
    cost, scores, agreement = ([f"![{name}]({name})"] if name in plots else [] for name in PLOTS)
    done, failed = (comparison.with_status(status) for status in ("done", "failed"))
    command = shlex.join(["archer", "ablate", "run", *comparison.plan.arguments])
    counts = f"`{command}`: {len(done)} of {len(comparison.cases)} cases done, {len(failed)} failed."
    parts = [f"# Ablation {comparison.plan.grid}", counts, *notes]
    if done:
        heads = ["case", *(head for head, _, _ in COST_COLUMNS), "state"]
        rows = [[f"`{c.name}`", *_figures(c.cost, COST_COLUMNS), c.state.label] for c in comparison.cases]
        parts += [listed(_conditions(comparison)), "## Cost", *cost, COST_NOTE, table(heads, rows)]
    if comparison.scored:
        heads = ["", "case", *(head for head, _, _ in SCORE_COLUMNS)]
        numbered = enumerate(comparison.scored, start=1)
        rows = [[str(n), f"`{c.name}`", *_figures(c.scores, SCORE_COLUMNS)] for n, c in numbered]
        parts += ["## Scores", *scores, SCORE_NOTE, table(heads, rows)]
    if len(comparison.scored) > 1:
        parts += ["## Rank correlation of influence", *agreement, AGREEMENT_NOTE, _matrix(comparison)]
    for case in failed:
        parts += failure_parts(case.name, case.state)
    own = [[f"`{case.name}`", " ".join(f"`{o}`" for o in case.own)] for case in comparison.cases]
    parts += [
        "## Overrides",
        "Of every case:",
        listed([f"`{o}`" for o in comparison.plan.shared] or ["none"]),
    ]
    return "\n\n".join([*filter(None, parts), table(["case", "its own"], own)]) + "\n"


def failure_parts(name: str, state: CaseState) -> list[str]:
    """What is told of a case that failed."""
    last = state.attempts[-1]
    reason = last.out_of_memory or f"exit status {last.returncode}"
    printed = "\n".join(f"    {line}" for line in last.last_lines)
    return [f"## Failure of `{name}`", f"{reason}:", printed]


def _conditions(comparison: Comparison) -> list[str]:
    """What the figures were measured under, and which of them may be compared."""
    low, high = comparison.load
    shared = " It was shared, so clock times are rough; trust CPU time." if comparison.busy else ""
    lines = [
        f"Training: {comparison.training}.",
        f"Machine: load {low:.1f} to {high:.1f}, {comparison.cores} cores, --jobs {comparison.jobs}.{shared}",
    ]
    if any("cpu_ratio" in case.cost for case in comparison.cases):  # there is a baseline, and it is done
        other = [f"`{case.name}` (from {case.differs_at})" for case in comparison.cases if case.differs_at]
        equal = "none; every metric but times, memory and tracing's own is equal, to the last digit"
        lines.append(f"Trainings that differ from the baseline's: {', '.join(other) or equal}.")
    skipped = sum(pair.steps_with_different_rollouts for pair in comparison.agreements)
    if skipped:
        lines.append(f"Left out of the correlations: {skipped} pairs of steps with different rollouts.")
    return lines


def _figures(of: Mapping[str, float], columns: Sequence[tuple[str, str, str]]) -> list[str]:
    return [format(of[column], form) if column in of else "" for _, column, form in columns]


def _matrix(comparison: Comparison) -> str:
    rows = []
    for i, row in enumerate(comparison.correlations()):
        cells = ["" if i == j else "-" if value is None else f"{value:+.2f}" for j, value in enumerate(row)]
        rows.append([f"**{i + 1}**", *cells])
    return table(["", *(str(i + 1) for i in range(len(rows)))], rows)


def _csv(rows: Sequence[Mapping[str, object]]) -> str:
    text = io.StringIO()
    if rows:
        columns = list({name: None for row in rows for name in row})
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def listed(lines: Sequence[str]) -> str:
    """A list in Markdown."""
    return "\n".join(f"- {line}" for line in lines)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
