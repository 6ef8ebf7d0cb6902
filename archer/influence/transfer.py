"""Copies between the program and a GPU that keep neither waiting."""

from __future__ import annotations

import torch
from torch import Tensor

SMALL = 1 << 16  # bytes


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy from the CPU to the device without waiting for the work it has still to do.

    CUDA copies a small tensor aside at once; a large one it can only read later where it is pinned.
    """
    if device.type != "cuda":
        return tensor.to(device)
    if tensor.nbytes > SMALL:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
