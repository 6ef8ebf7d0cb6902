"""Where the local engine computes: device, number format and CPU threads."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from archer.errors import ArcherError
from archer.generation.config import ComputeConfig


@dataclass(frozen=True)
class Compute:
    """Device of the run and the number format of its matrix products (weights stay float32)."""

    device: torch.device
    dtype: torch.dtype

    @property
    def mixed(self) -> bool:
        """Whether products run in a narrower format than the weights."""
        return self.dtype != torch.float32

    def autocast(self) -> torch.autocast:
        """Context in which a forward pass runs in `dtype`."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.mixed)

    def peak_memory_gb(self) -> float:
        """Largest memory of this process so far, on the device that holds the model, in GiB."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**30
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def set_up(config: ComputeConfig) -> Compute:
    """Choose device and format, and set the number of CPU threads.

    There are never more threads than cores this process may really use: with more, small models decode many
    times slower, because every product waits for a thread that has no core.
    """
    cores = available_cores()
    torch.set_num_threads(min(config.threads or cores, cores))
    available = torch.cuda.is_available()
    if config.device == "cuda" and not available:
        raise ArcherError("engine.device=cuda, but torch sees no CUDA device. Use engine.device=cpu or auto.")
    device = torch.device("cuda" if available and config.device != "cpu" else "cpu")
    if config.dtype == "auto":
        return Compute(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    return Compute(device, getattr(torch, config.dtype))


def available_cores() -> int:
    """Return how many cores this process may use: its affinity, and its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.is_file():
        limit, period = quota.read_text().split()
        if limit != "max":
            cores = min(cores, max(1, int(limit) // int(period)))
    return max(1, cores)
