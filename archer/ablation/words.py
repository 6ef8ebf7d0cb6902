"""What a report says in sentences, the same in Markdown and HTML. Plain text, no markup."""

from archer.ablation.agreement import Agreement
from archer.ablation.report import CaseReport, Report

RHO = "\N{GREEK SMALL LETTER RHO}"
SPEARMAN = f"Spearman's {RHO}"


def findings(report: Report) -> list[str]:
    """The few things that a reader in a hurry wants to know."""
    said = []
    compared = [case for case in report.done if case.name != report.baseline and case.ratio is not None]
    if compared:
        update = sorted(compared, key=lambda case: case.ratio.fastest_update if case.ratio else 0.0)
        memory = sorted(compared, key=lambda case: case.ratio.memory if case.ratio else 0.0)
        said.append(
            f"The update takes {_ratio(update[0])} x ({update[0].label}) to {_ratio(update[-1])} x "
            f"({update[-1].label}) the baseline's time, fastest step against fastest step; peak memory is "
            f"{memory[0].ratio.memory if memory[0].ratio else 0:.2f} to "
            f"{memory[-1].ratio.memory if memory[-1].ratio else 0:.2f} x."
        )
        traced = [case.cost.influence_share for case in compared if case.cost and case.scores]
        if traced:
            said.append(
                f"Timed inside the update, influence takes {min(traced):.0%} to {max(traced):.0%} of it. "
                "Both times come from the same steps, so other work on the machine matters less."
            )
    known = [a for a in report.agreements if a.per_step is not None]
    if known:
        known.sort(key=lambda a: a.per_step or 0.0)
        same = [a for a in known if (a.per_step or 0.0) > 0.999]
        if same:
            said.append(
                f"{len(same)} of {len(known)} pairs of cases order the tokens alike ({RHO} above 0.999), for "
                f"example {_pair(report, same[-1])}."
            )
        said.append(f"Least alike: {_pair(report, known[0])}, {RHO} = {known[0].per_step:+.2f}.")
    offloaded = [case.label for case in report.cases if case.state.offloaded]
    if offloaded:
        said.append(f"Ran out of memory and count with factors offloaded to the CPU: {', '.join(offloaded)}.")
    return said


def comparable(report: Report) -> list[str]:
    """What may be compared with what."""
    said = []
    conditions = report.conditions
    if conditions is not None:
        said.append(
            f"All cases train {conditions.model} with {conditions.batch} from the same weights and the same "
            f"seeds (rollout seed {conditions.seed})."
        )
    if report.baseline is not None:
        different = [f"{case.label} ({case.differs_at})" for case in report.done if case.differs_at]
        if different:
            said.append(
                "These cases train differently from the baseline, so their costs and scores are those of "
                f"other rollouts from there on: {', '.join(different)}."
            )
        elif report.done:
            said.append(
                "Every case is the baseline's training to the last digit: all metrics but times, memory and "
                "tracing's own are equal at every step. What differs is only what was computed beside it."
            )
    if report.agreements:
        steps, tokens = ([getattr(a, n) for a in report.agreements] for n in ("steps", "tokens"))
        skipped = sum(a.different_steps for a in report.agreements)
        said.append(
            f"Scores are compared on the same tokens only, checked token by token: {_span(steps)} steps and "
            f"{_span(tokens)} tokens a pair"
            + (f"; {skipped} pairs of steps had other rollouts and were left out." if skipped else ".")
        )
    said.append(
        f"Scores have a unit of their own in each case. Compare their order ({RHO}), their sign and their "
        "shape, not their size."
    )
    if conditions is not None and conditions.busy:
        low, high = conditions.load or (0.0, 0.0)
        said.append(
            f"The machine was shared: load average {low:.1f} to {high:.1f} on {conditions.cores} cores, "
            f"{conditions.jobs} case(s) at a time. Times are ratios within this run only, and rough ones; "
            "the fastest step suffers least."
        )
    return said


def time_caption(report: Report) -> str:
    """Over what times were taken."""
    steps = sorted({case.cost.measured_steps for case in report.done if case.cost is not None})
    many = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
    return (
        f"Times are of {many} steps; a run's first step is left out, because it pays for what is done once."
    )


def _span(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _ratio(case: CaseReport) -> str:
    return f"{case.ratio.fastest_update:.2f}" if case.ratio else "-"


def _pair(report: Report, agreement: Agreement) -> str:
    labels = {case.name: case.label for case in report.cases}
    return f"{labels[agreement.one]} and {labels[agreement.other]}"
