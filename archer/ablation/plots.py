"""The plots of a report, drawn by matplotlib: cost, spread of scores, agreement of cases, learning curves."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from archer.ablation.comparison import RATIOS, CaseResult, Comparison
from archer.ablation.paired import LEVEL, SeededComparison
from archer.files import plain_file

BLUE, PALE, GREY = "#2f6db3", "#bcd3ec", "#777777"
DPI, ROW_INCHES = 120, 0.27
PANELS = {  # ratio to the baseline -> what it measures, unit without a baseline
    "step_ratio_fastest": ("fastest step", "s"),
    "update_ratio_fastest": ("fastest update", "s"),
    "cpu_ratio": ("CPU time", "s"),
    "peak_memory_ratio": ("peak memory", "GiB"),
}
SHOWN_QUANTILES = ("05", "25", "50", "75", "95")


def draw_plots(comparison: Comparison, out: Path) -> list[str]:
    """Draw what there is to draw into a folder and return the names of the files."""
    figures = {}
    if comparison.with_status("done"):
        figures["cost.png"] = cost_figure(comparison)
    if comparison.scored:
        figures["scores.png"] = score_figure(comparison)
    if len(comparison.scored) > 1:
        figures["agreement.png"] = agreement_figure(comparison)
    for name, figure in figures.items():
        figure.savefig(plain_file(out / name), dpi=DPI)
    return list(figures)


def cost_figure(comparison: Comparison) -> Figure:
    """What each case cost, over the baseline's; clock times only where nothing else used the machine."""
    cases = [case for case in comparison.cases if case.cost]
    clock = ("fastest",) if comparison.busy else ()
    shown = {ratio: panel for ratio, panel in PANELS.items() if not ratio.endswith(clock)}
    figure, axes = _panels(cases, len(shown) + 1)
    for axis, (ratio, (title, unit)) in zip(axes, shown.items(), strict=False):
        compared = all(ratio in case.cost for case in cases)
        values = [case.cost[ratio if compared else RATIOS[ratio]] for case in cases]
        _bars(axis, values, "{:.2f}", title, "times the baseline" if compared else unit)
        if compared:
            axis.axvline(1.0, color=GREY, linewidth=1)
    shares = [100 * case.cost["influence_share_of_update"] for case in cases]
    _bars(axes[-1], shares, "{:.0f}", "influence in the update", "% of its time")
    return figure


def score_figure(comparison: Comparison) -> Figure:
    """The spread of the scores of each case, and the share of them that is positive."""
    figure, (spread, positive) = _panels(comparison.scored, 2, widths=(2, 1))
    for at, case in enumerate(comparison.scored):
        unit = case.scores["score_std"] or 1.0
        low, lower, middle, upper, high = (case.scores[f"score_q{q}"] / unit for q in SHOWN_QUANTILES)
        spread.hlines(at, low, high, color=BLUE, linewidth=1.2)
        spread.barh(at, upper - lower, left=lower, height=0.5, color=PALE, edgecolor=BLUE)
        spread.plot(middle, at, "o", color=BLUE, markersize=3.5)
    spread.axvline(0.0, color=GREY, linewidth=1)
    spread.set_xscale("symlog", linthresh=0.01)  # most scores are small beside a few large ones
    scale = "score, in standard deviations; logarithmic beyond 0.01"
    _label(spread, "line: 5 to 95 %, box: middle half, point: median", scale)
    shares = [100 * case.scores["score_share_positive"] for case in comparison.scored]
    _bars(positive, shares, "{:.0f}", "positive scores", "% of the tokens")
    positive.axvline(50, color=GREY, linewidth=1)
    positive.set_xlim(0, 100)
    return figure


