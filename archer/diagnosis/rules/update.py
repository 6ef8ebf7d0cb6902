"""The update itself: KL that runs away, tokens clipped, weights that do not move."""

from itertools import pairwise

from archer.diagnosis.evidence import History, Point, RunFinding, mean
from archer.diagnosis.rules.base import DiagnosisRule, began, percent
from archer.diagnosis.thresholds import Thresholds

KL_LOSS, KL_REWARD, UPDATE_KL = "actor/kl_loss", "actor/reward_kl_penalty", "actor/ppo_kl"
CLIPPED, DUAL = "actor/pg_clipfrac", "actor/pg_clipfrac_lower"
RATE, GRADIENT, SKIPPED, MIXED = "actor/lr", "actor/grad_norm", "actor/skipped_updates", "groups/mixed"


def kl_runaway(history: History, limits: Thresholds) -> RunFinding | None:
    """KL to the reference above `kl`, or between sampled and updated policy above `update_kl`."""
    for name, limit, other in (
        (KL_LOSS, limits.kl, "the reference model"),
        (KL_REWARD, limits.kl, "the reference model"),
        (UPDATE_KL, limits.update_kl, "the policy that sampled, within one step"),
    ):
        last = history.last(name, limits.lasting)
        if last and all(abs(point.value) > limit for point in last):
            distance = sum(abs(point.value) for point in last) / len(last)
            return RunFinding(
                name="kl_runaway",
                severity="critical",
                since=_beyond(history, name, limit),
                step=history.step,
                what=f"The policy is {distance:.3g} nats a token away from {other}.",
                advice="Lower the learning rate or ppo_epochs, or raise kl_loss_coef; then go back to a "
                "checkpoint before this step.",
                figures={name: distance, "limit": limit},
                place=history.place(name),
            )
    return None


def _beyond(history: History, name: str, limit: float) -> int:
    return began(history.all(name), lambda value: abs(value) > limit)


def clipping(history: History, limits: Thresholds) -> RunFinding | None:
    """More than `clipped` of the tokens are held by the clip of the ratio."""
    last = history.last(CLIPPED, limits.lasting)
    if not last or any(point.value <= limits.clipped for point in last):
        return None
    figures = {"clipped": mean(last)}
    if (dual := history.now(DUAL)) is not None:
        figures["dual_clipped"] = dual
    return RunFinding(
        name="clip_fraction",
        severity="warning",
        since=began(history.all(CLIPPED), lambda value: value > limits.clipped),
        step=history.step,
        what=f"{percent(mean(last))} of the tokens are clipped: they have left the bounds on the ratio, and "
        "most of the batch no longer teaches.",
        advice="Lower the learning rate or ppo_epochs, or take larger mini-batches.",
        figures=figures,
        place=history.place(CLIPPED),
    )


def dead_update(history: History, limits: Thresholds) -> RunFinding | None:
    """Learning rate or gradient of practically zero while there is something to learn, or updates skipped."""
    taught = {point.step for point in history.all(MIXED)[-limits.lasting :] if point.value > 0}
    known = bool(history.all(MIXED))

    def lasts(name: str, dead: float) -> list[Point]:
        points = history.last(name, limits.lasting)
        return points if points and all(point.value <= dead for point in points) else []

    rate, gradient = lasts(RATE, limits.dead_lr), lasts(GRADIENT, limits.dead_gradient)
    skipped = history.last(SKIPPED, limits.lasting)
    if rate and not _decays(history.all(RATE), limits.dead_lr):
        what = f"The learning rate is {mean(rate):.1e}: the weights do not move."
        advice = "Check actor_rollout_ref.actor.optim: lr, warm-up steps and the length of the schedule."
        points, name, dead = rate, RATE, limits.dead_lr
    elif gradient and (not known or all(point.step in taught for point in gradient)):
        what = f"The gradient's norm is {mean(gradient):.1e} although groups are mixed: nothing is learnt."
        advice = (
            "Check a custom loss or advantage for values that are always zero or do not depend on the policy."
        )
        points, name, dead = gradient, GRADIENT, limits.dead_gradient
    elif skipped and all(point.value >= 1 for point in skipped):
        what = "Every step has updates that were skipped because the gradient was not finite."
        advice = "Lower the learning rate; look at rewards and loss for values that are not finite."
        return _dead(history, what, advice, skipped, SKIPPED, began(history.all(SKIPPED), lambda v: v >= 1))
    else:
        return None
    return _dead(history, what, advice, points, name, began(history.all(name), lambda value: value <= dead))


def _decays(rates: list[Point], dead: float) -> bool:
    """The end of a schedule: the rate was alive and still falls from step to step."""
    falls = all(later.value < earlier.value for earlier, later in pairwise(rates[-3:]))
    return falls and any(point.value > dead for point in rates)


def _dead(history: History, what: str, advice: str, points: list[Point], name: str, since: int) -> RunFinding:
    return RunFinding(
        name="dead_learning",
        severity="critical",
        since=since,
        step=history.step,
        what=what,
        advice=advice,
        figures={name: mean(points)},
        place=history.place(name),
    )


RULES = (
    DiagnosisRule(
        "kl_runaway",
        kl_runaway,
        (KL_LOSS, KL_REWARD, UPDATE_KL),
        "a KL in metrics.jsonl, or the ratios of a trace of format 2.1",
        partly={KL_LOSS: "no KL to a reference is measured (actor_rollout_ref.actor.use_kl_loss=True does)"},
    ),
    DiagnosisRule("clip_fraction", clipping, (CLIPPED,), "metrics.jsonl, or a trace of format 2.1"),
    DiagnosisRule(
        "dead_learning", dead_update, (RATE, GRADIENT), "metrics.jsonl: a trace has no learning rate"
    ),
)
