"""Every combination of modes equals explicit gradients, an explicit H^-1 and a loop over (r, t)."""

from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch
from tiny_update import Problem, assert_same_scores, tiny_model, traced_config, traced_scores

from archer.influence import Group, InfluenceConfig, InfluenceTracer
from archer.influence.bundle import bundled
from archer.influence.factors import TokenFactors
from archer.influence.oracle import Gradients, brute_force_scores, explicit_gradients, position_factors
from archer.influence.stacks import stacks_of

OBJECTIVES = ("training_loss", "log_prob", "log_prob_advantage", "log_prob_reward")
COMMON = list(
    product(
        OBJECTIVES, ("per_prompt", "all_selected"), ("sum", "mean"), (False, True), ("none", "token_norm")
    )
)
INVERSE = list(
    product(COMMON, ("response", "token"), ("hessian_trace", "kernel_trace"), ("auto", "dual", "primal"))
)
FILTER = ("v_proj", "down_proj")


def configured(common: tuple, **changes: object) -> InfluenceConfig:
    objective, scope, agg, exclude, normalization = common
    return traced_config(
        module_name_filter=FILTER,
        output_function=objective,
        accepted_rejected_scope=scope,
        contrastive_agg=agg,
        exclude_self_response=exclude,
        score_normalization=normalization,
        **changes,
    )


@cache
def captured(objective: str) -> tuple[Problem, list[TokenFactors], Gradients]:
    """The factors one real update leaves in the tracer, and the explicit gradients of the same objective."""
    problem = Problem(tiny_model())
    config = traced_config(module_name_filter=FILTER, output_function=objective)
    tracer = InfluenceTracer(problem.model, config)
    problem.update(tracer, micro_batches=[[0, 4, 1], [2, 5, 6, 7], [3, 8]])
    batch = problem.batch(problem.rows)
    factors = position_factors(tracer.modules, lambda: problem.objective(config, batch))
    return problem, tracer.captured, explicit_gradients(tracer.modules, factors, batch.layout)


@cache
def expected(config: InfluenceConfig) -> dict[int, torch.Tensor]:
    problem, _, gradients = captured(config.output_function)
    groups = [group for group in problem.groups if not all(group.accepted)]
    if config.accepted_rejected_scope == "all_selected":
        flags = sum((group.accepted for group in groups), ())
        groups = [Group("all", sum((group.rows for group in groups), ()), flags)]
    return {row: s for group in groups for row, s in brute_force_scores(gradients, group, config).items()}


def scored(config: InfluenceConfig) -> dict[int, torch.Tensor]:
    problem, batches, _ = captured(config.output_function)
    tracer = InfluenceTracer(problem.model, config)
    tracer.take(batches)  # captured once per objective: scoring is what is under test
    return tracer.scores(problem.groups, dtype=torch.float64)


@pytest.mark.parametrize("common", COMMON, ids=str)
def test_identity_mode_equals_brute_force(common):
    config = configured(common, hessian_mode="identity")
    assert_same_scores(scored(config), expected(config))


@pytest.mark.parametrize(("common", "source", "rule", "solver"), INVERSE, ids=str)
def test_inverse_mode_equals_brute_force(common, source, rule, solver):
    reg_lambda = 0.5 if rule == "kernel_trace" else 0.0
    config = configured(common, hessian_source=source, reg_rule=rule, reg_lambda=reg_lambda)
    assert_same_scores(scored(replace(config, solver=solver)), expected(config))


@pytest.mark.parametrize("source", ["response", "token"])
@pytest.mark.parametrize(
    ("rule", "reg_lambda"), [("hessian_trace", 0.02), ("kernel_trace", -1.0), ("hessian_trace", -1.0)]
)
def test_damping_given_or_automatic_equals_brute_force(source, rule, reg_lambda):
    config = configured(COMMON[0], hessian_source=source, reg_rule=rule, reg_lambda=reg_lambda)
    assert_same_scores(scored(config), expected(config))


