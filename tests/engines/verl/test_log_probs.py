"""Log-probs of tokens without flash-attention."""

import pytest
import torch
import verl.utils.torch_functional as verl_functions
import verl.workers.engine.fsdp.transformer_impl as fsdp

from archer.engines.verl import log_probs
from archer.engines.verl.log_probs import chunked_log_probs, log_probs_from_logits

VOCABULARY = 11


@pytest.fixture(autouse=True, params=[1, 3 * VOCABULARY, 2**27])
def chunk(request, monkeypatch):
    """One token, three tokens, everything at a time."""
    monkeypatch.setattr(log_probs, "CHUNK_ELEMENTS", request.param)


@pytest.fixture
def labels() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (2, 5), generator=torch.Generator().manual_seed(1))


def logits(dtype: torch.dtype) -> torch.Tensor:
    values = 4 * torch.randn(2, 5, VOCABULARY, generator=torch.Generator().manual_seed(2))
    return values.to(dtype).requires_grad_()


def test_values_and_gradients_are_those_of_log_softmax(labels):
    ours, plain = logits(torch.float64), logits(torch.float64)
    found = log_probs_from_logits(ours, labels)
    expected = plain.log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1)
    weights = torch.linspace(-1, 2, 10, dtype=torch.float64).view(2, 5)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(ours.grad, plain.grad)
    assert torch.autograd.gradcheck(lambda z: log_probs_from_logits(z, labels), logits(torch.float64))


def test_bfloat16_logits_give_float32_log_probs_and_bfloat16_gradients(labels):
    ours, wide = logits(torch.bfloat16), logits(torch.bfloat16).detach().float().requires_grad_()
    found, expected = log_probs_from_logits(ours, labels), log_probs_from_logits(wide, labels)
    assert found.dtype == torch.float32 and torch.equal(found, expected)
    found.sum().backward()
    expected.sum().backward()
    assert torch.equal(ours.grad, wide.grad.bfloat16())


@pytest.mark.parametrize(("installed", "forbidden", "ours"), [(0, 0, 1), (1, 0, 0), (1, 1, 1)])
def test_verls_engine_uses_it_inside_the_context_where_flash_attention_does_not_serve(
    monkeypatch, installed, forbidden, ours
):
    stock = fsdp.logprobs_from_logits
    monkeypatch.setattr(verl_functions, "FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE", bool(installed))
    monkeypatch.setenv("VERL_DISABLE_FLASH_ATTN_CE", str(forbidden))
    with chunked_log_probs():
        assert fsdp.logprobs_from_logits is (log_probs_from_logits if ours else stock)
    assert fsdp.logprobs_from_logits is stock


def test_verls_own_function_is_back_after_an_error():
    stock = fsdp.logprobs_from_logits
    with pytest.raises(ZeroDivisionError):
        _divide_inside()
    assert fsdp.logprobs_from_logits is stock


def _divide_inside() -> float:
    with chunked_log_probs():
        return 1 / 0
