import subprocess
import sys

import pytest
import torch
from tiny_update import Problem, tiny_model, traced_config, traced_scores

from archer.influence.modules import Projection, projected_dims, stable_seed


@pytest.mark.parametrize(("d", "k"), [(6, 2), (6, 5), (9, 3)])
def test_the_expectation_of_p_transpose_p_is_the_identity(d, k):
    draws = 4000
    products = torch.stack([P.T @ P for P in (Projection(f"{i}", d, k).matrix() for i in range(draws))])
    deviation = products.mean(0) - torch.eye(d, dtype=torch.float64)
    assert deviation.diagonal().abs().max() < 1e-12  # +-1/sqrt(k) squared: exact on the diagonal
    assert deviation.abs().max() < 5 / (k * draws) ** 0.5


def test_a_projected_inner_product_is_unbiased_whatever_the_shape():
    torch.manual_seed(0)
    e, x, f, y = (torch.randn(d, dtype=torch.float64) for d in (5, 8, 5, 8))
    exact = (e @ f) * (x @ y)
    for k_in, k_out in [(2, 2), (4, 1), (1, 3)]:
        estimates = []
        for i in range(5000):
            P, Q = Projection(f"in{i}", 8, k_in).matrix(), Projection(f"out{i}", 5, k_out).matrix()
            estimates.append(((Q @ e) @ (Q @ f)) * ((P @ x) @ (P @ y)))
        estimates = torch.stack(estimates)
        assert abs(estimates.mean() - exact) < 4 * estimates.std() / len(estimates) ** 0.5


def test_dtype_does_not_change_the_signs_and_the_scale_stays_outside():
    projection = Projection("layers.0.mlp", 16, 3)
    x = torch.randint(-4, 5, (2, 16))
    narrow, wide = projection(x.to(torch.bfloat16)), projection(x.double())
    assert torch.equal(narrow.double(), wide)
    torch.testing.assert_close(wide * projection.scale, x.double() @ projection.matrix().T)


def test_seeds_come_from_the_name_and_are_the_same_in_every_process():
    code = "from archer.influence.modules import stable_seed; print(stable_seed('layers.0'))"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(outcome.stdout) == stable_seed("layers.0") != stable_seed("layers.1")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((64, 32, 8, 0, 0), (8, 4)),
        ((4, 4, 8, 0, 0), (1, 1)),
        ((1536, 8960, 32, 0, 0), (48, 280)),
        ((1536, 8960, 32, 256, 0), (48, 208)),
        ((1536, 8960, 32, 256, 4096), (48, 85)),
        ((8960, 1536, 32, 256, 4096), (85, 48)),
        ((1536, 1536, 1, 256, 4096), (64, 64)),
        ((64, 64, 1, 1, 0), (1, 1)),
    ],
)
def test_dims_follow_the_factor_and_both_caps(arguments, expected):
    assert projected_dims(*arguments) == expected


def test_larger_projections_come_closer_to_the_exact_scores():
    problem = Problem(tiny_model())
    changes = {"hessian_mode": "identity", "max_proj_vector_sum": 0, "max_hessian_dim": 0}
    exact = traced_scores(problem, traced_config(projection="none", **changes))
    exact = torch.cat([exact[row] for row in sorted(exact)])
    agreement = []
    for factor in (16, 4, 1):
        found = traced_scores(problem, traced_config(projection_dim_factor=factor, **changes))
        found = torch.cat([found[row] for row in sorted(found)])
        agreement.append(float(torch.corrcoef(torch.stack([found, exact]))[0, 1]))
    assert agreement[0] < agreement[1] < agreement[2]
    assert agreement[2] > 0.95
