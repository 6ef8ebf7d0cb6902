"""The sampler and the training forward disagree about the same tokens."""

from archer.diagnosis.evidence import History, RunFinding, mean
from archer.diagnosis.rules.base import DiagnosisRule, began
from archer.diagnosis.thresholds import Thresholds

K3, PROBS = "rollout_corr/k3_kl", "training/rollout_probs_diff_mean"


def mismatch(history: History, limits: Thresholds) -> RunFinding | None:
    """KL(rollout, training) by k3 above `mismatch_kl`, or mean |p - p'| above `mismatch_probs`."""
    for name, limit, unit in (
        (K3, limits.mismatch_kl, "KL of {:.3g} nats a token"),
        (PROBS, limits.mismatch_probs, "mean difference of {:.3g} in a token's probability"),
    ):
        last = history.last(name, limits.lasting)
        if last and all(point.value > limit for point in last):
            return RunFinding(
                name="rollout_mismatch",
                severity="critical" if mean(last) > 5 * limit else "warning",
                since=_above(history, name, limit),
                step=history.step,
                what="The sampler and the training forward give the same tokens different probabilities: "
                f"{unit.format(mean(last))}. The update learns from responses of another policy.",
                advice="Check that the sampler gets the new weights after every step, and that temperature, "
                "precision and chat template are the same on both sides; or set "
                "algorithm.rollout_correction.rollout_is=token.",
                figures={name: mean(last), "limit": limit},
                place=history.place(name),
            )
    return None


def _above(history: History, name: str, limit: float) -> int:
    return began(history.all(name), lambda value: value > limit)


RULES = (
    DiagnosisRule(
        "rollout_mismatch",
        mismatch,
        (K3, PROBS),
        "log-probs of the sampler: metrics.jsonl, or a trace of format 2.1",
    ),
)
