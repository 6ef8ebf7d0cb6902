"""A custom reward function with everything that Archer asks of one.

    archer train reward.custom_reward_function.path=examples/custom_reward.py ...

Only `compute_score` is required; verl calls it the same way. The task here is to name a colour between
<colour> and </colour>.
"""

import re
from typing import Any

COLOURS = {"red", "green", "blue", "gray", "grey"}
SPELLINGS = {"grey": "gray"}


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any], bonus: float = 0.1
) -> dict[str, float]:
    """Called in a worker process, within reward.timeout_s. `bonus` comes from reward.custom_kwargs."""
    answer = extract_answer(solution_str)
    right = answer is not None and same_answer(answer, ground_truth)
    return {
        "score": float(right) + bonus * (answer is not None),
        "acc": right,
        "answered": answer is not None,
    }


def check_ground_truth(ground_truth: Any) -> str | None:
    """Called for every row before training: say what is wrong with a ground truth, or return None."""
    return None if ground_truth in COLOURS else f"expected one of {', '.join(sorted(COLOURS))}"


def extract_answer(response: str) -> str | None:
    """The final answer that majority@n counts, or None."""
    found = re.findall(r"<colour>\s*(\w+)\s*</colour>", response)
    return found[-1].lower() if found else None


def same_answer(answer: str, other: str) -> bool:
    """Whether two answers that differ as text are the same all the same; called in a worker process."""
    return SPELLINGS.get(answer, answer) == SPELLINGS.get(other, other)
