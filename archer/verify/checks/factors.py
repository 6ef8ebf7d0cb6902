"""Captured factors against `.grad`."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from archer.influence import InfluenceConfig, InfluenceTracer
from archer.influence.config import DECODER_LINEARS
from archer.verify.captured import capture_objective, every_position
from archer.verify.forward import grpo_loss, token_log_probs
from archer.verify.result import CheckResult, at_least, at_most, exact
from archer.verify.sample import Sample
from archer.verify.statistics import relative_error

CONFIG = InfluenceConfig(enable=True, projection="none")


def check_factors(model: PreTrainedModel, sample: Sample) -> CheckResult:
    """sum over positions of u v^T = dL/dW for every linear module of the decoder.

    Prompt positions are captured, too: gradients reach them through attention, and the sum is only whole
    with them.
    """
    batch = sample.batch
    captured = capture_objective(
        model,
        every_position(batch),
        CONFIG,
        lambda: grpo_loss(token_log_probs(model, batch), sample.advantages, batch.mask),
    )
    linears = {
        name: module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in DECODER_LINEARS
    }
    traced = {module.name: module for module in InfluenceTracer(model, CONFIG).modules}
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
