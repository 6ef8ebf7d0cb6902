import math
import re

import pytest
import torch

from archer.algorithms.kl import KL_ESTIMATORS, kl_estimator
from archer.errors import ArcherError

FORMULAS = {
    "k1": lambda d: d,
    "abs": abs,
    "k2": lambda d: d * d / 2,
    "k3": lambda d: min(math.exp(-d) - 1 + d, 10.0),
}
ALIASES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}


@pytest.mark.parametrize("name", FORMULAS)
def test_estimators_agree_with_a_loop(name, rng):
    log_probs, ref = 2 * torch.randn(2, 4, 6, generator=rng, dtype=torch.float64)
    kl = kl_estimator(name)(log_probs, ref)
    for i in range(4):
        for t in range(6):
            expected = FORMULAS[name]((log_probs[i, t] - ref[i, t]).item())
            assert kl[i, t].item() == pytest.approx(expected, abs=1e-12)


def test_verls_names_are_aliases():
    assert set(KL_ESTIMATORS.names()) == set(FORMULAS) | set(ALIASES)
    for alias, name in ALIASES.items():
        assert kl_estimator(alias) is kl_estimator(name)


@pytest.fixture
def policies(rng) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a policy and log-probs of its reference, over five tokens, near enough for k3's bounds."""
    logits, ref = 0.5 * torch.randn(2, 5, generator=rng, dtype=torch.float64)
    return logits.requires_grad_(), ref.log_softmax(-1)


def expectation_and_gradient(
    name: str, logits: torch.Tensor, ref: torch.Tensor
) -> tuple[float, torch.Tensor]:
    """Exact mean over tokens drawn from the policy, of the estimate and of its gradient as a loss."""
    log_probs = logits.log_softmax(-1)
    mean = (log_probs.exp().detach() * kl_estimator(name)(log_probs, ref)).sum()
    return mean.item(), torch.autograd.grad(mean, logits)[0]


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_k1_and_k3_estimate_kl_without_bias(name, policies):
    logits, ref = policies
    log_probs = logits.log_softmax(-1)
    exact = (log_probs.exp() * (log_probs - ref)).sum().item()
    assert expectation_and_gradient(name, logits, ref)[0] == pytest.approx(exact, rel=1e-12)


def test_as_a_loss_k1_has_no_gradient_k2_that_of_kl_and_k3_that_of_the_other_kl(policies):
    logits, ref = policies
    log_probs = logits.log_softmax(-1)
    reverse = torch.autograd.grad((log_probs.exp() * (log_probs - ref)).sum(), logits, retain_graph=True)[0]
    forward = torch.autograd.grad((ref.exp() * (ref - log_probs)).sum(), logits)[0]
    for name, expected in (("k1", torch.zeros(5).double()), ("k2", reverse), ("k3", forward)):
        gradient = expectation_and_gradient(name, logits, ref)[1]
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", KL_ESTIMATORS.names())
def test_equal_policies_have_exactly_no_kl(name):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(kl_estimator(name)(x, x), torch.zeros(3, 4))


def test_k3_is_never_negative_in_float32_even_where_the_policies_nearly_agree():
    d = torch.logspace(-8, 0, 1000)
    assert torch.all(kl_estimator("k3")(d, torch.zeros(1000)) >= 0)
    assert torch.all(kl_estimator("k3")(-d, torch.zeros(1000)) >= 0)


def test_k3_stays_finite_for_absurd_log_probs():
    log_probs = torch.tensor([-1e5, 1e5], requires_grad=True)
    kl = kl_estimator("k3")(log_probs, torch.zeros(2))
    kl.sum().backward()
    assert kl.tolist() == [10.0, 10.0]
    assert log_probs.grad.tolist() == [0.0, 0.0]


def test_an_unknown_estimator_names_the_key_it_was_set_by_and_the_choices():
    with pytest.raises(ArcherError, match=re.escape("algorithm.kl_penalty='full': choose one of")) as error:
        kl_estimator("full", key="algorithm.kl_penalty")
    assert all(name in str(error.value) for name in KL_ESTIMATORS.names())
