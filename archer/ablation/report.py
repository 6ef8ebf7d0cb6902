"""All that a grid's folder tells, gathered for the writers."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from archer.ablation.agreement import Agreement, agreements
from archer.ablation.cost import Cost, Metrics, Ratio, cost_of, first_difference
from archer.ablation.grid import short
from archer.ablation.rollouts import ScoredRun
from archer.ablation.state import AblationFolder, CaseState
from archer.ablation.statistics import ScoreStatistics
from archer.errors import ArcherError
from archer.tracking.jsonl import read_metrics


@dataclass(frozen=True)
class CaseReport:
    """One case; the figures of one that is not done are None."""

    name: str
    own: tuple[str, ...]
    state: CaseState
    cost: Cost | None
    ratio: Ratio | None
    scores: ScoreStatistics | None
    differs_at: str | None
    """Where its training stops being the baseline's; None where it never does, or there is none."""

    @property
    def label(self) -> str:
        """The name as a reader sees it."""
        return self.name.replace("-", " · ")


@dataclass(frozen=True)
class Conditions:
    """What the figures were measured under."""

    model: str
    seed: str
    batch: str
    jobs: int
    cores: int
    load: tuple[float, float]
    """Smallest and largest load average at the end of a case."""

    @property
    def busy(self) -> bool:
        """Whether other work shared the machine, so that times are not to be taken at their word."""
        return self.jobs > 1 or self.load[1] > self.cores


@dataclass(frozen=True)
class Report:
    """A grid, compared."""

    grid: str
    baseline: str | None
    shared: tuple[str, ...]
    cases: tuple[CaseReport, ...]
    agreements: tuple[Agreement, ...]
    conditions: Conditions | None

    @property
    def done(self) -> tuple[CaseReport, ...]:
        """The cases with figures."""
        return tuple(case for case in self.cases if case.cost is not None)

    @property
    def scored(self) -> tuple[CaseReport, ...]:
        """The cases with scores."""
        return tuple(case for case in self.cases if case.scores is not None)

    @property
    def broken(self) -> tuple[CaseReport, ...]:
        """The cases that failed."""
        return tuple(case for case in self.cases if case.state.status == "failed")


def build_report(path: Path) -> Report:
    """Read a grid's folder."""
    folder = AblationFolder(path)
    plan = folder.plan()
    states = {name: folder.case(name).read() for name in plan.cases}
    runs = {name: folder.case(name).run(state.offloaded) for name, state in states.items()}
    done = [name for name, state in states.items() if state.status == "done"]
    metrics = {name: _metrics(runs[name]) for name in done}
    scores = {name: ScoredRun(runs[name]) for name in done}
    costs = {name: cost_of(lines, states[name].attempts[-1].cpu_seconds) for name, lines in metrics.items()}
    cases = []
    for name, state in states.items():
        cost, reference = costs.get(name), costs.get(plan.baseline or "")
        differs = None
        if name in metrics and plan.baseline in metrics:
            differs = first_difference(metrics[name], metrics[plan.baseline])
        cases.append(
            CaseReport(
                name=name,
                own=tuple(map(short, plan.own[name])),
                state=state,
                cost=cost,
                ratio=None if cost is None or reference is None else Ratio.of(cost, reference),
                scores=ScoreStatistics.of(scores[name].all_scores()) if name in scores else None,
                differs_at=differs,
            )
        )
    return Report(
        grid=plan.grid,
        baseline=plan.baseline,
        shared=_shared(plan.cases, plan.own),
        cases=tuple(cases),
        agreements=tuple(agreements({name: steps for name, steps in scores.items() if steps})),
        conditions=_conditions([runs[name] for name in done], [states[name] for name in done])
        if done
        else None,
    )


def _metrics(run: Path) -> list[Metrics]:
    file = run / "metrics.jsonl"
    if not file.is_file():
        raise ArcherError(f"{run} is a finished case without metrics.jsonl; run the case again.")
    return [line for line in read_metrics(file) if line["step"] > 0]


def _shared(cases: dict[str, tuple[str, ...]], own: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The overrides that are no case's own: the grid's and the command line's."""
    first = next(iter(cases))
    others = [override for override in cases[first] if override not in own[first]]
    return tuple({override.split("=", 1)[0]: override for override in others}.values())


def _conditions(runs: list[Path], states: list[CaseState]) -> Conditions:
    configs = [OmegaConf.load(run / "config.yaml") for run in runs]
    loads = [state.attempts[-1].load for state in states]
    return Conditions(
        model=_each([config.actor_rollout_ref.model.path for config in configs]),
        seed=_each([config.actor_rollout_ref.rollout.seed for config in configs]),
        batch=_each([_batch(config) for config in configs]),
        jobs=max(state.attempts[-1].jobs for state in states),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        load=(min(loads), max(loads)),
    )


def _batch(config: Any) -> str:
    prompts, responses = config.data.train_batch_size, config.actor_rollout_ref.rollout.n
    return f"{prompts} prompts x {responses} responses a step"


def _each(values: list[object]) -> str:
    """The value that all cases have, or the several ones."""
    return " or ".join(dict.fromkeys(str(value) for value in values))
