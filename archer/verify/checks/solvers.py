"""The dual solve against the primal one."""

from __future__ import annotations

from transformers import PreTrainedModel

from archer.influence import InfluenceConfig
from archer.verify.captured import capture_update, joined
from archer.verify.result import CheckResult, Figure, at_least, at_most, exact
from archer.verify.sample import Sample
from archer.verify.statistics import relative_error

CONFIG = InfluenceConfig(enable=True, projection_dim_factor=8, exclude_self_response=True)


def check_solvers(model: PreTrainedModel, sample: Sample) -> CheckResult:
    """(G^T G + lambda I)^-1 G^T c in parameter space = G^T (K + lambda I)^-1 c through the kernel."""
    captured = capture_update(model, sample, CONFIG)
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
    return exact(
        "dual against primal",
        "The cheap n x n solve gives the scores of the D x D one.",
        figures,
    )
