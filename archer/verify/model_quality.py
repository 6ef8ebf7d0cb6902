"""What a projection keeps, and what one optimizer step loses without some tokens, on any model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from archer.influence import Group, InfluenceConfig
from archer.verify.model_checks import CheckedGroup
from archer.verify.report import CheckResult, Figure, reported
from archer.verify.sample import permuted
from archer.verify.statistics import pearson, spearman
from archer.verify.token_methods import advantages_of

FACTORS = (32, 16, 8, 4, 2)
LAST_BLOCKS = 2
# Without caps, so that k really is d // factor.
UNCAPPED = InfluenceConfig(
    enable=True,
    exclude_self_response=True,
    contrastive_agg="mean",
    max_proj_vector_sum=0,
    max_hessian_dim=0,
    max_modules=LAST_BLOCKS,
)
MODES: Mapping[str, dict[str, Any]] = {
    "inverse, reg_rule=kernel_trace": {"reg_rule": "kernel_trace"},
    "inverse, reg_rule=hessian_trace": {},
    "identity": {"hessian_mode": "identity"},
}
SHARE = 5  # one token in five is left out
IN_FULL = InfluenceConfig(enable=True, projection_dim_factor=4)
STEP = 1e-3  # the step of SGD, in nats of the loss that it gains to first order
PERMUTATIONS = 3


def check_projection(subject: CheckedGroup) -> CheckResult:
    """Spearman correlation of one group's token scores with those of projection=none."""
    dtype = torch.float32
    exact = subject.capture_means(replace(UNCAPPED, projection="none"), dtype, every=False)
    projected = {
        factor: subject.capture_means(replace(UNCAPPED, projection_dim_factor=factor), dtype, every=False)
        for factor in FACTORS
    }
    subject.model.zero_grad(set_to_none=True)
    figures = []
    for what, knobs in MODES.items():
        full = subject.scores(replace(UNCAPPED, projection="none", **knobs), exact)
        line = []
        for factor, factors in projected.items():
            config = replace(UNCAPPED, projection_dim_factor=factor, **knobs)
            scores = subject.scores(config, factors)
            line.append(spearman(_joined(scores), _joined(full)))
        figures.append(Figure(what, tuple(line)))
    return reported(
        "projection fidelity",
        "How much of the ranking of tokens a projection keeps: Spearman correlation with exact scores, by "
        "projection_dim_factor.",
        f"One group of responses, the modules of the last {LAST_BLOCKS} blocks. With hessian_trace lambda "
        "shrinks as D grows, so those lines compare differently damped scores.",
        tuple(f"1/{factor}" for factor in FACTORS),
        figures,
    )


def check_step(subject: CheckedGroup, subsets: int, seed: int) -> CheckResult:
    """Correlate what a step of SGD loses in the contrast without some tokens with their summed scores."""
    responses, batch = subject.responses, subject.batch
    advantages = advantages_of(responses, subject.accepted)
    lengths = responses.lengths
    tokens = int(lengths.sum())
    generator = torch.Generator().manual_seed(seed)
    left_out = torch.zeros(subsets, tokens, dtype=torch.bool)
    for line in left_out:
        line[torch.randperm(tokens, generator=generator)[: tokens // SHARE]] = True
    lost = _contrast_lost(subject, advantages, left_out)
    factors = subject.capture_log_probs(IN_FULL, torch.float32)
    subject.model.zero_grad(set_to_none=True)
    each = advantages.repeat_interleave(lengths).double()
    shuffled = [permuted((subject.group,), seed + i)[0] for i in range(PERMUTATIONS)]

    def influence(groups: list[Group], **knobs: Any) -> list[Tensor]:
        config = replace(IN_FULL, **knobs)
        return [_joined(subject.scores(config, factors, group)) * each for group in groups]

    with torch.no_grad():
        stats = subject.stats()
    mask = batch.mask
    predictors = {
        "tracer, identity, x advantage": influence([subject.group], hessian_mode="identity"),
        "tracer, inverse, x advantage": influence([subject.group], reg_rule="kernel_trace"),
        "null: identity, labels permuted, x advantage": influence(shuffled, hessian_mode="identity"),
        "entropy": [stats.entropy[mask].cpu().double()],
        "-log-prob": [-stats.log_probs[mask].cpu().double()],
        "|advantage|": [each.abs()],
        "random": [torch.rand(tokens, generator=generator).double()],
    }
    figures = []
    for what, values in predictors.items():
        found = [pearson(left_out.double() @ value, lost) for value in values]
        figures.append(Figure(what, (sum(found) / len(found),)))
    return reported(
        "one-step counterfactual",
        f"Pearson r of the summed scores of {subsets} random token subsets with what one step of SGD from "
        "the same weights loses in (accepted - rejected) log-prob without them.",
        f"One group of {len(responses)} responses, {tokens} tokens. "
        f"|r| below {2 / subsets**0.5:.2f} is noise.",
        ("Pearson r",),
        figures,
    )


def _contrast_lost(subject: CheckedGroup, advantages: Tensor, left_out: Tensor) -> Tensor:
    """Contrast after a step with all tokens minus the contrast after a step without some, [subsets]."""
    batch = subject.batch
    weights = [weight for weight in subject.model.parameters() if weight.requires_grad]
    before = [weight.detach().clone() for weight in weights]
    nothing = torch.zeros(1, left_out.shape[1], dtype=torch.bool)
    total = left_out.shape[1]
    over_tokens = advantages.to(subject.device)[:, None]
    rate = 0.0
    after: list[float] = []
    for subset in torch.cat([nothing, left_out]):
        mask = batch.mask.masked_scatter(batch.mask, ~subset.to(subject.device))
        # On-policy the clipped loss has the gradient of -A log pi; the mean is over all tokens each time.
        loss = -(over_tokens * subject.shared_log_probs() * mask).sum() / total
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        if not after:
            rate = STEP / float(sum(g.double().square().sum() for g in gradients if g is not None))
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                if gradient is not None:
                    weight -= rate * gradient
        after.append(subject.contrast())
        with torch.no_grad():
            for weight, value in zip(weights, before, strict=True):
                weight.copy_(value)
    return after[0] - torch.tensor(after[1:], dtype=torch.float64)


def _joined(scores: Mapping[int, Tensor]) -> Tensor:
    return torch.cat([scores[row] for row in sorted(scores)])
