"""Steps of small made-up batches, shared by the tests of the trace room."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from archer.trace.schema import TraceStep


def make_batch(rows: int = 4, width: int = 7, seed: int = 0, influence: bool = True) -> dict[str, Any]:
    """Arguments of `TraceStep.from_batch`: padded to `width`, the longest response one shorter."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, width, rows)
    lengths[0] = width - 1
    mask = np.arange(width) < lengths[:, None]
    batch: dict[str, Any] = {
        "entropies": rng.gamma(1.0, 1.0, (rows, width)).astype(np.float32),
        "response_mask": mask,
        "responses": rng.integers(0, 50, (rows, width)),
        "response_index": np.arange(rows) + 10,
        "log_probs": -rng.gamma(1.0, 1.0, (rows, width)).astype(np.float32),
        "reward": rng.random(rows),
        "accepted": rng.random(rows) < 0.5,
        "group_id": np.arange(rows) // 2,
        "uid": [f"prompt-{row // 2}-é" for row in range(rows)],
        "prompts": [rng.integers(0, 50, row % 3).tolist() for row in range(rows)],
        "sample_index": np.arange(rows) * 3,
        "unjudged": np.zeros(rows, dtype=bool),
        "judgement": ['{"detail": "expected 42"}'] + [""] * (rows - 1),
        "data_source": ["gsm8k"] * rows,
        "ground_truth": [f"{row // 2}" for row in range(rows)],
        "extracted_answer": ["é" * row for row in range(rows)],
        "reason": [f"expected {row // 2}, found é" for row in range(rows)],
        "truncated": np.arange(rows) % 2 == 0,
        "seed": np.arange(rows) + 2**40,
        "rollout_log_probs": -rng.gamma(1.0, 1.0, (rows, width)).astype(np.float32),
        "ratio": rng.gamma(10.0, 0.1, (rows, width)).astype(np.float32),
        "clipped": rng.integers(-1, 2, (rows, width)),
        "loss_weight": np.full((rows, width), 1 / 16, dtype=np.float32),
        "credit": rng.random((rows, width), dtype=np.float32),
    }
    if influence:
        batch["influence"] = rng.normal(size=(rows, width))
        batch["advantage"] = rng.normal(size=(rows, width))
    return batch


@pytest.fixture
def batch() -> Callable[..., dict[str, Any]]:
    return make_batch


@pytest.fixture
def step() -> Callable[..., TraceStep]:
    return lambda **options: TraceStep.from_batch(**make_batch(**options))
