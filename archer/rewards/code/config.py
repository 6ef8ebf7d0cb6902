"""How programs are judged."""

import math
from dataclasses import dataclass

from archer.errors import ArcherError
from archer.rewards.code.inside.layers import ProgramLimits

_OUTPUT_BYTES = 16 * 2**20


@dataclass(frozen=True)
class CodeConfig:
    """Limits of a program and what its tests are worth."""

    test_timeout_s: float = 6.0
    """Seconds for one test: a run on an input, or a call."""
    total_timeout_s: float = 60.0
    """Seconds for all tests of one response."""
    memory_mb: int = 1024
    """Address space of a program, in MiB."""
    max_tests: int | None = None
    """Use at most so many tests of a problem, always the same ones; None for all."""
    partial_credit: bool = False
    """Score the share of tests passed instead of 1 for all and 0 otherwise. Right is still: all passed."""
    allow_weak_sandbox: bool = False
    """Run programs also where neither namespaces nor filters can keep them from files and the network."""

    def __post_init__(self) -> None:
        for name in ("test_timeout_s", "total_timeout_s"):
            seconds = getattr(self, name)
            if not (math.isfinite(seconds) and seconds > 0):
                raise ArcherError(f"reward.code.{name} must be a positive number of seconds, not {seconds}.")
        if self.memory_mb < 64:
            raise ArcherError(
                f"reward.code.memory_mb={self.memory_mb} is too little for Python: give at least 64."
            )
        if self.max_tests is not None and self.max_tests < 1:
            raise ArcherError(
                f"reward.code.max_tests must be at least 1, or null for all tests, not {self.max_tests}."
            )

    @property
    def limits(self) -> ProgramLimits:
        """What the sandbox enforces."""
        return ProgramLimits(memory_bytes=self.memory_mb * 2**20, output_bytes=_OUTPUT_BYTES)
