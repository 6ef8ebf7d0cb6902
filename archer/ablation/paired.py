"""Grids with seeds: each run's accuracy while it learns, and differences between cases, seed by seed.

Runs of one seed see the same prompts in the same order and sample from the same streams, so that their
difference is far less noisy than either of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from archer.ablation.comparison import Metrics, read_training, training_of
from archer.ablation.folder import AblationFolder, CaseState, Plan
from archer.evaluation.exact import METRIC as EXACT

LEVEL = 0.8  # of accuracy; the steps that a run takes to it are counted
EXACTLY_UP_TO = 16  # pairs whose signs are all tried
DRAWN_SIGNS = 1 << 16

QUANTITIES = ("curve", "final", "steps_to_level", "entropy", "step_s")
"""What of a run is compared, as its columns of `cases.csv` are called."""


@dataclass(frozen=True)
class Learning:
    """How one run learnt."""

    accuracy: dict[int, float]
    """Held-out accuracy at the steps at which it was measured; 0: before training."""
    steps: int
    entropy: float
    """Mean over the steps of the policy's entropy, in nats."""
    step_s: float
    """Median seconds of a step, the first left out."""

    @property
    def curve(self) -> float:
        """Mean accuracy over the steps 1 ... N, linear between measurements."""
        return float(self.every_step()[1:].mean())

    @property
    def final(self) -> float:
        """Accuracy where it was measured last."""
        return self.accuracy[max(self.accuracy)]

    @property
    def steps_to_level(self) -> float:
        """Steps until accuracy reaches `LEVEL`, linear between measurements; N + 1 where it does not."""
        values = self.every_step()
        reached = np.nonzero(values >= LEVEL)[0]
        if not len(reached):
            return float(self.steps + 1)
        at = int(reached[0])
        if at == 0:
            return 0.0
        return float(at - (values[at] - LEVEL) / (values[at] - values[at - 1]))

    @property
    def reached(self) -> bool:
        """Whether accuracy reached `LEVEL`."""
        return self.steps_to_level <= self.steps

    def every_step(self) -> NDArray[np.float64]:
        """[N + 1] accuracy after step 0 ... N."""
        at = sorted(self.accuracy)
        return np.interp(range(self.steps + 1), at, [self.accuracy[step] for step in at])

    def value(self, quantity: str) -> float:
        """One of `QUANTITIES`."""
        values = {
            "curve": self.curve,
            "final": self.final,
            "steps_to_level": self.steps_to_level,
            "entropy": self.entropy,
            "step_s": self.step_s,
        }
        return values[quantity]


@dataclass(frozen=True)
class Difference:
    """One case minus another, over the seeds that both have."""

    mean: float
    stderr: float
    """s / sqrt(n) of the differences; NaN for a single seed."""
    higher: int
    """Seeds at which the first is higher."""
    n: int
    p: float
    """Of no difference, two-sided: the share of all choices of signs whose mean is as far from 0."""


@dataclass(frozen=True)
class SeededCase:
    """One run of the grid."""

    name: str
    variant: str
    seed: int
    own: tuple[str, ...]
    state: CaseState
    learning: Learning | None
    """Of a run that is done."""

    def row(self) -> dict[str, str | float]:
        """The run as a line of `cases.csv`."""
        row: dict[str, str | float] = {"case": self.variant, "seed": self.seed, "status": self.state.status}
        row["overrides"] = " ".join(self.own)
        if self.state.attempts:
            last = self.state.attempts[-1]
            row |= {"wall_s": last.seconds, "cpu_s": round(last.cpu_seconds, 2)}
        if self.learning is not None:
            row |= {quantity: self.learning.value(quantity) for quantity in QUANTITIES}
        return row


