import pytest
import torch
from transformers import PreTrainedModel

from archer.verify.forward import exact_copy
from archer.verify.sample import Sample, draw_sample, embedded_model

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model() -> PreTrainedModel:
    return embedded_model()


@pytest.fixture(scope="session")
def precise(model: PreTrainedModel) -> PreTrainedModel:
    return exact_copy(model)


@pytest.fixture(scope="session")
def sample(model: PreTrainedModel) -> Sample:
    return draw_sample(model, prompts=3, responses=6, seed=0)


@pytest.fixture(scope="session")
def small(sample: Sample) -> Sample:
    return sample.narrowed(prompts=2, responses=3)
