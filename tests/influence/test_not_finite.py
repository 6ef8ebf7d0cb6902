"""Gradients that are not finite, or too small: what they leave alone, and what is said of them."""

import pytest
import torch
from tiny_update import Problem, tiny_model, traced_config, traced_scores

from archer.influence import InfluenceTracer


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"hessian_mode": "identity"},
        {"solver": "primal"},
        {"score_normalization": "token_norm"},
        {"hessian_source": "token", "solver": "dual"},
        {"hessian_source": "token", "solver": "primal", "score_normalization": "token_norm"},
    ],
)
def test_gradients_that_are_not_finite_give_nan_scores_and_a_count(problem, knobs):
    tracer = InfluenceTracer(problem.model, traced_config(**knobs))
    problem.advantages[5] = torch.nan
    problem.update(tracer)
    scores = tracer.scores(problem.groups)
    assert all(scores[row].isnan().all() for row in (4, 5, 6))
    assert all(scores[row].isfinite().all() for row in (0, 1, 2, 3))
    assert tracer.metrics()["influence_trace/debug_nonfinite_groups"] == 1


@pytest.mark.parametrize(
    "knobs", [{}, {"output_function": "log_prob_advantage"}, {"hessian_source": "token", "solver": "primal"}]
)
def test_gradients_that_are_not_finite_spoil_no_neighbour_in_their_micro_batch(problem, monkeypatch, knobs):
    monkeypatch.setattr("archer.influence.capture.KEEP_ALL", 0.0)
    problem.advantages[5] = torch.nan
    tracer = InfluenceTracer(problem.model, traced_config(**knobs))
    # Rows 0 and 1 make a grid of two rows, in which the responses 5 and 4 of the other group lie beside them.
    problem.update(tracer, [[0, 5, 4, 1], [2, 3, 6]])
    scores = tracer.scores(problem.groups)
    assert all(scores[row].isnan().all() for row in (4, 5, 6))
    assert all(scores[row].isfinite().all() for row in (0, 1, 2, 3))


@pytest.mark.parametrize("weight", [0.0, 1e-30, 1e-22])
@pytest.mark.parametrize(
    "knobs", [{}, {"solver": "primal"}, {"hessian_source": "token", "solver": "dual"}], ids=str
)
def test_normalized_scores_are_finite_where_a_gradient_is_too_small_for_its_norm(weight, knobs):
    problem = Problem(tiny_model(torch.float32), torch.float32)
    problem.advantages[1] = weight
    scores = traced_scores(problem, traced_config(score_normalization="token_norm", **knobs))
    assert all(s.isfinite().all() for s in scores.values())
