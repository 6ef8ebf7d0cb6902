"""What a case cost: time and memory from its metrics, and their ratios to the baseline's."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

VOLATILE = ("timing_s/", "perf/", "influence_trace/", "step")
INFLUENCE_PARTS = tuple(f"timing_s/influence_{part}" for part in ("capture", "backward", "solve", "scoring"))
Metrics = dict[str, float]


@dataclass(frozen=True)
class Cost:
    """Seconds are of the steps after the first, which also pays for what is done once."""

    steps: int
    measured_steps: int
    step_s: float
    """Median."""
    fastest_step_s: float
    update_s: float
    """Median."""
    fastest_update_s: float
    influence_share: float
    """Time of influence inside the update over the update's, of the same steps: 0 without tracing."""
    memory_gb: float
    """Peak of the process (CPU) or of its allocations (CUDA), GiB."""
    cpu_s: float
    """Processor time of the whole case, its start included."""
    rows_emitted: int
    """Responses with scores, over all steps."""


@dataclass(frozen=True)
class Ratio:
    """A case's cost over the baseline's."""

    step: float
    fastest_step: float
    update: float
    fastest_update: float
    memory: float
    cpu: float

    @classmethod
    def of(cls, case: Cost, baseline: Cost) -> "Ratio":
        """Divide."""
        return cls(
            step=case.step_s / baseline.step_s,
            fastest_step=case.fastest_step_s / baseline.fastest_step_s,
            update=case.update_s / baseline.update_s,
            fastest_update=case.fastest_update_s / baseline.fastest_update_s,
            memory=case.memory_gb / baseline.memory_gb,
            cpu=case.cpu_s / baseline.cpu_s,
        )


def cost_of(lines: Sequence[Metrics], cpu_s: float) -> Cost | None:
    """Gather the cost of a run from the lines of its metrics and its processor time; None without a step."""
    steps = [line for line in lines if "timing_s/update_actor" in line]
    if not steps:
        return None
    measured = steps[1:] or steps
    step_s = [line["timing_s/step"] for line in measured]
    update_s = [line["timing_s/update_actor"] for line in measured]
    influence_s = sum(line.get(part, 0.0) for line in measured for part in INFLUENCE_PARTS)
    return Cost(
        steps=len(steps),
        measured_steps=len(measured),
        step_s=median(step_s),
        fastest_step_s=min(step_s),
        update_s=median(update_s),
        fastest_update_s=min(update_s),
        influence_share=influence_s / sum(update_s),
        memory_gb=max(line["perf/max_memory_allocated_gb"] for line in steps),
        cpu_s=cpu_s,
        rows_emitted=int(sum(line.get("influence_trace/rows_emitted", 0.0) for line in steps)),
    )


def first_difference(lines: Sequence[Metrics], baseline: Sequence[Metrics]) -> str | None:
    """Where a run stops being the baseline's training, `step 3: actor/pg_loss`; None where it never does.

    Every metric counts but times, memory and those of tracing, to the last digit.
    """
    for ours, theirs in zip(lines, baseline, strict=False):
        for key in sorted(ours.keys() & theirs.keys()):
            if not key.startswith(VOLATILE) and ours[key] != theirs[key]:
                return f"step {int(ours['step'])}: {key}"
    return None
