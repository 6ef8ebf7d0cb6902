"""The cases of a grid, compared: what each cost against the baseline, and the scores it gave."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

from omegaconf import OmegaConf

from archer.ablation.folder import AblationFolder, CaseState, Plan
from archer.ablation.grid import short
from archer.ablation.scores import Agreement, agreements, scored_steps, sound_steps, trace_statistics
from archer.errors import ArcherError
from archer.trace.reader import TraceReader, is_trace
from archer.tracking.jsonl import read_metrics

VOLATILE = ("timing_s/", "perf/", "influence_trace/", "step")
INFLUENCE_PARTS = tuple(f"timing_s/influence_{part}" for part in ("capture", "backward", "solve", "scoring"))
RATIOS = {  # to the baseline -> of what
    "step_ratio_median": "step_s_median",
    "step_ratio_fastest": "step_s_fastest",
    "update_ratio_median": "update_s_median",
    "update_ratio_fastest": "update_s_fastest",
    "cpu_ratio": "cpu_s",
    "peak_memory_ratio": "peak_memory_gib",
}
Metrics = dict[str, float]


@dataclass(frozen=True)
class CaseResult:
    """One case. Its figures have the names of the columns of `cases.csv`; what it does not have is absent."""

    name: str
    own: tuple[str, ...]
    state: CaseState
    cost: dict[str, float]
    """Of a case that is done, with its ratios to the baseline."""
    scores: dict[str, float]
    """Of a case that is done and was traced."""
    differs_at: str | None
    """Where its training stops being the baseline's; None where it never does, or there is none."""

    def row(self) -> dict[str, str | float]:
        """The case as a line of `cases.csv`."""
        row: dict[str, str | float] = {"case": self.name, "status": self.state.status}
        row |= {"overrides": " ".join(self.own), "offloaded_after_out_of_memory": int(self.state.offloaded)}
        if self.state.attempts:
            last = self.state.attempts[-1]
            row |= {"starts": last.starts, "wall_s": last.seconds}
            row |= {"jobs": last.jobs, "load_average": last.load}
        row |= self.cost
        if "cpu_ratio" in self.cost:
            row["same_training_as_baseline"] = int(self.differs_at is None)
        return row | self.scores


@dataclass(frozen=True)
class Comparison:
    """A grid, compared."""

    plan: Plan
    cases: tuple[CaseResult, ...]
    agreements: tuple[Agreement, ...]
    training: str
    """Model, batch and seed of the cases that are done; empty where none is."""
    cores: int

    @property
    def jobs(self) -> int:
        """Cases that ran at a time."""
        return max(case.state.attempts[-1].jobs for case in self.with_status("done"))

    @property
    def load(self) -> tuple[float, float]:
        """Smallest and largest load average at the end of a case."""
        found = [case.state.attempts[-1].load for case in self.with_status("done")]
        return min(found), max(found)

    @property
    def busy(self) -> bool:
        """Whether other work shared the machine, so that clock times say more of it than of a case."""
        return self.jobs > 1 or self.load[1] > self.cores

    def with_status(self, status: str) -> tuple[CaseResult, ...]:
        """The cases that are done, or failed."""
        return tuple(case for case in self.cases if case.state.status == status)

    @property
    def scored(self) -> tuple[CaseResult, ...]:
        """The cases with scores."""
        return tuple(case for case in self.cases if case.scores)

    def correlations(self) -> list[list[float | None]]:
        """Between the scored cases: over steps above the diagonal, within prompts below it."""
        found = {(pair.case, pair.other): pair for pair in self.agreements}
        names = [case.name for case in self.scored]
        table: list[list[float | None]] = [[None] * len(names) for _ in names]
        for (i, one), (j, other) in combinations(enumerate(names), 2):
            pair = found[one, other]
            table[i][j], table[j][i] = pair.spearman_per_step, pair.spearman_per_prompt
        return table


