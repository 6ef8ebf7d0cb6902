"""Log-probs of tokens without flash-attention."""

from types import SimpleNamespace

import pytest
import torch
import verl.utils.torch_functional as verl_functions
import verl.workers.engine.fsdp.transformer_impl as fsdp

from archer.engines.verl import log_probs
from archer.engines.verl.log_probs import (
    chunked_log_probs,
    entropy_from_logits,
    exact_entropies,
    log_probs_from_logits,
)

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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_entropies_are_those_of_float64_and_never_negative(dtype):
    ours = logits(dtype)
    with torch.no_grad():
        ours[0, :, 3] += torch.linspace(0, 80, 5).to(dtype)
    exact = ours.detach().double().log_softmax(-1)
    found = entropy_from_logits(ours)
    assert found.shape == (2, 5) and found.dtype == torch.promote_types(dtype, torch.float32)
    assert (found >= 0).all()
    torch.testing.assert_close(found.double(), -(exact.exp() * exact).sum(-1), atol=1e-5, rtol=1e-5)


def test_an_entropy_bonus_has_its_gradient():
    assert torch.autograd.gradcheck(entropy_from_logits, logits(torch.float64))


def test_verls_engine_takes_its_entropies_from_here_inside_the_context():
    stock = verl_functions.entropy_from_logits
    engine = SimpleNamespace(compute_entropy_from_logits=stock)
    with exact_entropies(engine):
        assert verl_functions.entropy_from_logits is engine.compute_entropy_from_logits is entropy_from_logits
        assert fsdp.verl_F.entropy_from_logits is entropy_from_logits
    assert verl_functions.entropy_from_logits is engine.compute_entropy_from_logits is stock
