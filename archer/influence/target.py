"""Influence on a target that is no contrast: which training tokens help a validation set?

    G*      = gradient of the target's loss: sum over all its captured positions of g_t
    G_r     = mean over t in r of g_t                  of a training row r, as everywhere
    H       = sum over the training rows that are scored together of G_r G_r^T + lambda I
    score_t = <G*, H^-1 g_t>,  or <G*, g_t>            (hessian_mode=inverse, identity)

With gradients of losses on both sides (`output_function=training_loss`) a positive score says that a step
down the loss of this token brings the target's loss down: it helps.

    tracer = TargetTracer(model, config)
    tracer.clear_target()
    with tracer.capture(layout):        # validation rows; the layout covers prompts, too
        loss.backward()
    tracer.add_to_target(weight)        # once or several times; frees the factors
    with tracer.capture(layout):        # training rows, under the same weights
        loss.backward()
    scores = tracer.target_scores()     # {row: float32[len]}

A validation loss reaches weights through every position of its sequences, also those that emit no token that
is learnt. Where the layout covers them all (`Layout.from_mask(attention_mask)`), G* is its whole gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from archer.errors import ArcherError
from archer.influence.bundle import Bundle, make_bundles, solved_together
from archer.influence.distributed import Exchange, Ranks, gather_groups
from archer.influence.groups import Group, Selection
from archer.influence.scoring import Scorer, Totals
from archer.influence.solve import Dual, InverseHessian, Primal
from archer.influence.stacks import BlockReader, stacks_of
from archer.influence.tracer import InfluenceTracer

MEANINGLESS = {
    "accepted_rejected_scope": "per_prompt",
    "contrastive_agg": "sum",
    "exclude_self_response": False,
}
"""Knobs that a contrast alone has, and the values at which they say nothing."""

NOTHING = "no row was captured: the forward and backward belong inside tracer.capture"


class TargetTracer(InfluenceTracer):
    """A tracer whose scores compare each token with the gradient of a target.

    Under a process group rows have numbers of their own on every rank, all ranks score together, and each
    adds to the target what it captured of it.
    """

    _sum: Tensor | None = None  # [sum of D] gradient of what was added here, module after module
    _weight_sum = 0.0

    def clear_target(self) -> None:
        """Forget the target, whose weights are no longer those of the model."""
        self._sum, self._weight_sum = None, 0.0

    def add_to_target(self, weight: float = 1.0) -> None:
        """Add what was captured since the last call or scores, and free its factors.

        G* = sum of weight_k * gradient_k / sum of weight_k. Where each part's loss is a mean over its
        examples (or tokens), their number is its weight.
        """
        self._check_knobs()
        try:
            rows = self._captured_rows()
            if not rows:
                raise ArcherError(NOTHING)
            device, dtype = self._device, self._compute_dtype
            scorer = Scorer(self.modules, self.config, self.counters, self._stopwatch, device, dtype)
            group = Group("target", tuple(rows), (False,) * len(rows))
            (bundle,) = make_bundles(
                [group], self.captured, self.modules, self.config, Exchange(), device, dtype
            )
            counts = bundle.counts.sum(0).unsqueeze(1).to(device)  # of the mean that G_r is
            gradients = scorer.gradients_of(bundle)
            flat = torch.cat([(gradients[traced.name] * counts).sum(0) for traced in self.modules])
            self._sum = flat * weight if self._sum is None else self._sum + flat * weight
            self._weight_sum += weight
        finally:
            self.reset()

    def target_scores(self, dtype: torch.dtype = torch.float32) -> dict[int, Tensor]:
        """Score per token of every row captured since, {row: [length]} on the CPU; frees the factors.

        NaN where nothing is traced. The target stays.
        """
        self._check_knobs()
        if self._sum is None:
            raise ArcherError("there is no target: capture validation rows, then call tracer.add_to_target")
        group = self._everyone()
        self.counters.selected_responses = len(group.rows)
        return self.scores(Selection((group,), 0, 0, 0), dtype)

    def _check_knobs(self) -> None:
        for name, value in MEANINGLESS.items():
            if vars(self.config)[name] != value:
                raise ArcherError(
                    f"{name}={vars(self.config)[name]} belongs to a contrast, and a target is none: leave it "
                    f"at {value}"
                )

    def _captured_rows(self) -> list[int]:
        return sorted({row for batch in self.captured for row in batch.lengths})

    def _everyone(self) -> Group:
        """All captured rows as one group, the same on every rank."""
        mine = self._captured_rows()
        group = Group("rows", tuple(mine), (False,) * len(mine))
        if isinstance(self._exchange, Ranks):
            (group,) = gather_groups([group], self._exchange.group)
        if not group.rows:
            raise ArcherError(NOTHING)
        return group

    def _scorer(self, device: torch.device, compute: torch.dtype) -> Scorer:
        assert self._sum is not None
        weight = torch.tensor([self._weight_sum], device=device, dtype=compute)
        whole = self._exchange.sum(torch.cat([self._sum, weight]))
        parts = (whole[:-1] / whole[-1]).split([traced.dim for traced in self.modules])
        goals = dict(zip([traced.name for traced in self.modules], parts, strict=True))
        return TargetScorer(goals, self.modules, self.config, self.counters, self._stopwatch, device, compute)


class TargetScorer(Scorer):
    """Scores of rows along H^-1 G*."""

    def __init__(self, goals: dict[str, Tensor], *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.goals = goals  # module -> G* [D]

    def scores(self, bundle: Bundle) -> list[Tensor]:
        """One [b, l] tensor of scores for each block."""
        reader = BlockReader(bundle.blocks, self.modules)
        together = solved_together(bundle.size, self.modules, self.config)
        stacks = stacks_of(self.modules, bundle.blocks, most=0 if together else 1)
        gradients, broken = self._response_gradients(bundle, stacks, reader)
        floor = self._noise_floor(bundle, gradients)
        duals = self._response_duals(bundle, stacks, gradients, floor)
        totals = [Totals.like(block, self._normalize) for block in bundle.blocks]
        for stack, G in zip(stacks, gradients, strict=True):
            inverse = duals[stack] if stack in duals else self._inverse(bundle, stack, G, broken, floor)
            goal = torch.stack([self.goals[traced.name] for traced in stack])
            directions = solved(inverse, goal).masked_fill(broken.any(), torch.nan)
            self._add(bundle, stack, reader, inverse, directions[:, None, None], totals)
        return [total.normalized() if self._normalize else total.score for total in totals]


def solved(inverse: InverseHessian, goal: Tensor) -> Tensor:
    """H^-1 G* of m modules, [m, D] -> [m, D], for a single group.

    In the space of the gradients: (G^T G + lambda I)^-1 q = (q - G^T (K + lambda I)^-1 G q) / lambda.
    """
    if isinstance(inverse, Dual):
        wide = inverse.inverse_kernel.dtype
        G, q = inverse.G[:, 0].to(wide), goal.to(wide).unsqueeze(-1)  # [m, R, D], [m, D, 1]
        inside = G.mT @ (inverse.inverse_kernel[:, 0] @ (G @ q))
        return ((q - inside).squeeze(-1) / inverse.lam[:, :1].to(wide)).to(goal)
    if isinstance(inverse, Primal):
        return torch.cholesky_solve(goal.mT, inverse.factor).mT
    return goal
