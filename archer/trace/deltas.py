"""How `rollout_log_probs` stands in a step file: as its distance from `log_probs`, which is small.

Sampler and training give nearly the same log-prob, so the float16 patterns of the two differ in their lowest
bits only. As int16 difference of the patterns they compress to half, and come back bit for bit:

    delta = bits(rollout) - bits(train)   mod 2^16
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

NAME = "rollout_log_probs"
BASE = "log_probs"
STORED = "rollout_log_probs_delta"
"""int16 [N, L] in a step file; files that hold `rollout_log_probs` itself are read, too."""


def encoded(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays as they are written."""
    if NAME not in arrays or BASE not in arrays:
        return dict(arrays)
    delta = arrays[NAME].view(np.int16) - arrays[BASE].view(np.int16)
    return {(STORED if name == NAME else name): delta if name == NAME else arrays[name] for name in arrays}


def decoded(
    delta: NDArray[np.int16],  # [N, L]
    base: NDArray[np.float16],  # [N, L]
) -> NDArray[np.float16]:  # [N, L]
    """Return what was encoded."""
    return (base.view(np.int16) + delta).view(np.float16)