@pytest.mark.parametrize("source", ["response", "token"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_exact_factors_equal_brute_force(problem, source, objective):
    config = traced_config(
        projection="none",
        module_name_filter="k_proj,layers.1.self_attn.v",
        output_function=objective,
        hessian_source=source,
    )
    tracer = InfluenceTracer(problem.model, config)
    problem.update(tracer, kind="clipped")
    batch = problem.batch(problem.rows)
    factors = position_factors(tracer.modules, lambda: problem.objective(config, batch, "clipped"))
    gradients = explicit_gradients(tracer.modules, factors, batch.layout)
    found = tracer.scores(problem.groups, dtype=torch.float64)
    for group in problem.groups[:2]:
        rows = {row: found[row] for row in group.rows}
        assert_same_scores(rows, brute_force_scores(gradients, group, config))


def test_only_the_last_tokens_count_when_capped(problem):
    config = traced_config(max_tokens_per_response=2, hessian_source="token")
    found = traced_scores(problem, config)
    modules = InfluenceTracer(problem.model, config).modules
    batch = problem.batch(problem.rows)
    factors = position_factors(modules, lambda: problem.objective(config, batch))
    gradients = explicit_gradients(modules, factors, batch.layout, max_tokens_per_response=2)
    for group in problem.groups[:2]:
        for row, scores in brute_force_scores(gradients, group, config).items():
            assert found[row][: -len(scores)].isnan().all()
            assert len(found[row]) == len(problem.responses[row])
            torch.testing.assert_close(found[row][-len(scores) :], scores)


def test_scores_are_float32_and_free_the_factors(problem):
    tracer = InfluenceTracer(problem.model, traced_config())
    problem.update(tracer)
    scores = tracer.scores(problem.groups)
    assert {row: len(s) for row, s in scores.items()} == {
        row: len(problem.responses[row]) for row in range(7)
    }
    assert {s.dtype for s in scores.values()} == {torch.float32}
    assert tracer.captured == ()


def test_each_response_has_its_scores_to_itself(problem):
    scores = traced_scores(problem, traced_config())
    assert all(s.untyped_storage().nbytes() == s.nbytes for s in scores.values())


def test_small_chunks_change_nothing(problem, monkeypatch):
    changes = {"hessian_source": "token", "solver": "primal", "score_normalization": "token_norm"}
    whole = traced_scores(problem, traced_config(**changes))
    monkeypatch.setattr("archer.influence.block.CHUNK_ELEMENTS", 40)
    assert_same_scores(traced_scores(problem, traced_config(**changes)), whole)


@pytest.mark.parametrize("changes", [{}, {"exclude_self_response": True}, {"hessian_mode": "identity"}])
def test_groups_of_one_size_are_scored_together_as_they_are_alone(problem, monkeypatch, changes):
    groups = [
        Group("a", (0, 1), (True, False)),
        Group("b", (5, 2), (False, True)),
        Group("c", (3, 4, 6), (True, False, True)),
        Group("d", (7, 8), (False, True)),
    ]
    problem.groups = groups
    config = traced_config(**changes)
    modules = InfluenceTracer(problem.model, config).modules
    assert [len(b) for b in bundled(groups, modules, config, torch.device("cpu"))] == [2, 1, 1]
    together = traced_scores(problem, config, micro_batches=[[0, 8, 3, 5], [1, 4, 2, 7, 6]])
    monkeypatch.setattr("archer.influence.bundle.BUNDLE_ELEMENTS", 0)
    assert_same_scores(traced_scores(problem, config), together)


def test_modules_of_one_shape_are_scored_together_as_they_are_alone(problem, monkeypatch):
    config = traced_config()
    modules = InfluenceTracer(problem.model, config).modules
    assert max(len(stack) for stack in stacks_of(modules, [])) > 1
    together = traced_scores(problem, config)
    monkeypatch.setattr("archer.influence.scoring.stacks_of", lambda m, blocks, most: stacks_of(m, blocks, 1))
    assert_same_scores(traced_scores(problem, config), together)
