"""What a model makes of its head's output y before it is a logit z: nothing, a factor, or a soft cap.

Cohere multiplies by a factor, Granite divides by one, Gemma 2 caps: z = cap tanh(y / cap). The gradient of
log π with respect to y is that with respect to z times dz / dy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archer.errors import ArcherError

CAPS = ("final_logit_softcapping", "logits_soft_cap")
"""What configurations call a cap. Logits that are still small do not show it."""

ROUNDINGS = 16  # by which the logits that are made here may differ from the model's


@dataclass(frozen=True)
class LogitMap:
    """z = factor y, or z = cap tanh(y / cap)."""

    factor: float = 1.0
    cap: float | None = None

    @property
    def plain(self) -> bool:
        """Whether logits are the head's output."""
        return self == LogitMap()

    def logits(self, y: Tensor) -> Tensor:
        """z, shaped like y."""
        return self.factor * y if self.cap is None else self.cap * torch.tanh(y / self.cap)

    def slope(self, z: Tensor) -> Tensor | float:
        """dz / dy: the factor, or 1 - (z / cap)^2, shaped like z."""
        return self.factor if self.cap is None else 1 - (z / self.cap).square()

    @classmethod
    def found(cls, model: Any, y: Tensor, z: Tensor) -> LogitMap:
        """The map of a model that made the logits z [n, V] of its head's output y [n, V]."""
        if torch.equal(y.to(z.dtype), z):
            return cls()
        settings = model.config.get_text_config().to_dict()
        cap = next((settings[name] for name in CAPS if settings.get(name)), None)
        rounding = max(torch.finfo(x.dtype).eps for x in (y, z))
        y, z = y.detach().double(), z.detach().double()
        found = cls(cap=float(cap)) if cap else cls(factor=float((y * z).sum() / y.square().sum()))
        if not bool((found.logits(y) - z).abs().max() <= ROUNDINGS * rounding * z.abs().max()):
            raise ArcherError(
                f"token credit reads the influence of the head, and {type(model).__name__} turns its head's "
                "output into logits in a way that is not known: choose another "
                "algorithm.token_credit.mode, influence for example"
            )
        return found
