import pytest
import torch
from transformers import PreTrainedModel

from archer.verify.capture import exact_copy
from archer.verify.sample import VerificationSample, draw_sample

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def drawn() -> tuple[PreTrainedModel, VerificationSample]:
    return draw_sample(prompts=3, responses=6, seed=0)


@pytest.fixture(scope="session")
def model(drawn) -> PreTrainedModel:
    return drawn[0]


@pytest.fixture(scope="session")
def precise(model: PreTrainedModel) -> PreTrainedModel:
    return exact_copy(model)


@pytest.fixture(scope="session")
def sample(drawn) -> VerificationSample:
    return drawn[1]


@pytest.fixture(scope="session")
def small(sample: VerificationSample) -> VerificationSample:
    return sample.narrowed(prompts=2, responses=3)
