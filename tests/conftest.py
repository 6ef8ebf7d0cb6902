"""Settings of the whole suite: no network, no oversubscribed cores. Tiny models and an oracle for all rooms.

The models are random; the oracle looks at one response at a time, in float64.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"


import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import settings as hypothesis_settings
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from archer.data.prompts import Prompt
from archer.generation.batch import Responses
from archer.generation.device import Compute
from archer.generation.judge import Judged
from archer.rewards import RewardResult

torch.set_num_threads(1)
hypothesis_settings.register_profile("suite", deadline=None)  # a busy machine is no defect
hypothesis_settings.load_profile("suite")

VOCABULARY = 50


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the slow files: one of them left to the end would keep the other cores waiting."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def _qwen2(tied: bool, seed: int = 0, **changes: float) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        initializer_range=0.25,  # large enough that the distributions are far from uniform
        **changes,
    )
    return Qwen2ForCausalLM(config).eval()


def _gemma2(initializer_range: float = 0.5, cap: float = 5.0) -> Gemma2ForCausalLM:
    """Logits are capped after the head, and every other layer attends to a window of 6 tokens."""
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        final_logit_softcapping=cap,
        sliding_window=6,
        initializer_range=initializer_range,
        pad_token_id=0,
        attn_implementation="eager",
    )
    return Gemma2ForCausalLM(config).eval()


@pytest.fixture
def qwen2() -> Callable[..., Qwen2ForCausalLM]:
    """`qwen2(tied=True, seed=0)`: a fresh model of 2 layers and 50 tokens."""
    return _qwen2


@pytest.fixture
def gemma2() -> Callable[..., Gemma2ForCausalLM]:
    return _gemma2


@pytest.fixture(params=["qwen2-tied", "qwen2-untied", "gemma2"])
def any_model(request: pytest.FixtureRequest) -> PreTrainedModel:
    if request.param == "gemma2":
        return _gemma2()
    return _qwen2(tied=request.param == "qwen2-tied")


@pytest.fixture
def compute() -> Compute:
    return Compute(torch.device("cpu"), torch.float32)


def _prompts(lengths: Sequence[int], seed: int = 0) -> list[Prompt]:
    rng = torch.Generator().manual_seed(seed)
    return [
        Prompt(i, (), tuple(torch.randint(VOCABULARY, (length,), generator=rng).tolist()), "test", "1", {})
        for i, length in enumerate(lengths)
    ]


@pytest.fixture
def make_prompts() -> Callable[..., list[Prompt]]:
    """`make_prompts([3, 5], seed=0)`: prompts of random tokens."""
    return _prompts


@pytest.fixture
def make_responses() -> Callable[..., Responses]:
    """`make_responses(prompt_lengths, response_lengths, seed=0)`: responses of random tokens."""

    def make(prompt_lengths: Sequence[int], response_lengths: Sequence[int], seed: int = 0) -> Responses:
        rng = torch.Generator().manual_seed(seed + 1000)
        lengths = torch.tensor(response_lengths)
        shape = (len(lengths), int(lengths.max()))
        mask = torch.arange(shape[1]) < lengths[:, None]
        return Responses(
            prompts=tuple(_prompts(prompt_lengths, seed)),
            tokens=torch.randint(VOCABULARY, shape, generator=rng),  # padding holds any token
            mask=mask,
            log_probs=torch.where(mask, -torch.rand(shape, generator=rng), 0.0),
            finished=torch.rand(shape[0], generator=rng) < 0.5,
        )

    return make


@pytest.fixture
def judged() -> Callable[..., Judged]:
    """`judged(responses, groups, lost=())`: verdicts alternate; lost rows have none."""

    def make(responses: Responses, groups: Sequence[int], lost: Sequence[int] = ()) -> Judged:
        results = [RewardResult.of_verdict(row % 2 == 0) for row in range(len(responses))]
        for row in lost:
            results[row] = RewardResult.of_failure("timeout")
        return Judged(responses, torch.tensor(groups), tuple(results), torch.zeros(len(responses)))

    return make


@dataclass(frozen=True)
class Oracle:
    """A float64 copy of a model that reads one unpadded response at a time and keeps all logits."""

    model: PreTrainedModel
    temperature: float

    def distributions(self, responses: Responses, row: int) -> tuple[Tensor, list[int]]:
        """[length, V] log-probabilities of the positions that emit a response, and its tokens."""
        prompt = list(responses.prompts[row].token_ids)
        response = responses.tokens[row][responses.mask[row]].tolist()
        logits = self.model(input_ids=torch.tensor([prompt + response]), use_cache=False).logits[0]
        emitting = logits[len(prompt) - 1 : len(prompt) + len(response) - 1]
        return (emitting / self.temperature).log_softmax(-1), response

    def token_stats(self, responses: Responses) -> tuple[Tensor, Tensor]:
        """[N, L] log-probs of the tokens and [N, L] entropies, zero outside the mask."""
        log_probs, entropies = [], []
        for row in range(len(responses)):
            table, response = self.distributions(responses, row)
            log_probs.append(torch.stack([table[t, token] for t, token in enumerate(response)]))
            entropies.append(torch.stack([-(line.exp() * line).sum() for line in table]))
        pad = torch.nn.utils.rnn.pad_sequence
        return pad(log_probs, batch_first=True), pad(entropies, batch_first=True)


@pytest.fixture
def oracle() -> Callable[..., Oracle]:
    """`oracle(model, temperature=1.0)`."""

    def make(model: PreTrainedModel, temperature: float = 1.0) -> Oracle:
        return Oracle(copy.deepcopy(model).double().eval(), temperature)

    return make
