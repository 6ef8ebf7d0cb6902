"""Random ragged batches, in float64 so that a plain loop is an exact oracle."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

torch.set_num_threads(1)

RaggedMask = Callable[[torch.Generator, int, int], Tensor]


@pytest.fixture(params=range(5))
def rng(request: pytest.FixtureRequest) -> torch.Generator:
    return torch.Generator().manual_seed(request.param)


@pytest.fixture
def ragged_mask() -> RaggedMask:
    """[n, l] bool: responses of random length, 0 and l included, every third with holes as in multi-turn."""

    def make(rng: torch.Generator, n: int, l: int) -> Tensor:  # noqa: E741
        lengths = torch.randint(0, l + 1, (n,), generator=rng)
        lengths[0], lengths[1] = l, 0
        mask = torch.arange(l) < lengths[:, None]
        holes = torch.rand(n, l, generator=rng) < 0.3
        holes[torch.arange(n) % 3 != 0] = False
        return mask & ~holes

    return make
