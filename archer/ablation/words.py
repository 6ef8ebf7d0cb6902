"""What a report says in sentences, the same in Markdown and HTML. Plain text, no markup."""

from archer.ablation.agreement import Agreement
from archer.ablation.report import Report

RHO = "\N{GREEK SMALL LETTER RHO}"
SPEARMAN = f"Spearman's {RHO}"


def findings(report: Report) -> list[str]:
    """The few things that a reader in a hurry wants to know."""
    said = []
    ratios = {
        case.label: case.ratio
        for case in report.done
        if case.name != report.baseline and case.ratio is not None
    }
    if ratios:
        # On a busy machine only processor time means something; elsewhere the clock is what one pays.
        busy = report.conditions is not None and report.conditions.busy
        of = {name: ratio.cpu if busy else ratio.fastest_update for name, ratio in ratios.items()}
        least, most = min(of, key=of.__getitem__), max(of, key=of.__getitem__)
        subject = "A case takes" if busy else "The update takes"
        time = "processor time, its start included" if busy else "time, fastest step against fastest step"
        memory = [ratio.memory for ratio in ratios.values()]
        said.append(
            f"{subject} {of[least]:.2f} x ({least}) to {of[most]:.2f} x ({most}) the baseline's {time}. Peak "
            f"memory is {min(memory):.2f} to {max(memory):.2f} x."
        )
        traced = [case.cost.influence_share for case in report.scored if case.cost is not None]
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
    offloaded = [case.label for case in report.done if case.state.offloaded]
    if offloaded:
        said.append(f"Ran out of memory and count with factors offloaded to the CPU: {', '.join(offloaded)}.")
    return said


def comparable(report: Report) -> list[str]:
    """What may be compared with what."""
    said = []
    conditions = report.conditions
    if conditions is not None:
        said.append(
            f"The cases train {conditions.model} with {conditions.batch}, each from the same weights; "
            f"rollout seed {conditions.seed}."
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
        low, high = conditions.load
        said.append(
            f"The machine was shared: load average {low:.0f} to {high:.0f} on {conditions.cores} cores, "
            f"{conditions.jobs} case(s) at a time. Times are ratios within this run only, and rough ones; "
            "the fastest step suffers less than the median, processor time least."
        )
    return said


def time_caption(report: Report) -> str:
    """Over what times were taken."""
    costs = [case.cost for case in report.done if case.cost is not None]
    over = f"Times are of {_span([cost.measured_steps for cost in costs])} step(s) of each case"
    if all(cost.measured_steps < cost.steps for cost in costs):
        over += "; its first is left out, because it pays for what is done once"
    drawn = ""
    if report.conditions is not None and report.conditions.busy:
        drawn = (
            " Clock times stand in the table only: on a machine this busy they say more of it than of a case."
        )
    return f"{over}. Processor time is that of the whole case, its start included.{drawn}"


def _span(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _pair(report: Report, agreement: Agreement) -> str:
    labels = {case.name: case.label for case in report.cases}
    return f"{labels[agreement.one]} and {labels[agreement.other]}"
