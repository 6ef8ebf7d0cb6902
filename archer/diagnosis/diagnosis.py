"""Steps in, findings out: the same for a finished run and for one that is training."""

from dataclasses import replace

from archer.diagnosis.evidence import History, RunFinding, StepEvidence
from archer.diagnosis.rules import RULES
from archer.diagnosis.thresholds import Thresholds

ORDER = ("critical", "warning")


class Diagnosis:
    """What the rules said so far. Each rule speaks once: the first time that it holds."""

    def __init__(self, limits: Thresholds | None = None) -> None:
        self.limits = limits or Thresholds()
        self.history = History()
        self._found: dict[str, RunFinding] = {}
        self.holding: frozenset[str] = frozenset()  # names of the rules that hold at the newest step

    def add(self, evidence: StepEvidence) -> list[RunFinding]:
        """Take the next step; returns what is found for the first time."""
        self.history.append(evidence)
        new, holding = [], set()
        for rule in RULES:
            finding = rule.check(self.history, self.limits)
            if finding is None:
                continue
            holding.add(rule.name)
            if rule.name not in self._found:
                new.append(finding)
            known = self._found.setdefault(rule.name, finding)
            self._found[rule.name] = replace(known, until=evidence.step)
        self.holding = frozenset(holding)
        return new

    @property
    def findings(self) -> list[RunFinding]:
        """Everything found, the worst first, then by the step it began at."""
        return sorted(self._found.values(), key=lambda found: (ORDER.index(found.severity), found.since))

    def not_checked(self) -> dict[str, str]:
        """Rules that could not look at this run, and why."""
        found = {rule.name: rule.blind(self.history) for rule in RULES}
        return {name: reason for name, reason in found.items() if reason is not None}

    def gaps(self) -> list[str]:
        """What rules that could look did not see."""
        return [gap for rule in RULES if rule.blind(self.history) is None for gap in rule.gaps(self.history)]
