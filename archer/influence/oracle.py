"""Influence by brute force, for verification: explicit gradients, explicit H, explicit loops.

Nothing here shares code with the tracer beyond the projection matrices and the configuration. There are two
kinds of number:

- position gradients, what the tracer scores: x_t (x) e_t at the position that emits token t, which carries
  the later tokens' losses that reach this position through attention;
- token-loss gradients, d log pi_t / d theta: an exact score along a direction q needs one JVP for all tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from archer.influence.config import InfluenceConfig
from archer.influence.groups import Group
from archer.influence.layout import Layout
from archer.influence.modules import TracedModule

Gradients = dict[int, list[Tensor]]
"""Response row -> per module the explicit gradients [tokens, D] of its traced tokens, in token order."""


def position_factors(
    modules: Sequence[TracedModule], objective: Callable[[], Tensor]
) -> dict[str, tuple[Tensor, Tensor]]:
    """(x [n, d_in], e [n, d_out]) of all n positions and every module, e = dJ/dy by `torch.autograd.grad`.

    Args:
        modules: where to look; each must run once.
        objective: runs the forward and returns J.
    """
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}

    def remember(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            inputs[name], outputs[name] = args[0].detach(), output

        return hook

    handles = [traced.module.register_forward_hook(remember(traced.name)) for traced in modules]
    try:
        J = objective()
    finally:
        for handle in handles:
            handle.remove()
    names = [traced.name for traced in modules]
    errors = torch.autograd.grad(J, [outputs[name] for name in names])
    return {
        name: (inputs[name].flatten(0, -2), error.flatten(0, -2))
        for name, error in zip(names, errors, strict=True)
    }


def explicit_gradients(
    modules: Sequence[TracedModule],
    factors: dict[str, tuple[Tensor, Tensor]],
    layout: Layout,
    max_tokens_per_response: int = 0,
) -> Gradients:
    """P_out (e_t x_t^T) P_in^T for every response token, from the full gradient matrix of each position."""
    gradients: Gradients = {}
    for row, length in layout.lengths().items():
        first = max(0, length - max_tokens_per_response) if max_tokens_per_response > 0 else 0
        gradients[row] = []
        for traced in modules:
            x, e = factors[traced.name]
            P_in, P_out = traced.project_in.matrix().to(x), traced.project_out.matrix().to(x)
            tokens = []
            for t in range(first, length):
                position = int(((layout.row == row) & (layout.token == t)).nonzero())
                full = torch.outer(e[position], x[position])
                tokens.append((P_out @ full @ P_in.T).flatten())
            gradients[row].append(torch.stack(tokens))
    return gradients


def brute_force_scores(gradients: Gradients, group: Group, config: InfluenceConfig) -> dict[int, Tensor]:
    """Scores of one group by the definitions: an explicit inverse of an explicit H and a loop over (r, t)."""
    R = len(group.rows)
    modules = range(len(gradients[group.rows[0]]))
    means = {row: [gradients[row][m].mean(0) for m in modules] for row in group.rows}
    inverses = [_inverse_hessian(gradients, means, group, m, config) for m in modules]
    scores = {}
    for own, row in enumerate(group.rows):
        tokens = []
        for t in range(len(gradients[row][0])):
            g = [gradients[row][m][t] for m in modules]
            solved = [inverses[m] @ g[m] for m in modules]
            infl = [sum(float(means[other][m] @ solved[m]) for m in modules) for other in group.rows]
            others = [r for r in range(R) if not (config.exclude_self_response and r == own)]
            plus = [infl[r] for r in others if group.accepted[r]]
            minus = [infl[r] for r in others if not group.accepted[r]]
            if config.contrastive_agg == "mean":
                plus, minus = [sum(plus) / max(1, len(plus))], [sum(minus) / max(1, len(minus))]
            score = sum(plus) - sum(minus)
            if config.score_normalization == "token_norm":
                square = sum(float(g[m] @ solved[m]) for m in modules)
                score = score / square**0.5 if square > 0 else 0.0
            tokens.append(score)
        scores[row] = torch.tensor(tokens, dtype=torch.float64)
    return scores


def _inverse_hessian(
    gradients: Gradients, means: dict[int, list[Tensor]], group: Group, m: int, config: InfluenceConfig
) -> Tensor:
    D = means[group.rows[0]][m].numel()
    eye = torch.eye(D, dtype=means[group.rows[0]][m].dtype)
    if config.hessian_mode == "identity":
        return eye
    if config.hessian_source == "response":
        terms = [means[row][m] for row in group.rows]
    else:
        terms = [g for row in group.rows for g in gradients[row][m]]
    H = torch.zeros_like(eye)
    for g in terms:
        H += torch.outer(g, g)
    trace = float(torch.trace(H))
    if config.reg_rule == "kernel_trace":
        lam = (config.reg_lambda if config.reg_lambda > 0 else 0.1) * trace / len(terms)
    else:
        lam = config.reg_lambda if config.reg_lambda > 0 else 0.1 * trace / D
    return torch.linalg.inv(H + (lam if lam > 0 else 1.0) * eye)


def contrast_direction(
    log_probs: Sequence[Tensor], accepted: Sequence[bool], parameters: Sequence[nn.Parameter]
) -> list[Tensor]:
    """q = d/dtheta (sum over accepted - sum over rejected) of mean_t log pi_t, by one backward.

    Args:
        log_probs: token log-probs of each response, one vector each, still part of the graph.
        accepted: for each response whether it is accepted.
        parameters: theta.
    """
    contrast = torch.stack(
        [lp.mean() if flag else -lp.mean() for lp, flag in zip(log_probs, accepted, strict=True)]
    ).sum()
    return list(torch.autograd.grad(contrast, parameters))


def token_loss_scores(
    model: nn.Module,
    direction: dict[str, Tensor],
    log_probs: Callable[[Callable[..., object]], Tensor],
) -> Tensor:
    """s_t = d/d eps log pi_t(theta + eps q) at eps = 0, for all tokens by one JVP.

    Args:
        model: the model; its attention must support forward-mode differentiation
            (`attn_implementation="eager"`).
        direction: q per parameter name; parameters that are not named stay fixed.
        log_probs: given a callable that stands for the model, returns the token log-probs.
    """
    point = {name: dict(model.named_parameters())[name].detach() for name in direction}

    def moved(parameters: dict[str, Tensor]) -> Tensor:
        return log_probs(lambda *args, **kwargs: functional_call(model, parameters, args, kwargs))

    return jvp(moved, (point,), (direction,))[1]
