from collections.abc import Callable
from typing import Any

import pytest
import torch

from archer.evaluation.summary import Sample

torch.set_num_threads(1)


def make_sample(prompt_index: int = 0, sample: int = 0, **changes: Any) -> Sample:
    fields: dict[str, Any] = {
        "data_source": "math",
        "prompt": "1+1=",
        "ground_truth": "2",
        "response": "\\boxed{2}",
        "answer": "2",
        "correct": True,
        "score": 1.0,
        "tokens": 5,
        "finished": True,
        "failure": None,
        "majority": 1.0,
    }
    return Sample(prompt_index, sample, **(fields | changes))


@pytest.fixture(name="make_sample")
def make_sample_fixture() -> Callable[..., Sample]:
    """`make_sample(prompt_index, sample, correct=False, ...)`."""
    return make_sample
