"""Exact accuracy of the built-in task: the probability of the one right response."""

import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from archer.data.arithmetic import write_steps
from archer.data.config import DataConfig
from archer.evaluation.exact import METRIC, ExactAccuracy, canonical_responses, of_builtin_task
from archer.generation.batch import RolloutLimits
from archer.generation.config import ModelConfig
from archer.generation.device import Compute
from archer.generation.model import SamplingWeights, load_policy, load_tokenizer
from archer.generation.policy import Policy
from archer.generation.requirements import load_dataset
from archer.generation.rollout import Rollout
from archer.generation.sampling import SampleStreams, SamplingParams

MODEL = ModelConfig(path="builtin:tiny_reasoner", enable_gradient_checkpointing=False)


@pytest.fixture(scope="module")
def cpu():
    return Compute(torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(MODEL)


@pytest.fixture(scope="module")
def model(cpu):
    return load_policy(MODEL, cpu)


@pytest.fixture(scope="module")
def prompts(tokenizer):
    data = DataConfig(max_prompt_length=32, max_response_length=48)
    return list(load_dataset(data, tokenizer, ("builtin:arithmetic/val",), 12))


@pytest.fixture
def exact(model, cpu, tokenizer, prompts):
    return ExactAccuracy(prompts, Policy(model, cpu, temperature=1.0), tokenizer, budget=200)


def test_the_right_response_is_the_written_steps_and_the_end_token(tokenizer, prompts):
    responses = canonical_responses(prompts, tokenizer)
    for row, prompt in enumerate(prompts):
        *ids, last = responses.tokens[row][responses.mask[row]].tolist()
        assert tokenizer.decode(ids) == write_steps(prompt.extra_info["a"], prompt.extra_info["b"])
        assert last == tokenizer.eos_token_id


def test_the_probability_is_the_product_over_a_plain_forward_in_float64(model, tokenizer, prompts, exact):
    precise = deepcopy(model).double()
    for prompt, found in zip(prompts, exact.probabilities().tolist(), strict=True):
        text = write_steps(prompt.extra_info["a"], prompt.extra_info["b"])
        answer = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        line = [*prompt.token_ids, *answer]
        with torch.no_grad():
            probabilities = precise(input_ids=torch.tensor([line])).logits[0].softmax(-1)
        expected = math.prod(
            float(probabilities[place - 1, line[place]]) for place in range(len(prompt.token_ids), len(line))
        )
        assert found == pytest.approx(expected, rel=1e-4)


def test_the_share_of_right_samples_is_near_it(model, cpu, tokenizer, prompts, exact):
    """512 samples of one problem at temperature 1: within four binomial standard errors."""
    n, probabilities = 512, exact.probabilities()
    chosen = int((probabilities - 0.5).abs().argmin())  # where sampling is least certain
    prompt, p = prompts[chosen], float(probabilities[chosen])
    assert 0.05 < p < 0.95
    limits = RolloutLimits(48, n, len(prompt.token_ids))
    end = tokenizer.eos_token_id
    rollout = Rollout(SamplingWeights(model, cpu, True), cpu, limits, (end,), tokenizer.pad_token_id, False)
    drawn = rollout.generate([prompt], n, SamplingParams(), SampleStreams.named(0, "exact", first_prompt=0))
    right = write_steps(prompt.extra_info["a"], prompt.extra_info["b"])
    texts = [
        tokenizer.decode(tokens[mask].tolist(), skip_special_tokens=True)
        for tokens, mask in zip(drawn.tokens, drawn.mask, strict=True)
    ]
    share = sum(text == right for text in texts) / n
    assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / n)


def test_the_metric_is_the_mean_and_does_not_depend_on_the_division(model, cpu, tokenizer, prompts, exact):
    policy = Policy(model, cpu, temperature=1.0)
    whole = ExactAccuracy(prompts, policy, tokenizer, budget=100_000)
    assert exact.metrics()[METRIC] == pytest.approx(float(exact.probabilities().mean()))
    torch.testing.assert_close(exact.probabilities(), whole.probabilities(), rtol=1e-4, atol=0)


def test_prompts_of_other_sources_are_left_out(model, cpu, tokenizer, prompts):
    policy = Policy(model, cpu, temperature=1.0)
    other = replace(prompts[0], data_source="math")
    without_operands = replace(prompts[0], extra_info={})
    assert not of_builtin_task(other) and not of_builtin_task(without_operands)
    none = ExactAccuracy([other, without_operands], policy, tokenizer, budget=100)
    assert none.metrics() == {} and len(none.probabilities()) == 0
    mixed = ExactAccuracy([other, *prompts[1:3]], policy, tokenizer, budget=100)
    alone = ExactAccuracy(prompts[1:3], policy, tokenizer, budget=100)
    assert mixed.metrics() == alone.metrics()
