"""Rewards that fail, and rewards that pay wrong answers."""

from archer.diagnosis.evidence import History, Point, RunFinding, mean
from archer.diagnosis.rules.base import DiagnosisRule, began, percent
from archer.diagnosis.thresholds import Thresholds

UNJUDGED, TRACED_UNJUDGED = "reward/unjudged", "trace/unjudged"
SAMPLED, LENGTH = "perf/sampled_tokens", "response_length/mean"
DOUBTFUL = "trace/doubtful"
RIGHT, WRONG = "critic/rewards/correct/mean", "critic/rewards/wrong/mean"


def outage(history: History, limits: Thresholds) -> RunFinding | None:
    """More than `outage` of a step's responses have no verdict, or more than `unjudged` over some steps.

    Which responses fail is chance, so a single one of those steps may have half of `unjudged`.
    """
    shares = unjudged_shares(history, limits.lasting)
    if not shares or shares[-1].step != history.step:
        return None
    floor = limits.unjudged / 2
    lasting = len(shares) == limits.lasting and all(point.value > floor for point in shares)
    lasting = lasting and mean(shares) > limits.unjudged
    if not lasting and shares[-1].value <= limits.outage:
        return None
    share = mean(shares) if lasting else shares[-1].value
    failed = {name: history.now(f"reward/{name}") or 0.0 for name in ("timeouts", "crashes", "no_opinion")}
    kinds = ", ".join(f"{count:.0f} {name.replace('_', ' ')}" for name, count in failed.items() if count)
    return RunFinding(
        name="reward_outage",
        severity="critical" if share > limits.outage else "warning",
        since=began(shares, lambda value: value > floor),
        step=history.step,
        what=f"{percent(share)} of the responses could not be judged{f' ({kinds})' if kinds else ''}: they "
        "are left out of the loss, and the step learns from the rest.",
        advice="Read the failure of such a response in the viewer, then fix the reward function or its "
        "service; reward.timeout_s and reward.num_workers if it is slow.",
        figures={"unjudged": share, **failed},
        place=history.place(TRACED_UNJUDGED),
    )


def unjudged_shares(history: History, count: int) -> list[Point]:
    """The newest shares of responses without a verdict.

    The metrics count such responses, not all; sampled tokens over the mean length say how many there were.
    """
    traced = history.all(TRACED_UNJUDGED)[-count:]
    if traced and traced[-1].step == history.step:
        return traced
    tokens = {point.step: point.value for point in history.all(SAMPLED)[-count:]}
    lengths = {point.step: point.value for point in history.all(LENGTH)[-count:]}
    found = []
    for point in history.all(UNJUDGED)[-count:]:
        if point.step in tokens and lengths.get(point.step, 0.0) > 0:
            responses = max(1.0, tokens[point.step] / lengths[point.step])
            found.append(Point(point.step, min(1.0, point.value / responses)))
    return found


def pays_wrong(history: History, limits: Thresholds) -> RunFinding | None:
    """Accepted responses lack the expected number, or rejected ones are paid more than accepted ones."""
    last = history.last(DOUBTFUL, limits.lasting)
    if last and all(point.value > limits.doubtful for point in last):
        return RunFinding(
            name="reward_pays_wrong_answers",
            severity="critical",
            since=began(history.all(DOUBTFUL), lambda value: value > limits.doubtful),
            step=history.step,
            what=f"{percent(mean(last))} of the accepted responses do not give the expected number: the "
            "reward pays wrong answers, or the answer is taken from the wrong place.",
            advice="Open one in the viewer and compare its answer with the ground truth; archer data "
            "check-gold FILE tries the verifier on the ground truths.",
            figures={"doubtful": mean(last)},
            place=history.place(DOUBTFUL),
        )
    right, wrong = history.last(RIGHT, limits.lasting), history.last(WRONG, limits.lasting)
    if right and wrong and all(b.value >= a.value for a, b in zip(right, wrong, strict=True)):
        return RunFinding(
            name="reward_pays_wrong_answers",
            severity="critical",
            since=right[0].step,
            step=history.step,
            what=f"Rejected responses are paid {mean(wrong):.3g}, accepted ones {mean(right):.3g}: the "
            "reward and the verdict contradict each other.",
            advice="Compare score and acc of the custom reward function; look for a penalty that outweighs "
            "being right.",
            figures={"reward_of_wrong": mean(wrong), "reward_of_right": mean(right)},
            place=history.place(WRONG),
        )
    return None


RULES = (
    DiagnosisRule(
        "reward_outage", outage, (TRACED_UNJUDGED, UNJUDGED), "metrics.jsonl, or an entropy trace", 1
    ),
    DiagnosisRule(
        "reward_pays_wrong_answers",
        pays_wrong,
        (DOUBTFUL, WRONG),
        "whole numbers as ground truths in a trace of format 2.1, or rewards by verdict in metrics.jsonl",
        partly={DOUBTFUL: "answers are not compared: no whole numbers as ground truths in a trace"},
    ),
)
