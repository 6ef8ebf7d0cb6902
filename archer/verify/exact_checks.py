"""Exact checks of the parts: captured factors, alignment, the two solvers, rescaled objectives."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from archer.generation.batch import micro_batch
from archer.influence import InfluenceConfig, InfluenceTracer
from archer.influence.config import OutputFunction
from archer.verify.capture import (
    capture_objective,
    capture_update,
    every_position,
    grpo_loss,
    joined,
    layout_of,
    token_log_probs,
)
from archer.verify.report import CheckResult, Figure, at_least, at_most, exact
from archer.verify.sample import COMPUTE, VerificationSample
from archer.verify.statistics import relative_error

EXACT = InfluenceConfig(enable=True, projection="none")
PROJECTED = InfluenceConfig(enable=True, projection_dim_factor=8)
OBJECTIVES: tuple[OutputFunction, ...] = ("log_prob", "log_prob_advantage", "log_prob_reward")


def check_factors(model: PreTrainedModel, sample: VerificationSample) -> CheckResult:
    """sum over positions of u v^T = dL/dW for every linear module of the decoder.

    Prompt positions are captured, too: gradients reach them through attention, and the sum is only whole
    with them.
    """
    batch = sample.batch
    captured = capture_objective(
        model,
        every_position(batch),
        EXACT,
        lambda: grpo_loss(token_log_probs(model, batch), sample.advantages, batch.mask),
    )
    linears = {
        name: module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not model.get_output_embeddings()
    }
    traced = {module.name: module for module in InfluenceTracer(model, EXACT).modules}
    errors = []
    for name in linears.keys() & traced.keys():
        u, v = captured.factors.u[name] * traced[name].scale, captured.factors.v[name]
        gradient = linears[name].grad
        assert gradient is not None
        errors.append(relative_error(u.T @ v, gradient))
    model.zero_grad(set_to_none=True)
    return exact(
        "captured factors against .grad",
        "What the hooks keep of each position adds up to the gradient that the optimizer uses.",
        [
            at_least(f"traced modules, of {len(linears)} linear ones", len(errors), len(linears)),
            at_most("largest relative error of a module", max(errors, default=float("nan")), 1e-10),
        ],
    )


def check_alignment(model: PreTrainedModel, sample: VerificationSample) -> CheckResult:
    """log pi_t depends on no position after the one that emits t, and on that one.

    So in the backward of log pi_t alone, the last captured token with a gradient has to be t itself.
    """
    batch = micro_batch(sample.responses, [0], COMPUTE.device)
    config = replace(EXACT, max_modules=1)

    def log_prob(t: int) -> Tensor:
        return token_log_probs(model, batch)[0, t]

    misplaced = 0
    for t in range(sample.lengths[0]):
        captured = capture_objective(model, layout_of(batch), config, partial(log_prob, t))
        reached = torch.stack([(u != 0).any(1) for u in captured.factors.u.values()]).any(0)
        last = int(captured.factors.token[reached].max()) if bool(reached.any()) else -1
        misplaced += last != t
    model.zero_grad(set_to_none=True)
    return exact(
        "tokens against the positions that emit them",
        "A score belongs to the token it is written for, not to its neighbour.",
        [at_most(f"tokens captured at another position, of {sample.lengths[0]}", misplaced, 0)],
    )


def check_solvers(model: PreTrainedModel, sample: VerificationSample) -> CheckResult:
    """(G^T G + lambda I)^-1 G^T c in parameter space = G^T (K + lambda I)^-1 c through the kernel."""
    captured = capture_update(model, sample, replace(PROJECTED, exclude_self_response=True))
    figures: list[Figure] = []
    for source in ("response", "token"):
        for rule in ("hessian_trace", "kernel_trace"):
            knobs = {"hessian_source": source, "reg_rule": rule}
            dual, of_dual = captured.scored(sample.groups, solver="dual", **knobs)
            primal, of_primal = captured.scored(sample.groups, solver="primal", **knobs)
            error = relative_error(joined(dual), joined(primal))
            figures.append(at_most(f"hessian_source={source}, reg_rule={rule}: relative error", error, 1e-8))
    wanted = len(sample.groups) * len(captured.factors.u)
    solves = min(
        of_dual["influence_trace/debug_dual_solves"], of_primal["influence_trace/debug_primal_solves"]
    )
    figures.append(at_least("solves that went each way, last line", solves, wanted))
    return exact("dual against primal", "The cheap n x n solve gives the scores of the D x D one.", figures)


def check_objectives(model: PreTrainedModel, sample: VerificationSample) -> CheckResult:
    """The on-policy GRPO loss weights all tokens of a response alike, so each objective is a rescaling of it.

    A tolerance of 0 forbids that and forces the objective's own backward. The counters say that both ways
    were really taken.
    """
    figures: list[Figure] = []
    rescaled, second = 0.0, 0.0
    for objective in OBJECTIVES:
        config = replace(PROJECTED, output_function=objective)
        cheap = capture_update(model, sample, config)
        costly = capture_update(model, sample, replace(config, proportionality_tolerance=0.0))
        error = relative_error(joined(cheap.scores(sample.groups)), joined(costly.scores(sample.groups)))
        figures.append(at_most(f"{objective}: relative error", error, 1e-9))
        rescaled += cheap.counters["influence_trace/debug_rescaled_micro_batches"]
        second += costly.counters["influence_trace/debug_second_backwards"]
    figures.append(at_least("objectives that were rescaled", rescaled, len(OBJECTIVES)))
    figures.append(at_least("objectives that ran a second backward", second, len(OBJECTIVES)))
    return exact(
        "rescaling against a second backward",
        "Other objectives come out of the real backward at no cost and unchanged.",
        figures,
    )