@dataclass(frozen=True)
class SeededComparison:
    """A grid with seeds, compared."""

    plan: Plan
    cases: tuple[SeededCase, ...]
    measure: str
    """Which metric accuracy is."""
    training: str
    """Model and batch of the runs that are done; empty where none is."""

    @property
    def variants(self) -> tuple[str, ...]:
        """What was trained, in the grid's order."""
        return tuple(dict.fromkeys(case.variant for case in self.cases))

    def of(self, variant: str) -> dict[int, Learning]:
        """The runs of a variant that are done, by seed."""
        return {c.seed: c.learning for c in self.cases if c.variant == variant and c.learning is not None}

    def difference(self, variant: str, other: str, quantity: str) -> Difference | None:
        """`variant` minus `other`; None where they share no seed."""
        ours, theirs = self.of(variant), self.of(other)
        shared = [seed for seed in ours if seed in theirs]
        values = [ours[seed].value(quantity) - theirs[seed].value(quantity) for seed in shared]
        return paired(values) if values else None

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """What is compared: every variant with the baseline, then with its control."""
        baseline = self.plan.baseline
        first = [(v, baseline) for v in self.variants if baseline is not None and v != baseline]
        return [*first, *(pair for pair in self.plan.controls if set(pair) <= set(self.variants))]

    def rows(self) -> list[dict[str, str | float]]:
        """Every comparison as a line of `paired.csv`."""
        found = []
        for variant, other in self.pairs:
            for quantity in QUANTITIES:
                difference = self.difference(variant, other, quantity)
                if difference is not None:
                    row: dict[str, str | float] = {"case": variant, "minus": other, "quantity": quantity}
                    row |= {"mean": difference.mean, "stderr": difference.stderr, "p": difference.p}
                    found.append(row | {"higher": difference.higher, "seeds": difference.n})
        return found


def paired(values: Sequence[float]) -> Difference:
    """Return what is told of at least one difference."""
    x = np.asarray(values, np.float64)
    stderr = float(x.std(ddof=1) / np.sqrt(len(x))) if len(x) > 1 else float("nan")
    return Difference(float(x.mean()), stderr, int((x > 0).sum()), len(x), sign_flip_p(x))


def sign_flip_p(x: NDArray[np.float64]) -> float:  # x: [n]
    """P(|Σ ε_i x_i| >= |Σ x_i|) over independent signs ε_i = ±1, as if each pair had been named at random.

    All 2^n of them up to n = 16, so that p is exact; beyond, that many drawn ones.
    """
    n = len(x)
    if n <= EXACTLY_UP_TO:
        signs = 1 - 2 * ((np.arange(1 << n)[:, None] >> np.arange(n)) & 1)
    else:
        signs = np.random.default_rng(0).choice((-1, 1), (DRAWN_SIGNS, n))
    found = abs(x.sum())
    slack = 1e-12 * np.abs(x).sum()  # sums in another order
    return float((np.abs(signs @ x) >= found - slack).mean())


def compare_seeds(path: Path) -> SeededComparison:
    """Read the folder of a grid with seeds."""
    folder = AblationFolder(path)
    plan = folder.plan()
    states = {name: folder.read(name) for name in plan.seeds}
    runs = {n: folder.run(n, s.offloaded) for n, s in states.items() if s.status == "done"}
    lines = {name: read_training(run, before=True) for name, run in runs.items()}
    measure = measure_of(lines)
    cases = []
    for name, (variant, seed) in plan.seeds.items():
        learning = learning_of(lines[name], measure) if name in lines else None
        cases.append(SeededCase(name, variant, seed, plan.own[name], states[name], learning))
    training = " or ".join(dict.fromkeys(training_of(run) for run in runs.values()))
    return SeededComparison(plan, tuple(cases), measure, training)


def measure_of(runs: Mapping[str, Sequence[Metrics]]) -> str:
    """Exact accuracy where every run has it; else avg@n over samples."""
    exact = all(any(EXACT in line for line in lines) for lines in runs.values())
    return EXACT if exact else "val-core/<source>/acc/mean@<n>"


def learning_of(lines: Sequence[Metrics], measure: str) -> Learning | None:
    """How a run learnt, from the lines of its metrics; None where accuracy was never measured."""
    trained = [line for line in lines if line["step"] > 0]
    accuracy = {int(line["step"]): value for line in lines if (value := _accuracy(line, measure)) is not None}
    if not accuracy or not trained:
        return None
    entropies = [line["actor/entropy"] for line in trained if "actor/entropy" in line]
    seconds = [line["timing_s/step"] for line in trained[1:] or trained]
    entropy = sum(entropies) / len(entropies) if entropies else float("nan")
    return Learning(accuracy, int(trained[-1]["step"]), entropy, median(seconds))


def _accuracy(line: Metrics, measure: str) -> float | None:
    """That of a line; of several sources their mean."""
    if measure == EXACT:
        return line.get(EXACT)
    found = [v for k, v in line.items() if k.startswith("val-core/") and "/acc/mean@" in k]
    return sum(found) / len(found) if found else None
