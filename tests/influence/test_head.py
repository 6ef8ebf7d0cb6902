"""The head's influence in closed form is that of a tracer on the head, which reads it from a backward."""

import pytest
import torch
from torch import nn

from archer.influence import Group, InfluenceConfig, InfluenceTracer, Layout
from archer.influence.head import HeadSketch, head_scores

HIDDEN, VOCABULARY, LENGTHS = 12, 21, [5, 3, 7, 1, 4, 4, 6]
GROUPS = [Group("a", (0, 2, 3, 5), (True, False, False, True)), Group("b", (1, 4, 6), (False, True, False))]
KNOBS = {"contrastive_agg": "mean", "exclude_self_response": True, "reg_rule": "kernel_trace"}


class HeadOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False, dtype=torch.float64)

    def forward(self, hidden):
        return self.lm_head(hidden)


@pytest.fixture
def problem():
    torch.manual_seed(0)
    n, longest = len(LENGTHS), max(LENGTHS)
    hidden = torch.randn(n, longest, HIDDEN, dtype=torch.float64)
    tokens = torch.randint(0, VOCABULARY, (n, longest))
    mask = torch.arange(longest) < torch.tensor(LENGTHS)[:, None]
    return HeadOnly(), hidden, tokens, mask


def closed_form(problem, temperature: float, dim: int, mode: str, anchors: str = "contrast"):
    model, hidden, tokens, mask = problem
    with torch.no_grad():
        probs = (model(hidden) / temperature).softmax(-1).flatten(0, 1)
    sketch = HeadSketch.of(HIDDEN, VOCABULARY, dim)
    u = sketch.output_factors(probs, tokens.flatten(), temperature).view(*mask.shape, -1)
    v = sketch.input_factors(hidden.flatten(0, 1)).view(*mask.shape, -1)
    return head_scores(u, v, mask, GROUPS, mode, anchors)


def traced(problem, temperature: float, mode: str) -> dict[int, torch.Tensor]:
    model, hidden, tokens, mask = problem
    config = InfluenceConfig(
        enable=True, module_name_filter=("lm_head",), projection="none", hessian_mode=mode, **KNOBS
    )
    tracer = InfluenceTracer(model, config)
    row, token = mask.nonzero(as_tuple=True)
    whole = torch.full(mask.shape, -1)
    whole[mask] = row
    place = torch.zeros(mask.shape, dtype=torch.int64)
    place[mask] = token
    with tracer.capture(Layout(whole.flatten(), place.flatten())):
        log_probs = (model(hidden.requires_grad_()) / temperature).log_softmax(-1)
        log_probs.gather(-1, tokens[..., None])[..., 0][mask].sum().backward()
    return tracer.scores(GROUPS, dtype=torch.float64)


@pytest.mark.parametrize("mode", ["inverse", "identity"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_without_projection_scores_are_the_tracers(problem, mode, temperature):
    found = closed_form(problem, temperature, 0, mode)
    for row, expected in traced(problem, temperature, mode).items():
        length = LENGTHS[row]
        assert torch.allclose(found[row, :length], expected, rtol=1e-9, atol=1e-12)
        assert found[row, length:].isnan().all()


def test_scores_are_those_of_explicit_gradients(problem):
    model, hidden, tokens, _ = problem
    found = closed_form(problem, 1.0, 0, "inverse")
    for group in GROUPS:
        gradients, means = {}, {}
        for row in group.rows:
            each = []
            for t in range(LENGTHS[row]):
                model.zero_grad()
                model(hidden[row, t]).log_softmax(-1)[tokens[row, t]].backward()
                each.append(model.lm_head.weight.grad.flatten().clone())
            gradients[row], means[row] = each, torch.stack(each).mean(0)
        G = torch.stack([means[row] for row in group.rows])
        lam = 0.1 * G.square().sum() / len(group.rows)
        inverse = torch.linalg.inv(G.T @ G + lam * torch.eye(G.shape[1], dtype=G.dtype))
        verdict = dict(zip(group.rows, group.accepted, strict=True))
        for row in group.rows:
            for t, g in enumerate(gradients[row]):
                others = {r: float(means[r] @ inverse @ g) for r in group.rows if r != row}
                plus = [value for r, value in others.items() if verdict[r]]
                minus = [value for r, value in others.items() if not verdict[r]]
                expected = sum(plus) / max(1, len(plus)) - sum(minus) / max(1, len(minus))
                assert float(found[row, t]) == pytest.approx(expected, rel=1e-8)


def test_anchors_accepted_leave_the_rejected_responses_out(problem):
    model, hidden, tokens, _ = problem
    found = closed_form(problem, 1.0, 0, "identity", anchors="accepted")
    with torch.no_grad():
        probs = model(hidden).softmax(-1)
    pull = torch.nn.functional.one_hot(tokens, VOCABULARY) - probs
    g = torch.einsum("nlv,nlh->nlvh", pull, hidden).flatten(2)
    for group in GROUPS:
        for row in group.rows:
            pairs = zip(group.rows, group.accepted, strict=True)
            anchors = [r for r, accepted in pairs if accepted and r != row]
            G = torch.stack([g[r, : LENGTHS[r]].mean(0) for r in anchors]).mean(0) if anchors else 0 * g[0, 0]
            assert torch.allclose(
                found[row, : LENGTHS[row]], g[row, : LENGTHS[row]] @ G, rtol=1e-9, atol=1e-12
            )


def test_a_projection_keeps_inner_products_in_expectation(problem):
    exact = closed_form(problem, 1.0, 0, "identity")
    valid = exact.isfinite()
    sketch = HeadSketch.of(HIDDEN, VOCABULARY, 8)
    assert (sketch.project_in.k, sketch.project_out.k) == (8, 8)
    near = closed_form(problem, 1.0, 8, "identity")
    correlation = torch.corrcoef(torch.stack([exact[valid], near[valid]]))[0, 1]
    assert correlation > 0.5
    assert HeadSketch.of(HIDDEN, VOCABULARY, 64).project_out.k == VOCABULARY  # short vectors stay exact


def test_rows_in_no_group_have_no_score(problem):
    mask = problem[-1]
    u, v = torch.randn(*mask.shape, 3), torch.randn(*mask.shape, 4)
    scores = head_scores(u, v, mask, GROUPS[1:], "inverse", "contrast")
    assert scores[[0, 2, 3, 5]].isnan().all() and scores[[1, 4, 6]][mask[[1, 4, 6]]].isfinite().all()
    assert head_scores(u, v, mask, [], "inverse", "contrast").isnan().all()


def test_a_gradient_that_is_not_finite_leaves_its_group_without_scores(problem):
    mask = problem[-1]
    u, v = torch.randn(*mask.shape, 3), torch.randn(*mask.shape, 4)
    u[0, 0, 0] = torch.nan
    scores = head_scores(u, v, mask, GROUPS, "identity", "contrast")
    assert scores[2][mask[2]].isnan().all() and scores[1][mask[1]].isfinite().all()
