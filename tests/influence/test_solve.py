"""Numerics of the solve that the float64 oracle cannot see."""

import pytest
import torch
from torch import nn

from archer.errors import ArcherError
from archer.influence import Group, InfluenceConfig, InfluenceTracer, Layout
from archer.influence.solve import (
    Dual,
    check_solved,
    damping,
    dual_inverses,
    noise_floor,
    primal_inverse,
    token_dual,
    use_dual,
)


def response_gradients(R: int, D: int) -> torch.Tensor:
    return torch.randn(R, D, generator=torch.Generator().manual_seed(0))


def test_the_smaller_space_is_taken_unless_told_otherwise():
    assert use_dual("auto", 16, 256)
    assert not use_dual("auto", 1024, 256)
    assert use_dual("dual", 1024, 256)
    assert not use_dual("primal", 16, 256)


def test_float32_dual_and_primal_agree_to_rounding():
    G = response_gradients(16, 300)
    contrast = torch.ones(1, 1, 16)
    dual = dual_inverses([G[None, None]], 0.0, "hessian_trace")[0].directions(contrast, G[None, None])
    primal = primal_inverse(G.T @ G, 16, 0.0, "hessian_trace").directions(contrast, G[None, None])
    torch.testing.assert_close(dual, primal, rtol=0, atol=2e-4 * float(primal.abs().max()))


def test_a_norm_inside_the_span_survives_cancellation_in_float32():
    G = response_gradients(1, 4096)
    (dual,) = dual_inverses([G[None, None]], 1e-6, "hessian_trace")
    exact = 1 / (1 + 1e-6 / G.double().square().sum())  # g = G: |g|^2 / (|g|^2 + lambda)
    torch.testing.assert_close(dual.squared_norms(G)[0].double(), exact, rtol=1e-5, atol=0)


def test_damping_is_one_where_there_is_no_gradient():
    traces = torch.tensor([0.0, 8.0])
    assert damping(traces, 4, 2, 0.0, "hessian_trace").tolist() == pytest.approx([1.0, 0.2])
    assert damping(traces, 4, 2, 0.5, "kernel_trace").tolist() == pytest.approx([1.0, 2.0])
    assert damping(traces, 4, 2, 0.5, "hessian_trace").tolist() == [0.5, 0.5]
    (dual,) = dual_inverses([torch.zeros(1, 1, 2, 4)], 0.0, "hessian_trace")
    assert dual.directions(torch.ones(1, 1, 2), torch.zeros(1, 1, 2, 4)).tolist() == [[[[0.0] * 4]]]


def test_too_little_damping_is_an_error_that_says_so():
    u, v = torch.ones(3, 2), torch.ones(3, 2)
    solvable = token_dual(u, v, 1.0, "hessian_trace").failed
    check_solved([solvable])
    with pytest.raises(ArcherError, match=r"raise trainer\.influence_trace\.reg_lambda"):
        check_solved([solvable, token_dual(u, v, 1e-20, "hessian_trace").failed])


@pytest.mark.parametrize("normalization", ["none", "token_norm"])
@pytest.mark.parametrize(
    ("source", "solver"), [("response", "primal"), ("token", "primal"), ("token", "dual")]
)
def test_too_little_damping_is_told_by_the_tracer_which_stays_usable(source, solver, normalization):
    torch.manual_seed(0)
    config = InfluenceConfig(
        enable=True,
        module_name_filter=("",),
        projection="none",
        reg_lambda=1e-30,
        hessian_source=source,
        solver=solver,
        score_normalization=normalization,
    )
    model = nn.Linear(8, 8)
    tracer = InfluenceTracer(nn.Sequential(model), config)
    for _ in range(2):
        # All four tokens alike, and every entry of H and of the kernels a power of 4: the second pivot of a
        # factorisation is exactly 0, where a rounded square root might leave a little.
        with tracer.capture(Layout.padded([0, 1, 2, 3], [1] * 4, [1] * 4, 2)):
            model(torch.ones(4, 2, 8)).sum().backward()
        with pytest.raises(ArcherError, match=r"raise trainer\.influence_trace\.reg_lambda"):
            tracer.scores([Group("a", (0, 1, 2, 3), (True, False, True, False))])
        assert tracer.captured == ()


def test_a_trace_of_pure_rounding_is_not_damped_by_itself():
    """lambda is made of at least (32 eps)^2 of the largest module's trace; others keep theirs bit for bit."""
    generator = torch.Generator().manual_seed(0)
    ordinary = torch.randn(1, 1, 4, 6, generator=generator)
    noise = 1e-8 * torch.randn(1, 1, 4, 6, generator=generator)
    largest = ordinary.square().sum((2, 3)).amax(0)
    floor = noise_floor(largest, torch.float32)
    assert float(floor) == pytest.approx((32 * 2.0**-23) ** 2 * float(largest))
    alone, _ = dual_inverses([ordinary, noise], 0.0, "kernel_trace")
    with_floor, floored = dual_inverses([ordinary, noise], 0.0, "kernel_trace", floor)
    assert torch.equal(alone.inverse_kernel, with_floor.inverse_kernel)
    contrast = torch.tensor([[[1.0, 1.0, -1.0, -1.0]]])
    full, _ = dual_inverses([noise, ordinary], 0.0, "kernel_trace")

    def weight(dual: Dual, G: torch.Tensor) -> float:
        """How far scores reach: <q, g> over the rows themselves."""
        return float((dual.directions(contrast, G) * G[:, :, :1]).sum().abs())

    assert weight(floored, noise) < 1e-3 * weight(full, noise)
    primal = primal_inverse((noise[0, 0].T @ noise[0, 0]).double(), 4, 0.0, "kernel_trace", floor[0])
    torch.testing.assert_close(
        primal.directions(contrast[0].double(), noise[0, 0].double()),
        floored.directions(contrast, noise)[0, 0].double(),
        rtol=1e-4,
        atol=0,
    )
