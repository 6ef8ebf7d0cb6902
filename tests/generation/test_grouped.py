"""Decoding on a CPU where query heads share key heads."""

import copy

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from archer.generation import grouped
from archer.generation.device import Compute
from archer.generation.model import SamplingWeights


def model_with(heads: int, key_heads: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
def decoded(model: LlamaForCausalLM, padded: bool) -> torch.Tensor:
    """Logits of a prompt of seven and of three tokens behind it, for three rows."""
    ids = torch.arange(21).view(3, 7)
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[0, :3] = 0
    cache = DynamicCache(config=model.config)
    logits = []
    for more in (ids, *torch.full((3, 3, 1), 5)):
        if len(logits):
            mask = torch.cat([mask, torch.ones(3, 1, dtype=torch.long)], 1)
        given = {"attention_mask": mask} if padded else {}
        out = model(input_ids=more, past_key_values=cache, use_cache=True, **given)
        logits.append(out.logits[:, -1])
    return torch.stack(logits)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("heads", "key_heads"), [(6, 2), (6, 6), (6, 1)])
def test_logits_are_those_of_stock_attention(heads, key_heads, padded):
    stock = model_with(heads, key_heads)
    other = copy.deepcopy(stock)
    grouped.use_grouped_attention(other)
    torch.testing.assert_close(decoded(other, padded), decoded(stock, padded), atol=1e-6, rtol=1e-5)


def test_keys_are_not_repeated_for_one_position(monkeypatch):
    other = model_with(6, 2)
    grouped.use_grouped_attention(other)
    stock = []
    real = grouped.sdpa_attention_forward
    monkeypatch.setattr(
        grouped,
        "sdpa_attention_forward",
        lambda *args, **more: stock.append(args[1].shape[2]) or real(*args, **more),
    )
    decoded(other, padded=True)
    assert stock == [7, 7]  # the prompt, in two layers


def test_the_narrow_copy_samples_with_it_and_the_policy_stays():
    policy = model_with(6, 2)
    weights = SamplingWeights(policy, Compute(torch.device("cpu"), torch.bfloat16))
    assert weights.model.config._attn_implementation == grouped.NAME
    assert policy.config._attn_implementation == "sdpa"
