"""Wall-clock time of the phases of a step."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Timings:
    """`with timings("gen"): ...` adds to the seconds of that phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time a phase; on CUDA its queued work counts too."""
        started = time.perf_counter()
        yield
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self.seconds[name] += time.perf_counter() - started

    def metrics(self) -> dict[str, float]:
        """Return the phases in verl's names."""
        return {f"timing_s/{name}": value for name, value in self.seconds.items()}