def agreement_figure(comparison: Comparison) -> Figure:
    """The correlation of every pair of cases: over steps above the diagonal, within prompts below it."""
    names = [case.name for case in comparison.scored]
    side = 0.42 * len(names)
    figure = Figure(figsize=(side + 4.5, side + 1.2), layout="constrained")
    axis = figure.subplots()
    table = np.array(comparison.correlations(), float)  # [n, n], NaN where there is none
    image = axis.imshow(table, cmap="RdBu", vmin=-1, vmax=1)
    for i, j in np.argwhere(np.isfinite(table)):
        color = "white" if abs(table[i, j]) > 0.6 else "black"
        axis.text(j, i, f"{table[i, j]:.2f}", ha="center", va="center", fontsize=6.5, color=color)
    axis.set_xticks(range(len(names)), [str(n + 1) for n in range(len(names))])
    axis.set_yticks(range(len(names)), [f"{name}  {n}" for n, name in enumerate(names, start=1)])
    axis.tick_params(length=0, labelsize=8)
    title = "above the diagonal: over all tokens of a step; below: within the responses to one prompt"
    _label(axis, title, "case")
    bar = figure.colorbar(image, shrink=0.6)
    bar.set_label("Spearman's rank correlation", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    return figure


def draw_curves(comparison: SeededComparison, out: Path) -> list[str]:
    """Draw the curves of a grid with seeds into a folder and return the names of the files."""
    if not any(comparison.of(variant) for variant in comparison.variants):
        return []
    curve_figure(comparison).savefig(plain_file(out / "curves.png"), dpi=DPI)
    return ["curves.png"]


def curve_figure(comparison: SeededComparison) -> Figure:
    """Held-out accuracy by step, and the difference to the baseline: means over seeds, shaded one s.e."""
    baseline = comparison.plan.baseline
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    accuracy, difference = figure.subplots(1, 2)
    controls = {control: variant for variant, control in comparison.plan.controls}
    colours = {v: f"C{i % 10}" for i, v in enumerate(v for v in comparison.variants if v not in controls)}
    for variant in comparison.variants:
        runs = comparison.of(variant)
        if not runs:
            continue
        colour = colours[controls.get(variant, variant)]
        style = "--" if variant in controls else "-"
        _band(accuracy, [100 * run.every_step() for run in runs.values()], colour, style, variant)
        base = {} if baseline in (None, variant) else comparison.of(baseline or "")
        gains = [100 * (runs[s].every_step() - base[s].every_step()) for s in runs if s in base]
        if gains:
            _band(difference, gains, colour, style, variant)
    accuracy.axhline(100 * LEVEL, color=GREY, linewidth=1)
    difference.axhline(0.0, color=GREY, linewidth=1)
    for axis, title in ((accuracy, "held-out accuracy, %"), (difference, f"minus {baseline}, points")):
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
        _label(axis, title, "step")
    figure.legend(*accuracy.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return figure


def _band(axis: Axes, curves: Sequence[np.ndarray], colour: str, style: str, label: str) -> None:
    """The mean of [N + 1] curves of the same length, and one standard error around it."""
    values = np.stack([curve[: min(map(len, curves))] for curve in curves])
    middle, steps = values.mean(0), np.arange(values.shape[1])
    axis.plot(steps, middle, style, color=colour, linewidth=1.2, label=label)
    if len(values) > 1:
        stderr = values.std(0, ddof=1) / np.sqrt(len(values))
        axis.fill_between(steps, middle - stderr, middle + stderr, color=colour, alpha=0.12, linewidth=0)


def _panels(
    cases: Sequence[CaseResult], columns: int, widths: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """Panels side by side with one row for each case, the first on top."""
    figure = Figure(figsize=(11, ROW_INCHES * len(cases) + 1.2), layout="constrained")
    axes = list(figure.subplots(1, columns, sharey=True, squeeze=False, width_ratios=widths)[0])
    axes[0].set_yticks(range(len(cases)), [case.name for case in cases])
    axes[0].invert_yaxis()
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    return figure, axes


def _label(axis: Axes, title: str, unit: str) -> None:
    axis.set_title(title, fontsize=9)
    axis.set_xlabel(unit, fontsize=9)


def _bars(axis: Axes, values: Sequence[float], form: str, title: str, unit: str) -> None:
    bars = axis.barh(range(len(values)), values, height=0.6, color=PALE, edgecolor=BLUE, linewidth=0.6)
    axis.bar_label(bars, fmt=form, padding=2, fontsize=7.5)
    axis.set_xlim(0, 1.15 * max([*values, 1e-9]))
    _label(axis, title, unit)
