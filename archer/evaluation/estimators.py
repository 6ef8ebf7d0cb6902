"""Accuracy estimated from n responses per prompt, c of which are right."""

import math
from collections.abc import Sequence


def pass_at_k(n: int, c: int, k: int) -> float:
    """The probability that k of the n responses, drawn without replacement, hold at least one right one.

    pass@k = 1 - C(n - c, k) / C(n, k), the unbiased estimator of the probability that k fresh responses hold
    a right one (arXiv 2107.03374). Computed as 1 - prod_{i = n-c+1 .. n} (1 - k / i), which stays in range.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, not n={n}, c={c}, k={k}")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def pass_ks(n: int) -> tuple[int, ...]:
    """The k that are reported for n responses: 1, 2, 4, ... and n."""
    powers = [2**i for i in range(n.bit_length()) if 2**i < n]
    return (*powers, n)


def mean(values: Sequence[float]) -> float:
    """The mean of at least one value."""
    return sum(values) / len(values)


def standard_error(values: Sequence[float]) -> float | None:
    """The standard error of the mean of independent values, s / sqrt(N); None for a single value."""
    if len(values) < 2:
        return None
    middle = mean(values)
    variance = sum((value - middle) ** 2 for value in values) / (len(values) - 1)
    return math.sqrt(variance / len(values))
