"""Exact checks on any model in the precision it computes in, with tolerances derived from that precision.

A sum of n products a_i b_i in a format of unit roundoff u errs by at most n u / (1 - n u) sum |a_i b_i|, in
whatever order it is added up. u is 2^-24 for float32 and 2^-8 for bfloat16, whose products are added in
float32 and rounded once at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from transformers import PreTrainedModel

from archer.generation.batch import MicroBatch, Responses, micro_batch
from archer.generation.device import Compute
from archer.generation.policy import Policy, TokenStats
from archer.influence import Group, InfluenceConfig, InfluenceTracer, Layout
from archer.influence.config import RegRule
from archer.influence.factors import TokenFactors
from archer.verify.report import CheckResult, at_least, at_most, exact
from archer.verify.shared_prompt import SharedPrompt
from archer.verify.statistics import pearson, relative_error

U32, UB = 2.0**-24, 2.0**-8
EXACT = InfluenceConfig(enable=True, projection="none")
IDENTITY = replace(EXACT, hessian_mode="identity")
SMALL = InfluenceConfig(
    enable=True,
    projection_dim_factor=1,
    max_hessian_dim=256,
    exclude_self_response=True,
    contrastive_agg="mean",
)
CHANGE = 0.01  # of the contrast, by a step of finite differences
ABOVE_NOISE = 1e5  # at least so many times what rounding changes it by
ROUNDINGS = 20  # results rounded in a block on the way forward and back
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True, eq=False)
class CheckedGroup:
    """A model in plain attention and the responses of one prompt, with both verdicts."""

    model: PreTrainedModel
    device: torch.device
    responses: Responses
    accepted: tuple[bool, ...]

    @classmethod
    def of(
        cls, model: PreTrainedModel, device: torch.device, responses: Responses, accepted: tuple[bool, ...]
    ) -> CheckedGroup:
        """Copy the model: the policy's own attention may know packed rows alone."""
        copied = deepcopy(model)
        copied.set_attn_implementation("sdpa")
        return cls(copied.eval(), device, responses, accepted)

    def pair(self) -> CheckedGroup:
        """The shortest accepted and the shortest rejected response alone."""
        lengths = self.responses.lengths.tolist()
        rows = [
            min((row for row, flag in enumerate(self.accepted) if flag == side), key=lengths.__getitem__)
            for side in (True, False)
        ]
        return replace(self, responses=self.responses.rows(rows), accepted=(True, False))

    @property
    def group(self) -> Group:
        """All responses as one group."""
        return Group("prompt", tuple(range(len(self.responses))), self.accepted)

    @cached_property
    def batch(self) -> MicroBatch:
        """All responses, padded."""
        return micro_batch(self.responses, range(len(self.responses)), self.device)

    @cached_property
    def signs(self) -> Tensor:
        """[R] +1 for accepted, -1 for rejected."""
        return torch.tensor([1.0 if flag else -1.0 for flag in self.accepted], device=self.device)

    def stats(self, dtype: torch.dtype = torch.float32) -> TokenStats:
        """Log-probs and entropies of every response token, [n, L]."""
        return Policy(self.model, Compute(self.device, dtype), 1.0).token_stats(self.batch)

    def log_probs(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """[n, L] log pi of every response token, 0 outside the mask."""
        return self.stats(dtype).log_probs

    def means(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """[R] mean log pi of each response."""
        return self.log_probs(dtype).sum(1) / self.batch.mask.sum(1)

    def shared_log_probs(self) -> Tensor:
        """[n, L] the same in float32, the prompt read once where the model can be called so."""
        policy = Policy(self.model, Compute(self.device, torch.float32), 1.0)
        tokens = self.responses.prompts[0].token_ids
        if not SharedPrompt.fits(policy, tokens):
            return self.log_probs()
        prompt = SharedPrompt(policy, tokens, constant=False)
        return policy.token_stats(prompt.batch(self.responses, range(len(self.responses)))).log_probs

    @torch.no_grad()
    def contrast(self) -> float:
        """C = sum over accepted of mean log pi - sum over rejected of the same."""
        means = self.shared_log_probs().sum(1) / self.batch.mask.sum(1)
        return float((means.double() * self.signs).sum())

    def capture_means(self, config: InfluenceConfig, dtype: torch.dtype, every: bool) -> TokenFactors:
        """Factors of sum_r mean_t log pi, of every position or of the emitting ones; `.grad` is left."""
        return self._capture(config, every, lambda: self.means(dtype).sum())

    def capture_log_probs(self, config: InfluenceConfig, dtype: torch.dtype) -> TokenFactors:
        """Factors of sum_t log pi, of the emitting positions; `.grad` is left."""
        return self._capture(config, False, lambda: self.log_probs(dtype).sum())

    def scores(
        self, config: InfluenceConfig, factors: TokenFactors, group: Group | None = None
    ) -> dict[int, Tensor]:
        """Float64 scores out of factors, of the group or under other labels."""
        tracer = InfluenceTracer(self.model, config)
        tracer.take([factors])
        return tracer.scores((group or self.group,), dtype=torch.float64)

    def _capture(self, config: InfluenceConfig, every: bool, objective: Callable[[], Tensor]) -> TokenFactors:
        batch = self.batch
        tracer = InfluenceTracer(self.model, config)
        n, width = batch.input_ids.shape
        if every:
            layout = Layout(batch.rows.repeat_interleave(width), torch.arange(width).repeat(n))
        else:
            layout = Layout.padded(batch.rows, batch.prompt_lengths, batch.lengths, width)
        self.model.zero_grad(set_to_none=True)
        with tracer.capture(layout, version=0):
            objective().backward()
        return tracer.captured[0]


def check_factors(subject: CheckedGroup, dtype: torch.dtype) -> CheckResult:
    """sum over positions of u v^T = dJ/dW for every traced module, within what the gradient's sum may round.

    The sum of the factors is made in float64, so the whole deviation is that of `.grad`.
    """
    before = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False  # sums in float32
    try:
        factors = subject.capture_means(EXACT, dtype, every=True)
    finally:
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = before
    worst, count = 0.0, 0
    for module in InfluenceTracer(subject.model, EXACT).modules:
        u, v = factors.u[module.name].double() * module.scale, factors.v[module.name].double()
        gradient = module.weight.grad
        if gradient is None:
            worst = float("inf")
            continue
        n = len(u) * U32 / (1 - len(u) * U32)
        total = u.T @ v
        bound = n * (u.abs().T @ v.abs())
        if dtype == torch.bfloat16:
            bound = bound + UB * (total.abs() + bound)
        excess = (gradient.double() - total).abs() / bound.clamp(min=1e-300)
        worst = max(worst, float(excess.max()))
        count += 1
    subject.model.zero_grad(set_to_none=True)
    name = NAMES[dtype]
    return exact(
        f"captured factors against .grad, {name}",
        f"What the hooks keep adds up to the optimizer's gradient, within what sums in {name} may round.",
        [
            at_least("traced modules", count, 1),
            at_most("largest deviation, in units of the rounding bound of its entry", worst, 1.0),
        ],
    )


def check_solvers(subject: CheckedGroup, dtype: torch.dtype) -> CheckResult:
    """The dual and the primal solve from the same factors; both compute in float32 from these on.

    Allowed: the condition number of H + lambda I, at most 1 + trace(H) / lambda, times sqrt(D) roundings.
    """
    factors = subject.capture_means(SMALL, dtype, every=False)
    subject.model.zero_grad(set_to_none=True)
    dims = max(factors.u[name].shape[1] * factors.v[name].shape[1] for name in factors.u)
    dims = min(dims, SMALL.max_hessian_dim)
    figures = []
    rules: tuple[tuple[RegRule, int], ...] = (
        ("kernel_trace", 1 + 10 * len(subject.responses)),
        ("hessian_trace", 1 + 10 * dims),
    )
    for rule, condition in rules:
        found = [
            torch.cat(list(subject.scores(replace(SMALL, solver=solver, reg_rule=rule), factors).values()))
            for solver in ("dual", "primal")
        ]
        allowed = condition * dims**0.5 * U32
        figures.append(at_most(f"reg_rule={rule}: relative error", relative_error(*found), allowed))
    return exact(
        f"dual against primal, {NAMES[dtype]}",
        "The cheap solve gives the scores of the D x D one, within the condition number times rounding.",
        figures,
    )


def check_slopes(subject: CheckedGroup, tokens: int) -> CheckResult:
    """Central differences of the contrast C along -g_t in float32, for the tokens with the largest scores.

    Captured at every position with J = sum_r mean_t log pi, the width of the batch times the identity score
    is <grad C, g_t>. The step h is such that C changes by about 0.01, or by 10^5 times what rounding changes
    it by if that is more, as in large models. Allowed, for the difference at h/2: |D(h) - D(h/2)|, which is
    three times the cubic term that Richardson's rule finds there, and the rounding of C over the step: the
    largest change of C under relative changes of all weights by 2^-24.
    """
    factors = subject.capture_means(IDENTITY, torch.float32, every=True)
    subject.model.zero_grad(set_to_none=True)
    scores = subject.scores(IDENTITY, factors)
    width = subject.batch.input_ids.shape[1]
    modules = InfluenceTracer(subject.model, IDENTITY).modules
    flat = torch.cat([scores[row] for row in sorted(scores)])
    largest = flat.abs().topk(min(tokens, len(flat))).indices.tolist()
    noise = _rounding_of(subject)
    excess, allowances = [], []
    for place in largest:
        row, position = divmod(place, width)
        line = factors.positions[row][position]
        told = -width * float(scores[row][position])
        step = {
            m.name: -torch.outer(factors.u[m.name][line], factors.v[m.name][line]).float() * m.scale
            for m in modules
        }
        h = max(CHANGE, ABOVE_NOISE * noise) / (2 * abs(told))
        whole, half = (_slope(subject, step, size) for size in (h, h / 2))
        allowed = abs(whole - half) + noise / (h / 2)
        excess.append(abs(half - told) / allowed)
        allowances.append(allowed / abs(told))
    return exact(
        "finite differences, float32",
        "Scores are slopes: small steps of the real parameters change the contrast as they say.",
        [
            at_most(
                f"{len(largest)} tokens: largest deviation, in units of what is allowed", max(excess), 1.0
            ),
            at_most("what is allowed, as a share of the slope", max(allowances), 0.1),
        ],
    )


def check_precision(subject: CheckedGroup) -> CheckResult:
    """Scores captured in bfloat16 against those in float32.

    Each block rounds about 20 results on the way forward and back, each by up to 2^-8, independently: over L
    blocks a relative error of rho = sqrt(20 L) 2^-8. Twice that leaves a correlation of 1/sqrt(1 + 4 rho^2).
    """
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        scores = subject.scores(IDENTITY, subject.capture_means(IDENTITY, dtype, every=False))
        found.append(torch.cat([scores[row] for row in sorted(scores)]))
    subject.model.zero_grad(set_to_none=True)
    layers = int(subject.model.config.get_text_config().num_hidden_layers)
    rho = (ROUNDINGS * layers) ** 0.5 * UB
    return exact(
        "slopes in bfloat16 against float32",
        "What bfloat16 rounds in the passes leaves the scores of tokens in place.",
        [at_least("Pearson r over all tokens", pearson(*found), (1 + 4 * rho**2) ** -0.5)],
    )


@torch.no_grad()
def _rounding_of(subject: CheckedGroup) -> float:
    """Largest change of C when every weight moves by a relative 2^-24 of random sign, over three draws."""
    generator = torch.Generator(device=subject.device).manual_seed(0)
    start, changes = subject.contrast(), []
    weights = list(subject.model.parameters())
    before = [weight.clone() for weight in weights]
    for _ in range(3):
        for weight, value in zip(weights, before, strict=True):
            sign = torch.randint(0, 2, value.shape, generator=generator, device=value.device) * 2 - 1
            weight.copy_(value * (1 + 2 * U32 * sign))
        changes.append(abs(subject.contrast() - start))
    for weight, value in zip(weights, before, strict=True):
        weight.copy_(value)
    return max(changes)


@torch.no_grad()
def _slope(subject: CheckedGroup, step: dict[str, Tensor], h: float) -> float:
    """(C(theta + h d) - C(theta - h d)) / (2 h)."""
    modules = {m.name: m.weight for m in InfluenceTracer(subject.model, IDENTITY).modules}
    before = {name: modules[name].detach().clone() for name in step}
    sides = []
    for sign in (h, -h):
        for name, direction in step.items():
            modules[name].copy_(before[name] + sign * direction)
        sides.append(subject.contrast())
    for name, value in before.items():
        modules[name].copy_(value)
    return (sides[0] - sides[1]) / (2 * h)
