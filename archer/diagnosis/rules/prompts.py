"""Groups that teach nothing, and prompts that stand in a step more than once."""

from archer.diagnosis.evidence import History, RunFinding, mean
from archer.diagnosis.rules.base import DiagnosisRule, began, percent
from archer.diagnosis.thresholds import Thresholds

DEGENERATE, ACCURACY, COPIES = "groups/degenerate_share", "reward/accuracy", "trace/duplicates"


def degenerate(history: History, limits: Thresholds) -> RunFinding | None:
    """More than `degenerate` of the groups are all right or all wrong, and the task is not solved."""
    last = history.last(DEGENERATE, limits.lasting)
    if not last or any(point.value <= limits.degenerate for point in last):
        return None
    accuracy = history.last(ACCURACY, limits.lasting)
    if accuracy and mean(accuracy) >= limits.solved:
        return None
    right, wrong = history.now("groups/all_correct") or 0.0, history.now("groups/all_wrong") or 0.0
    first = history.all(DEGENERATE)[: limits.baseline]
    return RunFinding(
        name="degenerate_groups",
        severity="critical" if mean(last) > 0.95 else "warning",
        since=began(history.all(DEGENERATE), lambda value: value > limits.degenerate),
        step=history.step,
        what=f"{percent(mean(last))} of the groups are all right or all wrong, so they teach nothing (in "
        f"this step {right:.0f} all right, {wrong:.0f} all wrong; in the first steps "
        f"{percent(mean(first))}).",
        advice="All wrong: check ground truths and the reward on a response by hand, then take easier "
        "prompts. All right: take harder ones. More responses a prompt, or "
        "algorithm.filter_groups.enable=True, help with both.",
        figures={"degenerate": mean(last), "all_correct": right, "all_wrong": wrong},
        place=history.place(DEGENERATE),
    )


def duplicates(history: History, limits: Thresholds) -> RunFinding | None:
    """More than `duplicates` of a step's groups have a prompt that another group of the step has too."""
    last = history.last(COPIES, limits.lasting)
    if not last or any(point.value <= limits.duplicates for point in last):
        return None
    return RunFinding(
        name="duplicate_prompts",
        severity="warning",
        since=began(history.all(COPIES), lambda value: value > limits.duplicates),
        step=history.step,
        what=f"{percent(mean(last))} of a step's groups have a prompt that another group of the same step "
        "has too: the step learns from fewer problems than it says.",
        advice="Remove copies from the training files (archer data show FILE), or check how "
        "they were joined.",
        figures={"duplicated": mean(last)},
        place=history.place(COPIES),
    )


RULES = (
    DiagnosisRule(
        "degenerate_groups",
        degenerate,
        (DEGENERATE,),
        "several responses a prompt, and metrics.jsonl or an entropy trace with verdicts",
    ),
    DiagnosisRule(
        "duplicate_prompts", duplicates, (COPIES,), "a trace with prompts: trainer.entropy_trace.enable=True"
    ),
)
