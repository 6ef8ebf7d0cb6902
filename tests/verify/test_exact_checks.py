"""Exact checks hold on the product as it is, and fail on every fault put into it."""

import pytest
import torch

from archer.influence import capture, objective, scoring, solve, tracer
from archer.influence.layout import Layout
from archer.verify.capture import token_log_probs
from archer.verify.exact_checks import check_alignment, check_factors, check_objectives, check_solvers
from archer.verify.oracle_checks import check_brute_force, check_finite_differences


def finite_differences(model, sample):
    return check_finite_differences(model, sample.narrowed(1, 3), tokens=2)


def brute_force(model, sample):
    return check_brute_force(model, sample.narrowed(1, 2))


CHECKS = {
    "factors": check_factors,
    "alignment": check_alignment,
    "solvers": check_solvers,
    "brute_force": brute_force,
    "objectives": check_objectives,
    "finite_differences": finite_differences,
}


def shifted_layout(monkeypatch):
    real = Layout.padded.__func__

    def padded(cls, rows, prompt_lengths, response_lengths, width, side="right"):
        return real(cls, rows, prompt_lengths - 1, response_lengths, width, side)

    monkeypatch.setattr(Layout, "padded", classmethod(padded))


def dropped_module(monkeypatch):
    real = tracer.traced_modules
    monkeypatch.setattr(tracer, "traced_modules", lambda model, config: real(model, config)[:-1])


def stretched_factors(monkeypatch):
    real = capture.Capture._compress
    monkeypatch.setattr(capture.Capture, "_compress", lambda *args: real(*args) * 1.001)


def wrong_lambda(monkeypatch):
    real = solve.damping
    monkeypatch.setattr(solve, "damping", lambda *args: real(*args) * 1.01)


def wrong_lambda_in_the_dual(monkeypatch):
    real = scoring.dual_inverses
    monkeypatch.setattr(scoring, "dual_inverses", lambda Gs, lam, rule, floor: real(Gs, 1.01, rule, floor))


def own_response_counted(monkeypatch):
    real = scoring.contrast_weights
    monkeypatch.setattr(
        scoring, "contrast_weights", lambda flags, agg, exclude: real(flags, agg, exclude) + 1
    )


def contrast_reversed(monkeypatch):
    real = scoring.contrast_weights
    monkeypatch.setattr(scoring, "contrast_weights", lambda *args: -real(*args))


def wrong_multiples(monkeypatch):
    real = objective.response_multiples
    monkeypatch.setattr(
        objective,
        "response_multiples",
        lambda *args: ((found := real(*args))[0] * torch.linspace(1, 1.01, len(found[0])), found[1]),
    )


def never_rescaled(monkeypatch):
    monkeypatch.setattr(objective, "response_multiples", lambda *args: (args[0], torch.tensor(False)))


FAULTS = [
    ("alignment", shifted_layout),
    ("brute_force", shifted_layout),
    ("factors", dropped_module),
    ("factors", stretched_factors),
    ("brute_force", stretched_factors),
    ("finite_differences", stretched_factors),
    ("brute_force", wrong_lambda),
    ("solvers", wrong_lambda_in_the_dual),
    ("brute_force", own_response_counted),
    ("brute_force", contrast_reversed),
    ("finite_differences", contrast_reversed),
    ("objectives", wrong_multiples),
    ("objectives", never_rescaled),
]


@pytest.mark.parametrize("check", CHECKS)
def test_holds_on_the_product_as_it_is(check, precise, small):
    result = CHECKS[check](precise, small)
    assert result.passed is True
    assert all(figure.holds for figure in result.figures)
    assert all(parameter.grad is None for parameter in precise.parameters())


@pytest.mark.parametrize(("check", "fault"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_fails_on_a_fault(check, fault, precise, small, monkeypatch):
    fault(monkeypatch)
    assert CHECKS[check](precise, small).passed is False


def test_finite_differences_leave_the_weights_as_they_were(precise, small):
    before = [parameter.clone() for parameter in precise.parameters()]
    finite_differences(precise, small)
    for old, new in zip(before, precise.parameters(), strict=True):
        assert torch.equal(old, new)


def test_the_float64_copy_is_the_same_model(model, precise, small):
    with torch.no_grad():
        wide, narrow = token_log_probs(precise, small.batch), token_log_probs(model, small.batch)
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide.float(), narrow, rtol=1e-4, atol=1e-4)


def test_the_float64_copy_keeps_float64_all_the_way(precise, small):
    """A norm or softmax that rounds to float32 would hide a perturbation of 1e-12."""
    embedding = precise.get_input_embeddings().weight
    with torch.no_grad():
        before = token_log_probs(precise, small.batch)
        original = embedding.clone()
        embedding.mul_(1 + 1e-12)
        moved = token_log_probs(precise, small.batch)
        embedding.copy_(original)
    assert 0 < float((moved - before).abs().max()) < 1e-9


def test_a_check_without_figures_or_with_nan_has_not_passed():
    from archer.verify.report import at_least, at_most, exact

    assert exact("empty", "", []).passed is False
    assert at_most("nan", float("nan"), 1.0).holds is False
    assert at_least("nan", float("nan"), 1.0).holds is False
    assert exact("one of two", "", [at_most("good", 0.0, 1.0), at_most("bad", 2.0, 1.0)]).passed is False
