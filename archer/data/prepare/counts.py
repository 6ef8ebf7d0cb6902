"""What preparing met: rows in, kept, left out and why, lengths and kinds of answers."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

FIRST_FEW = 5


@dataclass
class Counts:
    """Counters that grow while rows are read; they survive a kill as JSON."""

    read: int = 0
    kept: int = 0
    duplicates: int = 0
    conflicts: int = 0  # duplicates whose answer differs from the one kept
    invalid: Counter[str] = field(default_factory=Counter)  # reason -> rows
    first_invalid: list[str] = field(default_factory=list)  # where the first few are, and what is wrong
    kinds: Counter[str] = field(default_factory=Counter)  # kind of answer -> rows kept
    prompt_chars: int = 0  # sum over kept rows
    shortest: int | None = None
    longest: int | None = None

    def refuse(self, where: str, reason: str, detail: str = "") -> None:
        """Count a row that cannot be used."""
        self.invalid[reason] += 1
        if len(self.first_invalid) < FIRST_FEW:
            more = f" ({detail[:160]})" if detail else ""
            self.first_invalid.append(f"{where}: {reason}{more}")

    def keep(self, prompt_chars: int, kind: str) -> None:
        """Count a row that goes into the output."""
        self.kept += 1
        self.kinds[kind] += 1
        self.prompt_chars += prompt_chars
        self.shortest = prompt_chars if self.shortest is None else min(self.shortest, prompt_chars)
        self.longest = prompt_chars if self.longest is None else max(self.longest, prompt_chars)

    def to_json(self) -> dict[str, Any]:
        """The counts as plain JSON."""
        return vars(self) | {"invalid": dict(self.invalid), "kinds": dict(self.kinds)}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Counts":
        """The counts that `to_json` gave."""
        counters = {name: Counter(stored[name]) for name in ("invalid", "kinds")}
        return cls(**{**stored, **counters})
