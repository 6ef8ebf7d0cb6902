"""Random streams named by what they are for, so that a resumed run draws what the first one would have."""

import hashlib

import torch


def stream(device: torch.device, *name: int | str) -> torch.Generator:
    """Return a generator whose seed is a hash of `name`, e.g. (seed, "rollout", step, batch)."""
    generator = torch.Generator(device=device)
    generator.manual_seed(stream_seed(*name))
    return generator


def stream_seed(*name: int | str) -> int:
    """Return a 63-bit seed that depends on every part of `name` and on nothing else."""
    digest = hashlib.sha256("/".join(map(str, name)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
