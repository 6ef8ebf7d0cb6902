"""One function for several operations of a layer: the same values and gradients, and only where they fit."""

import copy

import pytest
import torch
from transformers.models.qwen2 import modeling_qwen2

from archer.generation import fused


@pytest.fixture
def uncompiled(monkeypatch):
    """The functions themselves, which is what they are compiled from; the model's file is left as it was."""
    monkeypatch.setattr(fused, "_compiled", lambda function: function)
    monkeypatch.setattr(modeling_qwen2, "apply_rotary_pos_emb", modeling_qwen2.apply_rotary_pos_emb)


def test_a_fused_model_gives_the_values_and_gradients_of_the_plain_one(uncompiled, qwen2):
    plain = qwen2(tied=True)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model = copy.deepcopy(plain)
    assert fused.fuse(model) == ["5 norms", "2 gated layers", "rotary angles"]
    ids = torch.arange(12).view(2, 6)
    one, other = (m(input_ids=ids, use_cache=False).logits for m in (plain, model))
    torch.testing.assert_close(other, one, atol=1e-4, rtol=1e-4)
    for logits in (one, other):
        logits.square().mean().backward()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-3)


def test_a_copy_of_a_fused_model_has_its_own_weights(uncompiled, qwen2):
    model = qwen2(tied=True)
    fused.fuse(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.norm.weight.zero_()
    ids = torch.arange(6)[None]
    assert (other(input_ids=ids).logits == 0).all()
    assert (model(input_ids=ids).logits != 0).any()


def test_parts_that_compute_something_else_are_left_alone(uncompiled, gemma2):
    model = gemma2()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    before = model(input_ids=torch.arange(6)[None]).logits
    done = fused.fuse(model)
    assert not any("norms" in part or "gated" in part for part in done), "1 + weight, and another activation"
    assert torch.equal(model(input_ids=torch.arange(6)[None]).logits, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_hands_on_what_the_products_want(dtype):
    x, weight = torch.randn(4, 8), torch.rand(8)
    found = fused.rms_norm(x, weight, 1e-6, dtype)
    assert found.dtype == dtype
    exact = weight.double() * x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(found.double(), exact, atol=1e-2, rtol=1e-2)
