"""What happened in a step: counts that explain an empty trace, and times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

import torch

TIMED = ("capture", "backward", "solve", "scoring")


@dataclass
class Counters:
    """Sums over one step, named as the trainer logs them."""

    rows_emitted: int = 0
    selected_prompts: int = 0
    selected_responses: int = 0
    skipped_all_accepted: int = 0
    skipped_all_rejected: int = 0
    debug_skipped_by_cap: int = 0
    debug_micro_batches: int = 0
    debug_captured_tokens: int = 0
    debug_weight_versions: int = 0
    debug_portions: int = 0
    debug_forward_hook_calls: int = 0
    debug_forward_without_grad_calls: int = 0
    debug_forward_recomputed_calls: int = 0
    debug_forward_set_v_calls: int = 0
    debug_input_projections: int = 0
    debug_output_grad_hook_calls: int = 0
    debug_output_grad_set_u_calls: int = 0
    debug_rescaled_micro_batches: int = 0
    debug_second_backwards: int = 0
    debug_second_backwards_with_parameters: int = 0
    debug_nonfinite_groups: int = 0
    debug_cross_rank_groups: int = 0
    debug_dual_solves: int = 0
    debug_primal_solves: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TIMED, 0.0))

    def metrics(self) -> dict[str, float]:
        """Counts as `influence_trace/<name>`, times as `timing_s/influence_<part>`."""
        counts = {
            f"influence_trace/{c.name}": float(self.__dict__[c.name]) for c in fields(self) if c.type == "int"
        }
        return counts | {f"timing_s/influence_{part}": spent for part, spent in self.seconds.items()}


class Stopwatch:
    """Adds wall time to the counters; with `wait` the device is waited for, so that times are its own."""

    def __init__(self, counters: Counters, device: torch.device, wait: bool) -> None:
        self.counters, self.device = counters, device
        self.wait = wait and device.type == "cuda"

    @contextmanager
    def timing(self, part: str) -> Iterator[None]:
        """Add the time spent inside to one of the TIMED parts."""
        begin = self.now()
        try:
            yield
        finally:
            self.add(part, begin)

    def now(self) -> float:
        """The time, for `add`: lighter than `timing`, for hooks that fire hundreds of times in a step."""
        if self.wait:
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def add(self, part: str, begin: float) -> None:
        """Add the time since `begin`."""
        self.counters.seconds[part] += self.now() - begin
