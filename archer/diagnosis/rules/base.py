"""What a rule is: a pure function over the steps so far."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from archer.diagnosis.evidence import History, Point, RunFinding
from archer.diagnosis.thresholds import Thresholds

Check = Callable[[History, Thresholds], RunFinding | None]


@dataclass(frozen=True)
class DiagnosisRule:
    """A check of the newest step against those before it; None says that nothing is wrong."""

    name: str
    check: Check
    reads: tuple[str, ...]  # figures of which it needs one
    wanted: str  # where those come from, for who lacks them
    points: int = 3  # steps with the figure before it can say anything
    partly: Mapping[str, str] = field(default_factory=dict)  # figure -> what is not checked without it

    def blind(self, history: History) -> str | None:
        """Why it cannot check the run; None: it can."""
        most = max(len(history.all(name)) for name in self.reads)
        if most == 0:
            return f"needs {self.wanted}"
        return f"needs {self.points} steps that have it, there are {most}" if most < self.points else None

    def gaps(self, history: History) -> list[str]:
        """What a rule that can look still does not see."""
        return [f"{self.name}: {text}" for name, text in self.partly.items() if not history.all(name)]


def began(points: list[Point], holds: Callable[[float], bool]) -> int:
    """First step of the unbroken row of points, up to the newest, for which something holds."""
    step = points[-1].step
    for point in reversed(points):
        if not holds(point.value):
            break
        step = point.step
    return step


def percent(share: float) -> str:
    """`37 %`; a share that would be rounded to nothing keeps a digit."""
    return f"{share:.0%}" if share == 0 or share >= 0.01 else f"{share:.1%}"
