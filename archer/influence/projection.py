"""Random projections of activations and gradients, the same on every device and in every run."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor
from torch.nn import functional as F

ALIGNMENT = 8  # columns: 16 bytes of 16-bit numbers for tensor cores, a vector of float32 for a CPU


def projected_dims(
    d_in: int, d_out: int, factor: int, max_vector_sum: int, max_hessian_dim: int
) -> tuple[int, int]:
    """k = max(1, d // factor) on both sides, then the larger side shrinks until both caps hold.

    Caps: k_in + k_out <= max_vector_sum and k_in * k_out <= max_hessian_dim; a cap <= 0 is none. Neither side
        falls
    below 1.
    """
    k_in, k_out = max(1, d_in // factor), max(1, d_out // factor)
    while max(k_in, k_out) > 1 and (0 < max_vector_sum < k_in + k_out or 0 < max_hessian_dim < k_in * k_out):
        if k_in > k_out:
            k_in -= 1
        else:
            k_out -= 1
    return k_in, k_out


class Projection:
    """P = signs / sqrt(k) with independent +-1 signs, so that E[P^T P] = I whatever the shape.

    `__call__` multiplies by the signs alone and leaves `scale` = 1/sqrt(k) to the scoring: signs are exact in
    every floating-point type, a rounded 1/sqrt(k) would reweight modules against each other.
    """

    def __init__(self, key: str, d: int, k: int) -> None:
        self.key, self.d, self.k = key, d, k
        self.scale = k**-0.5
        self._cast: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def __call__(self, x: Tensor) -> Tensor:
        """signs x: [n, d] -> [n, k], with the columns of zeros that `signs` brings."""
        return F.linear(x, self.signs(x.device, x.dtype))

    def signs(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """[k, d] of +-1, drawn on the CPU from a generator seeded by the key.

        Lines of zeros follow where that makes the product faster, see `computed_columns`.
        """
        where = (device, dtype)
        if where not in self._cast:
            generator = torch.Generator().manual_seed(stable_seed(self.key))
            bits = torch.randint(0, 2, (self.k, self.d), generator=generator, dtype=torch.int8)
            zeros = computed_columns(self.k, device, dtype) - self.k
            self._cast[where] = F.pad(2 * bits - 1, (0, 0, 0, zeros)).to(device, dtype)
        return self._cast[where]

    def matrix(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """P itself, [k, d] on the CPU."""
        return self.signs(torch.device("cpu"), dtype)[: self.k] * self.scale


class NoProjection:
    """P = I: the exact factors, for small models and for tests."""

    scale = 1.0

    def __init__(self, d: int) -> None:
        self.d = self.k = d

    def __call__(self, x: Tensor) -> Tensor:
        """A copy of x: keeping x itself would keep the activation alive."""
        return x.clone()

    def matrix(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """P itself, [d, d] on the CPU."""
        return torch.eye(self.d, dtype=dtype)


AnyProjection = Projection | NoProjection


def computed_columns(k: int, device: torch.device, dtype: torch.dtype) -> int:
    """How many columns are computed for k that are wanted.

    In 16-bit formats on CUDA other numbers than multiples of 8 take a slow, old kernel. In float32 on a CPU
    12 columns take a third longer than 16; up to 8 there is nothing to gain.
    """
    on_tensor_cores = device.type == "cuda" and dtype.itemsize == 2
    in_vectors = device.type == "cpu" and dtype == torch.float32 and k > ALIGNMENT
    return k + -k % ALIGNMENT if on_tensor_cores or in_vectors else k


def stable_seed(key: str) -> int:
    """A 63-bit seed from a text, the same in every process (Python's own hash is salted)."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1
