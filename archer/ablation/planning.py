"""From a grid and the command line to runs whose configuration is checked before the first one starts."""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from archer.ablation.grid import Grid
from archer.config.compose import compose
from archer.config.root import TrainConfig
from archer.errors import ArcherError

OWNED = (
    "trainer.default_local_dir",
    "trainer.influence_trace.output_dir",
    "trainer.entropy_trace.output_dir",
)
OFFLOAD = "trainer.influence_trace.grad_offload_to_cpu=true"


@dataclass(frozen=True)
class PlannedCase:
    """A case with all its overrides, in the order in which they apply."""

    name: str
    own: tuple[str, ...]
    overrides: tuple[str, ...]
    config: TrainConfig

    @property
    def total_steps(self) -> int | None:
        """Steps it will train; None where the length of the data decides."""
        return self.config.trainer.total_training_steps

    @property
    def offloading_may_help(self) -> bool:
        """Whether keeping token factors in CPU memory would change anything."""
        knobs = self.config.trainer.influence_trace
        return knobs.enable and not knobs.grad_offload_to_cpu


def plan_cases(grid: Grid, extra: Sequence[str], config_dir: Path | None) -> tuple[PlannedCase, ...]:
    """Compose every case: shared overrides, the case's own, then `extra` of the command line."""
    planned = []
    for case in grid.cases:
        overrides = (*grid.shared, *case.own, *extra)
        for override in overrides:
            if override.split("=", 1)[0].lstrip("+~") in OWNED:
                raise ArcherError(
                    f"case {case.name}: {override} cannot be set: every case has a folder of its own below "
                    "--out, where its traces lie too."
                )
        try:
            config = compose(overrides, config_dir)
        except ArcherError as error:
            raise ArcherError(f"case {case.name} cannot be configured: {error}") from error
        planned.append(PlannedCase(case.name, case.own, overrides, config))
    return tuple(planned)


def choose(cases: Sequence[PlannedCase], only: Sequence[str]) -> tuple[PlannedCase, ...]:
    """The cases that `only` names, by name or by pattern (`*-identity`); all of them where it is empty."""
    patterns = [part for given in only for part in given.split(",") if part]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(case.name, pattern) for case in cases):
            raise ArcherError(
                f"--only {pattern}: no case is called that. Cases: {', '.join(c.name for c in cases)}."
            )
    return tuple(
        case for case in cases if not patterns or any(fnmatch.fnmatchcase(case.name, p) for p in patterns)
    )
