"""Responses that are cut off, and responses that end in a loop."""

from archer.diagnosis.evidence import History, RunFinding, mean
from archer.diagnosis.rules.base import DiagnosisRule, began, percent
from archer.diagnosis.thresholds import Thresholds

LENGTH, CUT, LOOPING = "response_length/mean", "response_length/clip_ratio", "trace/looping"


def truncation(history: History, limits: Thresholds) -> RunFinding | None:
    """More than `truncated` of the responses are cut off, or clearly more than before while they grow."""
    last = history.last(CUT, limits.lasting)
    if not last:
        return None
    earlier = history.all(CUT)[: -limits.lasting][: limits.baseline]
    length, first = history.last(LENGTH, limits.lasting), history.all(LENGTH)[: limits.baseline]
    growth = mean(length) / max(mean(first), 1.0) if length and first else 1.0
    usual = mean(earlier) if earlier else 0.0
    level = limits.truncated
    if earlier and growth > limits.longer:
        level = min(level, usual + limits.truncated_rise)
    if any(point.value <= level for point in last):
        return None
    grew = (
        f" Their mean length grew from {mean(first):.0f} to {mean(length):.0f} tokens."
        if growth > limits.longer
        else ""
    )
    return RunFinding(
        name="truncated_responses",
        severity="critical" if mean(last) > 0.5 else "warning",
        since=began(history.all(CUT), lambda value: value > level),
        step=history.step,
        what=f"{percent(mean(last))} of the responses are cut off at the length limit.{grew} A response that "
        "is cut off has no answer and counts as wrong.",
        advice="Raise data.max_response_length, or make length cost something "
        "(reward.reward_kwargs.overlong_buffer_cfg); look at a cut response first: it may be a loop.",
        figures={"truncated": mean(last), "truncated_before": usual, "length_growth": growth},
        place=history.place(CUT),
    )


def repetition(history: History, limits: Thresholds) -> RunFinding | None:
    """More than `looping` of the responses end in a text repeated three times or more."""
    last = history.last(LOOPING, limits.lasting)
    if not last or any(point.value <= limits.looping for point in last):
        return None
    return RunFinding(
        name="repetition",
        severity="critical" if mean(last) > 0.5 else "warning",
        since=began(history.all(LOOPING), lambda value: value > limits.looping),
        step=history.step,
        what=f"{percent(mean(last))} of the responses end by repeating themselves.",
        advice="Check that the model may end its responses (end-of-sequence token, chat template) and that "
        "the reward does not pay for length; lower the learning rate, or go back to an earlier checkpoint.",
        figures={"looping": mean(last)},
        place=history.place(LOOPING),
    )


RULES = (
    DiagnosisRule("truncated_responses", truncation, (CUT,), "metrics.jsonl, or a trace of format 2.1"),
    DiagnosisRule("repetition", repetition, (LOOPING,), "a trace: trainer.entropy_trace.enable=True"),
)
