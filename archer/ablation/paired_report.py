"""The report of a grid with seeds: paired differences in accuracy, as Markdown, CSV and a plot."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from archer.ablation.paired import LEVEL, Difference, Learning, SeededComparison
from archer.ablation.report import failure_parts, listed, table, with_plots, write_files
from archer.evaluation.exact import METRIC as EXACT

PLOT = "curves.png"
NOTE = (
    "curve: mean over the steps of held-out accuracy, linear between measurements; final: the accuracy at "
    "the end; both in points. Steps to {level:.0%}: linear between measurements too, one more than all where "
    "it is not reached. Entropy: mean over the steps, in nats. Means over seeds."
)
DIFFERENCE_NOTE = (
    "Mean and standard error of the differences between runs of the same seed. higher: seeds at which the "
    "curve is higher. p: two-sided, of no difference in the curve, from all choices of signs."
)


def write_paired_report(comparison: SeededComparison, out: Path) -> list[str]:
    """Write all files of a report into a folder; return their paths and what else the user should know."""

    def draw(out: Path) -> list[str]:
        from archer.ablation.plots import draw_curves

        return draw_curves(comparison, out)

    plots, notes = with_plots(draw, out, (PLOT,))
    tables = {"cases.csv": [case.row() for case in comparison.cases], "paired.csv": comparison.rows()}
    return [*write_files(out, tables, paired_markdown(comparison, plots, notes), plots), *notes]


def paired_markdown(
    comparison: SeededComparison, plots: Sequence[str] = (), notes: Sequence[str] = ()
) -> str:
    """Return `report.md`."""
    plan = comparison.plan
    counts = {
        status: sum(case.state.status == status for case in comparison.cases) for status in ("done", "failed")
    }
    command = shlex.join(["archer", "ablate", "run", *plan.arguments])
    told = f"`{command}`: {counts['done']} of {len(comparison.cases)} cases done, {counts['failed']} failed."
    parts = [f"# Ablation {plan.grid}", told, *notes]
    if counts["done"]:
        parts += [listed(_conditions(comparison)), "## Accuracy", *(f"![{name}]({name})" for name in plots)]
        parts += [NOTE.format(level=LEVEL), _levels(comparison)]
        parts += ["## Paired differences", DIFFERENCE_NOTE, _differences(comparison)]
    for case in comparison.cases:
        if case.state.status == "failed":
            parts += failure_parts(case.name, case.state)
    own = {case.variant: plan.own[case.name][:-2] for case in comparison.cases}
    rows = [[f"`{variant}`", " ".join(f"`{o}`" for o in those)] for variant, those in own.items()]
    parts += ["## Overrides", "Of every case:", listed([f"`{o}`" for o in plan.shared] or ["none"])]
    return "\n\n".join([*filter(None, parts), table(["case", "its own"], rows)]) + "\n"


def _conditions(comparison: SeededComparison) -> list[str]:
    what = "of the built-in task's right responses" if comparison.measure == EXACT else "of sampled responses"
    last = [case.state.attempts[-1] for case in comparison.cases if case.state.status == "done"]
    low, high = min(one.load for one in last), max(one.load for one in last)
    return [
        f"Training: {comparison.training}.",
        f"Accuracy: `{comparison.measure}`, {what}.",
        f"Machine: load {low:.1f} to {high:.1f}; seconds say little where it was shared.",
    ]


def _levels(comparison: SeededComparison) -> str:
    heads = ["case", "seeds", "curve", "final", f"steps to {LEVEL:.0%}", "reached", "entropy", "step s"]
    rows = []
    for variant in comparison.variants:
        runs = list(comparison.of(variant).values())
        if runs:
            reached = sum(run.reached for run in runs)
            cells = [
                _mean(runs, lambda run: 100 * run.curve, ".1f"),
                _mean(runs, lambda run: 100 * run.final, ".1f"),
                _mean(runs, lambda run: run.steps_to_level, ".1f"),
                f"{reached} of {len(runs)}",
                _mean(runs, lambda run: run.entropy, ".4f"),
                _mean(runs, lambda run: run.step_s, ".2f"),
            ]
            rows.append([f"`{variant}`", str(len(runs)), *cells])
    return table(heads, rows)


def _mean(runs: Sequence[Learning], value: Callable[[Learning], float], form: str) -> str:
    return format(sum(map(value, runs)) / len(runs), form)


def _differences(comparison: SeededComparison) -> str:
    heads = ["case", "minus", "seeds", "curve", "higher", "p", "final", f"steps to {LEVEL:.0%}", "entropy"]
    rows = []
    for variant, other in comparison.pairs:
        curve = comparison.difference(variant, other, "curve")
        if curve is not None:
            found = (comparison.difference(variant, other, q) for q in ("final", "steps_to_level", "entropy"))
            final, steps, entropy = (difference for difference in found if difference is not None)
            cells = [_told(curve, 100), f"{curve.higher} of {curve.n}", f"{curve.p:.3f}", _told(final, 100)]
            rows.append(
                [f"`{variant}`", f"`{other}`", str(curve.n), *cells, _told(steps), _told(entropy, 1, 4)]
            )
    return table(heads, rows)


def _told(difference: Difference, unit: float = 1.0, digits: int = 1) -> str:
    if difference.n < 2:
        return f"{unit * difference.mean:+.{digits}f}"
    return f"{unit * difference.mean:+.{digits}f} ± {unit * difference.stderr:.{digits}f}"
