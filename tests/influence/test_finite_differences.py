"""Scores predict what small steps of the parameters do."""

import pytest
import torch
from tiny_update import Problem, tiny_model, traced_config

from archer.influence import InfluenceTracer
from archer.influence.oracle import (
    Gradients,
    contrast_direction,
    explicit_gradients,
    position_factors,
    token_loss_scores,
)


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.detach().double(), b.detach().double()]))[0, 1])


class Contrast:
    """The first group, its contrast and the direction q over the traced weights."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.problem = Problem(tiny_model(dtype), dtype)
        self.group = self.problem.groups[0]
        self.batch = self.problem.batch(list(self.group.rows))
        config = traced_config(projection="none", output_function="log_prob", hessian_mode="identity")
        self.tracer = InfluenceTracer(self.problem.model, config)
        self.weights = [traced.module.weight for traced in self.tracer.modules]
        names = [f"{traced.name}.weight" for traced in self.tracer.modules]
        direction = contrast_direction(self.responses(), self.group.accepted, self.weights)
        self.q = dict(zip(names, direction, strict=True))

    def position_gradients(self) -> Gradients:
        """Explicit gradients of log_prob at every response position."""
        objective = lambda: self.problem.objective(self.tracer.config, self.batch)  # noqa: E731
        factors = position_factors(self.tracer.modules, objective)
        return explicit_gradients(self.tracer.modules, factors, self.batch.layout)

    def log_probs(self, model=None) -> torch.Tensor:
        values, where = self.problem.log_probs(self.batch, model)
        return values.flatten()[(where.row >= 0).nonzero().squeeze(1)]

    def responses(self) -> list[torch.Tensor]:
        return list(self.log_probs().split([len(self.problem.responses[r]) for r in self.group.rows]))

    def value(self) -> torch.Tensor:
        signs = [1.0 if flag else -1.0 for flag in self.group.accepted]
        return sum(sign * lp.mean() for sign, lp in zip(signs, self.responses(), strict=True))

    def moved(self, steps: list[torch.Tensor], eps: float, measure) -> torch.Tensor:
        """(measure(theta + eps steps) - measure(theta - eps steps)) / (2 eps)."""
        with torch.no_grad():
            sides = []
            for sign in (eps, -2 * eps):
                for weight, step in zip(self.weights, steps, strict=True):
                    weight.add_(step, alpha=sign)
                sides.append(measure())
            for weight, step in zip(self.weights, steps, strict=True):
                weight.add_(step, alpha=eps)
        return (sides[0] - sides[1]) / (2 * eps)


@pytest.mark.parametrize(("dtype", "eps"), [(torch.float32, 1e-4), (torch.float64, 1e-6)])
def test_a_step_along_q_changes_log_probs_as_the_token_loss_score_says(dtype, eps):
    contrast = Contrast(dtype)
    predicted = token_loss_scores(contrast.problem.model, contrast.q, contrast.log_probs)
    measured = contrast.moved(list(contrast.q.values()), eps, contrast.log_probs)
    assert correlation(predicted, measured) > 0.999
    torch.testing.assert_close(
        measured, predicted, rtol=1e-2 if dtype == torch.float32 else 1e-7, atol=1e-2 * eps
    )


def test_position_scores_of_a_response_add_up_to_its_token_loss_scores():
    """Both attribute <q, gradient of the response's log-prob>, over positions or over tokens' own losses.

    Prompt positions carry a share of that gradient but emit no response token, so the position scores lack
    it.
    """
    contrast = Contrast(torch.float64)
    gradients = contrast.position_gradients()
    signs = [1.0 if flag else -1.0 for flag in contrast.group.accepted]
    q = {
        f"{traced.name}.weight": sum(
            sign * gradients[row][m].mean(0) for sign, row in zip(signs, contrast.group.rows, strict=True)
        ).view_as(traced.module.weight)
        for m, traced in enumerate(contrast.tracer.modules)
    }
    contrast.problem.update(contrast.tracer, [list(contrast.group.rows)])
    position = contrast.tracer.scores([contrast.group], dtype=torch.float64)
    exact = token_loss_scores(contrast.problem.model, q, contrast.log_probs)
    lengths = [len(contrast.problem.responses[row]) for row in contrast.group.rows]
    for row, token_loss in zip(contrast.group.rows, exact.split(lengths), strict=True):
        total = position[row].sum() + prompt_share(contrast, row, q)
        torch.testing.assert_close(total, token_loss.sum(), rtol=1e-9, atol=1e-9)
        assert (position[row] - token_loss).abs().max() > 1e-3  # token by token they are different numbers


def prompt_share(contrast: Contrast, row: int, q: dict[str, torch.Tensor]) -> torch.Tensor:
    """<q, gradient of the row's summed log-prob at the positions that emit no response token>."""
    batch = contrast.problem.batch([row])
    factors = position_factors(contrast.tracer.modules, lambda: contrast.problem.log_probs(batch)[0].sum())
    prompt = batch.layout.row < 0
    total = torch.zeros((), dtype=torch.float64)
    for traced in contrast.tracer.modules:
        x, e = factors[traced.name]
        total += ((e[prompt].T @ x[prompt]) * q[f"{traced.name}.weight"]).sum()
    return total


def test_a_step_along_minus_g_t_changes_the_contrast_as_the_score_says():
    contrast = Contrast(torch.float64)
    rows = list(contrast.group.rows)
    gradients = contrast.position_gradients()
    q = [contrast.q[f"{traced.name}.weight"] for traced in contrast.tracer.modules]
    for row in rows[:2]:
        for t in range(2):
            g = [gradients[row][m][t].view_as(w) for m, w in enumerate(contrast.weights)]
            predicted = -sum((direction * step).sum() for direction, step in zip(q, g, strict=True))
            measured = contrast.moved([-step for step in g], 1e-6, contrast.value)
            torch.testing.assert_close(measured, predicted, rtol=1e-6, atol=1e-9)
