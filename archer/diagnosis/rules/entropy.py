"""Entropy that collapses or explodes, and the tokens that carry it.

The last steps are compared with the first ones of the run, and with those a few steps ago: a slow decline
and a sudden break are both found. Entropy that falls or rises while accuracy rises is learning.
"""

from collections import defaultdict

from archer.diagnosis.evidence import History, Point, RunFinding, mean
from archer.diagnosis.rules.base import DiagnosisRule
from archer.diagnosis.thresholds import Thresholds

ENTROPY, ACCURACY, SCORE = "actor/entropy", "reward/accuracy", "critic/score/mean"
SHOWN_TOKENS = 5
NEEDED = 6  # three steps to compare with and three that lasted


def collapse(history: History, limits: Thresholds) -> RunFinding | None:
    """Entropy fell to `entropy_collapse` of what it was, and accuracy did not rise by `accuracy_gain`."""
    last = history.last(ENTROPY, limits.lasting)
    if not last or _accuracy(history, last) >= limits.solved:
        return None
    for before in _earlier(history, limits):
        ratio = mean(last) / max(mean(before), 1e-12)
        gain = _accuracy(history, last) - _accuracy(history, before)
        if ratio < limits.entropy_collapse and gain < limits.accuracy_gain:
            level = limits.entropy_collapse * mean(before)
            since = next((p.step for p in _after(history, before) if p.value < level), last[0].step)
            tokens = changed_tokens(history, before, falling=True)
            return RunFinding(
                name="entropy_collapse",
                severity="critical",
                since=since,
                step=history.step,
                what=f"Entropy fell from {mean(before):.3g} to {mean(last):.3g} nats a token, and accuracy "
                f"did not rise with it ({gain:+.1%}): the policy stopped exploring."
                f"{_carried(tokens, 'lost')}",
                advice="Raise clip_ratio_high or entropy_coeff, lower the learning rate, or go back to a "
                "checkpoint before this step.",
                figures={"entropy_before": mean(before), "entropy_now": mean(last), "accuracy_gain": gain},
                place=history.place(ENTROPY),
                tokens=tokens,
            )
    return None


def explosion(history: History, limits: Thresholds) -> RunFinding | None:
    """Entropy rose to `entropy_explosion` times what it was and above the first steps, without a gain."""
    last = history.last(ENTROPY, limits.lasting)
    if not last:
        return None
    first = history.all(ENTROPY)[: limits.baseline]
    for before in _earlier(history, limits):
        level = limits.entropy_explosion * mean(before)
        gain = _accuracy(history, last) - _accuracy(history, before)
        rose = mean(last) > max(level, mean(first)) and min(p.value for p in last) > mean(first)
        if rose and gain < limits.accuracy_gain:
            since = next((p.step for p in _after(history, before) if p.value > level), last[0].step)
            tokens = changed_tokens(history, before, falling=False)
            return RunFinding(
                name="entropy_explosion",
                severity="critical",
                since=since,
                step=history.step,
                what=f"Entropy rose from {mean(before):.3g} to {mean(last):.3g} nats a token: the policy "
                f"drifts towards random text.{_carried(tokens, 'gained')}",
                advice="Lower the learning rate or entropy_coeff, check the sign of a custom loss, add a "
                "KL to the reference, or go back to a checkpoint before this step.",
                figures={"entropy_before": mean(before), "entropy_now": mean(last)},
                place=history.place(ENTROPY),
                tokens=tokens,
            )
    return None


def changed_tokens(history: History, before: list[Point], *, falling: bool) -> tuple[str, ...]:
    """Tokens whose part of the mean entropy changed most between the steps before and the newest one."""
    facts = [history.traces[point.step].entropy_of for point in before if point.step in history.traces]
    now = history.traces.get(history.step)
    if not facts or now is None:
        return ()
    change: dict[str, float] = defaultdict(float)
    for parts in facts:
        for token, part in parts.items():
            change[token] += part / len(facts)
    for token, part in now.entropy_of.items():
        change[token] -= part
    signed = {token: value if falling else -value for token, value in change.items()}
    ranked = sorted(signed, key=lambda token: -signed[token])
    return tuple(token for token in ranked[:SHOWN_TOKENS] if signed[token] > 0)


def _earlier(history: History, limits: Thresholds) -> list[list[Point]]:
    """The first steps of the run, and those `back` steps ago; neither overlaps the last ones."""
    points = history.all(ENTROPY)
    end = len(points) - limits.lasting
    found = [points[: limits.baseline]] if end >= limits.baseline else []
    recent = points[max(0, len(points) - limits.lasting - limits.back) :][: limits.lasting]
    return [*found, recent] if end > limits.baseline else found


def _after(history: History, before: list[Point]) -> list[Point]:
    return [point for point in history.all(ENTROPY) if point.step > before[-1].step]


def _accuracy(history: History, points: list[Point]) -> float:
    """Mean accuracy of the steps of some points; the score where no accuracy is known, 0 without both."""
    for name in (ACCURACY, SCORE):
        found = [known for point in points if (known := history.at(name, point.step)) is not None]
        if found:
            return mean(found)
    return 0.0


def _carried(tokens: tuple[str, ...], how: str) -> str:
    shown = ", ".join(repr(token) for token in tokens)
    return f" Tokens that {how} most of it: {shown}." if tokens else ""


WANTED = "entropies: metrics.jsonl of a run, or its entropy trace"
RULES = (
    DiagnosisRule("entropy_collapse", collapse, (ENTROPY,), WANTED, NEEDED),
    DiagnosisRule("entropy_explosion", explosion, (ENTROPY,), WANTED, NEEDED),
)