def compare_cases(path: Path) -> Comparison:
    """Read a grid's folder."""
    folder = AblationFolder(path)
    plan = folder.plan()
    states = {name: folder.read(name) for name in plan.cases}
    done = {name: state for name, state in states.items() if state.status == "done"}
    runs = {name: folder.run(name, state.offloaded) for name, state in done.items()}
    metrics = {name: read_training(run) for name, run in runs.items()}
    folders = {name: run / "influence_trace" for name, run in runs.items()}
    traces = {name: TraceReader(trace) for name, trace in folders.items() if is_trace(trace)}
    costs = {name: cost_of(metrics[name], state.attempts[-1].cpu_seconds) for name, state in done.items()}
    baseline = plan.baseline or ""
    cases = []
    for name, state in states.items():
        cost, differs = costs.get(name, {}), None
        if cost and costs.get(baseline):
            cost = cost | ratios(cost, costs[baseline])
            differs = first_difference(metrics[name], metrics[baseline])
        spread = trace_statistics(traces[name]) if name in traces else {}
        cases.append(CaseResult(name, tuple(map(short, plan.own[name])), state, cost, spread, differs))
    scored = [name for name, trace in traces.items() if sound_steps(trace)]
    pairs = agreements(scored, scored_steps(traces))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    training = " or ".join(dict.fromkeys(training_of(run, seed=True) for run in runs.values()))
    return Comparison(plan, tuple(cases), tuple(pairs), training, cores)


def cost_of(lines: Sequence[Metrics], cpu_s: float) -> dict[str, float]:
    """What a run cost, from the lines of its metrics and its processor time; empty without a step.

    Seconds are of the steps after the first, which also pays for what is done once. Influence's share is its
    time inside the update over the update's, of the same steps. Memory is the peak of the process (CPU) or of
    its allocations (CUDA). Rows are responses with scores, over all steps.
    """
    steps = [line for line in lines if "timing_s/update_actor" in line]
    if not steps:
        return {}
    measured = steps[1:] or steps
    step_s = [line["timing_s/step"] for line in measured]
    update_s = [line["timing_s/update_actor"] for line in measured]
    influence_s = sum(line.get(part, 0.0) for line in measured for part in INFLUENCE_PARTS)
    return {
        "steps": len(steps),
        "measured_steps": len(measured),
        "step_s_median": median(step_s),
        "step_s_fastest": min(step_s),
        "update_s_median": median(update_s),
        "update_s_fastest": min(update_s),
        "influence_share_of_update": influence_s / sum(update_s),
        "cpu_s": cpu_s,
        "peak_memory_gib": max(line["perf/max_memory_allocated_gb"] for line in steps),
        "rows_emitted": int(sum(line.get("influence_trace/rows_emitted", 0.0) for line in steps)),
    }


def ratios(cost: dict[str, float], baseline: dict[str, float]) -> dict[str, float]:
    """What a case cost over what the baseline cost."""
    return {ratio: cost[of] / baseline[of] for ratio, of in RATIOS.items()}


def first_difference(lines: Sequence[Metrics], baseline: Sequence[Metrics]) -> str | None:
    """Where a run stops being the baseline's training, `step 3: actor/pg_loss`; None where it never does.

    Every metric counts but times, memory and those of tracing, to the last digit.
    """
    for ours, theirs in zip(lines, baseline, strict=False):
        for key in sorted(ours.keys() & theirs.keys()):
            if not key.startswith(VOLATILE) and ours[key] != theirs[key]:
                return f"step {int(ours['step'])}: {key}"
    return None


def read_training(run: Path, before: bool = False) -> list[Metrics]:
    """The metrics of every step of a finished run; `before`: those before training, step 0, too."""
    file = run / "metrics.jsonl"
    if not file.is_file():
        raise ArcherError(f"{run} is a finished case without metrics.jsonl; run the case again.")
    return [line for line in read_metrics(file) if line["step"] > 0 or before]


def training_of(run: Path, seed: bool = False) -> str:
    """What was trained: model and batch, and the seed where it is asked for."""
    config = OmegaConf.load(run / "config.yaml")
    rollout, prompts = config.actor_rollout_ref.rollout, config.data.train_batch_size
    batch = f"{prompts} prompts x {rollout.n} responses a step"
    return f"{config.actor_rollout_ref.model.path}, {batch}" + (
        f", rollout seed {rollout.seed}" if seed else ""
    )
