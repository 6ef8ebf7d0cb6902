"""Scores towards a target equal their definition, and say what a step on a token does to the target."""

import pytest
import torch
from tiny_update import RESPONSES, Problem, assert_same_scores, traced_config

from archer.errors import ArcherError
from archer.influence import InfluenceConfig, Layout, TargetTracer
from archer.influence.oracle import explicit_gradients, position_factors

VALIDATION, TRAINING = [0, 4, 7], [1, 2, 3, 5, 6, 8]


def capture(problem: Problem, tracer: TargetTracer, rows: list[int]) -> None:
    """The backward of sum_t -log pi_t over some rows."""
    batch = problem.batch(rows)
    with tracer.capture(batch.layout):
        log_probs, _ = problem.log_probs(batch)
        (-log_probs.sum()).backward()
    problem.model.zero_grad()


def everything(problem: Problem, rows: list[int]) -> Layout:
    """All positions of some rows, prompts too."""
    return Layout.from_mask(problem.batch(rows).inputs["attention_mask"].bool(), rows)


def mean_loss(problem: Problem, rows: list[int]) -> torch.Tensor:
    """The mean over rows of each one's mean -log pi_t."""
    log_probs, _ = problem.log_probs(problem.batch(rows))
    return -(log_probs.sum(1) / torch.tensor([RESPONSES[row] for row in rows])).mean()


def traced(problem: Problem, config: InfluenceConfig, portions: list[list[int]]) -> dict[int, torch.Tensor]:
    tracer = TargetTracer(problem.model, config)
    tracer.clear_target()
    for rows in ([0], [4, 7]):
        with tracer.capture(everything(problem, rows)):
            mean_loss(problem, rows).backward()
        tracer.add_to_target(weight=len(rows))
    for rows in portions:
        capture(problem, tracer, rows)
    return tracer.target_scores(torch.float64)


def brute_force(problem: Problem, config: InfluenceConfig) -> dict[int, torch.Tensor]:
    """<G*, H^-1 g_t> from explicit gradients, with an explicit inverse of an explicit H."""
    tracer = TargetTracer(problem.model, config)
    batch = problem.batch(problem.rows)
    factors = position_factors(tracer.modules, lambda: -problem.log_probs(batch)[0].sum())
    gradients = explicit_gradients(tracer.modules, factors, batch.layout, config.max_tokens_per_response)
    target_factors = position_factors(tracer.modules, lambda: mean_loss(problem, VALIDATION))
    target = explicit_gradients(tracer.modules, target_factors, everything(problem, VALIDATION))
    scores = {row: torch.zeros(len(gradients[row][0]), dtype=torch.float64) for row in TRAINING}
    norms = {row: torch.zeros_like(scores[row]) for row in TRAINING}
    for m in range(len(tracer.modules)):
        goal = sum(target[row][m].sum(0) for row in VALIDATION)
        D = len(goal)
        H = torch.zeros(D, D, dtype=torch.float64)
        terms = [gradients[row][m].mean(0) for row in TRAINING]
        if config.hessian_source == "token":
            terms = [g for row in TRAINING for g in gradients[row][m]]
        for g in terms:
            H += torch.outer(g, g)
        share = 0.1 / (len(terms) if config.reg_rule == "kernel_trace" else D)
        H += share * torch.trace(H) * torch.eye(D, dtype=torch.float64)
        if config.hessian_mode == "identity":
            H = torch.eye(D, dtype=torch.float64)
        inverse = torch.linalg.inv(H)
        for row in TRAINING:
            for t, g in enumerate(gradients[row][m]):
                scores[row][t] += goal @ inverse @ g
                norms[row][t] += g @ inverse @ g
    if config.score_normalization == "token_norm":
        return {row: scores[row] / norms[row].sqrt() for row in TRAINING}
    return scores


@pytest.mark.parametrize(
    "changes",
    [
        {"hessian_mode": "identity"},
        {},
        {"reg_rule": "kernel_trace", "score_normalization": "token_norm"},
        {"solver": "primal"},
        {"solver": "dual", "reg_rule": "kernel_trace", "projection": "none"},
        {"hessian_source": "token"},
        {"hessian_source": "token", "solver": "primal", "reg_rule": "kernel_trace"},
    ],
)
def test_scores_equal_their_definition(problem, changes):
    config = traced_config(module_name_filter=("v_proj", "down_proj"), **changes)
    expected = brute_force(problem, config)
    for portions in ([TRAINING], [[1, 5], [2, 3, 6], [8]]):
        assert_same_scores(traced(problem, config, portions), expected)


def test_a_step_on_a_token_lowers_the_target_as_its_score_says(problem):
    """W -= eta e_t x_t^T in every traced module: the mean loss of the target falls by eta times the score."""
    config = traced_config(projection="none", hessian_mode="identity")
    scores = traced(problem, config, [TRAINING])
    batch = problem.batch(problem.rows)
    modules = TargetTracer(problem.model, config).modules
    factors = position_factors(modules, lambda: -problem.log_probs(batch)[0].sum())
    gradients = explicit_gradients(modules, factors, batch.layout)
    weights = [traced.module.weight for traced in modules]
    eta = 1e-6
    found, predicted = [], []
    for row in TRAINING:
        for t in range(RESPONSES[row]):
            steps = [g[t].view_as(weight) for weight, g in zip(weights, gradients[row], strict=True)]
            sides = []
            with torch.no_grad():
                for there in (eta, -eta):
                    for weight, step in zip(weights, steps, strict=True):
                        weight.sub_(step, alpha=there)
                    sides.append(mean_loss(problem, VALIDATION))
                    for weight, step in zip(weights, steps, strict=True):
                        weight.add_(step, alpha=there)
            found.append((sides[1] - sides[0]) / (2 * eta))
            predicted.append(scores[row][t])
    assert torch.stack(predicted).abs().max() > 0.1
    torch.testing.assert_close(torch.stack(found), torch.stack(predicted), rtol=1e-5, atol=1e-6)


def test_what_belongs_to_a_contrast_is_refused(problem):
    tracer = TargetTracer(problem.model, traced_config(exclude_self_response=True))
    capture(problem, tracer, VALIDATION)
    with pytest.raises(ArcherError, match="belongs to a contrast"):
        tracer.add_to_target()


def test_scores_without_a_target_are_refused(problem):
    tracer = TargetTracer(problem.model, traced_config())
    capture(problem, tracer, TRAINING)
    with pytest.raises(ArcherError, match="there is no target"):
        tracer.target_scores()


def test_labels_give_the_layout_of_the_tokens_they_name():
    labels = torch.tensor([[-100, -100, 5, 6, -100, 7], [9, 8, -100, -100, -100, -100]])
    layout = Layout.from_labels(labels, rows=[4, 2])
    assert layout.row.view(2, 6).tolist() == [[-1, 4, 4, -1, 4, -1], [2, -1, -1, -1, -1, -1]]
    assert layout.token.view(2, 6)[0, [1, 2, 4]].tolist() == [0, 1, 3]  # a gap keeps its place
    assert layout.token[6] == 0  # column 0 of the labels is emitted by nothing
    assert layout.lengths() == {4: 4, 2: 1}


def test_a_mask_gives_the_layout_that_padding_gives():
    mask = torch.zeros(2, 7, dtype=torch.bool)
    mask[0, 3:6] = mask[1, 2:4] = True
    found, expected = Layout.from_mask(mask), Layout.padded([0, 1], [3, 2], [3, 2], 7)
    assert torch.equal(found.row, expected.row)
    here = found.row >= 0
    assert torch.equal(found.token[here], expected.token[here])
