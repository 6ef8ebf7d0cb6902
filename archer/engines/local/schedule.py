"""Learning-rate schedule over training steps."""

import math
from collections.abc import Callable

from archer.config.model import OptimConfig


def lr_factor(config: OptimConfig, total_steps: int) -> Callable[[int], float]:
    """Return step -> factor on the peak learning rate, for step = 0 ... total_steps - 1.

    Linear warm-up over w steps, (step + 1) / (w + 1), so that no step has rate 0; then constant, or a cosine
    from 1 to m = min_lr_ratio:  m + (1 - m) / 2 * (1 + cos(2 pi * cycles * progress)).
    """
    warmup = config.lr_warmup_steps
    if warmup < 0:
        warmup = int(config.lr_warmup_steps_ratio * total_steps)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        if config.lr_scheduler_type == "constant":
            return 1.0
        progress = (step - warmup) / max(1, total_steps - warmup)
        wave = 0.5 * (1.0 + math.cos(2.0 * math.pi * config.num_cycles * progress))
        return config.min_lr_ratio + (1.0 - config.min_lr_ratio) * wave

    return factor
