"""What every tracker is given and does."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class RunInfo:
    """The run that is tracked."""

    project: str
    experiment: str
    run_id: str  # the same for every start of one run folder
    folder: Path
    config: dict[str, Any]
    first_step: int = 1  # that will be logged; later ones of a killed run are void


class Tracker(Protocol):
    """Takes the metrics of each step."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record the metrics of one step."""

    def close(self) -> None:
        """Write out whatever is still buffered."""
