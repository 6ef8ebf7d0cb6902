"""Every token value under test, for the responses of one prompt: one forward and backward gives them all.

What is run backward is sum_t log pi(y_t). The gradients of the on-policy training loss are those of each
response times -A_r / T, so the factors serve both objectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from archer.algorithms.advantages.base import AdvantageInputs
from archer.algorithms.advantages.group_relative import GrpoSettings, grpo
from archer.generation.batch import MicroBatch, Responses, micro_batch, split_by_tokens, total_lengths
from archer.generation.policy import Policy
from archer.influence import Group, InfluenceConfig, InfluenceTracer, Layout
from archer.influence.factors import TokenFactors
from archer.influence.head import HeadSketch, head_scores
from archer.verify.sample import permuted
from archer.verify.shared_prompt import SharedPrompt, activations_only

Objective = Literal["log_prob", "training_loss"]
EXCLUDED: dict[str, Any] = {"exclude_self_response": True}
MEAN = EXCLUDED | {"contrastive_agg": "mean"}
SIGNED = MEAN | {"reg_rule": "kernel_trace"}
KNOBS: dict[str, tuple[Objective, dict[str, Any]]] = {
    "README's knobs": ("log_prob", EXCLUDED),
    "signed": ("log_prob", SIGNED),
    "bare defaults": ("training_loss", {}),
    "identity": ("log_prob", MEAN | {"hessian_mode": "identity"}),
}
"""Knob sets of the tracer. README's: log_prob, own response excluded; signed: also means and kernel_trace."""
HEAD = "head, closed form"
NTHR = "NTHR's score"
SKETCH = 64  # as algorithm.token_credit.projection_dim

Rows = list[dict[str, Tensor]]  # per response: method -> [T]


@dataclass(frozen=True, eq=False)
class Valued:
    """The values of R responses."""

    entropy: list[Tensor]
    values: Rows
    nulls: list[dict[str, list[Tensor]]]


def candidates() -> list[str]:
    """The methods among which knobs are chosen: each set and the head, read by sign or by size."""
    return [shown for name in (*KNOBS, HEAD) for shown in (f"-influence, {name}", f"|influence|, {name}")]


class TokenMethods:
    """Computes all token values of one group of responses after the other."""

    def __init__(self, policy: Policy, factor: int, permutations: int, seed: int, budget: int) -> None:
        """factor: projection_dim_factor; budget: tokens that go through the model together."""
        self.policy, self.permutations, self.seed, self.budget = policy, permutations, seed, budget
        self.config = InfluenceConfig(enable=True, projection_dim_factor=factor)
        vocabulary, hidden = policy.model.get_output_embeddings().weight.shape
        self.sketch = HeadSketch.of(hidden, vocabulary, SKETCH)
        # Once each: making the projections takes longer than a small group.
        self._capturing = InfluenceTracer(policy.model, self.config)
        self._scoring = {
            name: InfluenceTracer(policy.model, replace(self.config, **knobs))
            for name, (_, knobs) in KNOBS.items()
        }
        self._groups = 0

    def of(self, responses: Responses, accepted: tuple[bool, ...]) -> Valued:
        """All values of the responses to one prompt, which have both verdicts."""
        group = Group("prompt", tuple(range(len(responses))), accepted)
        shuffled = [permuted((group,), self.seed + i)[0] for i in range(self.permutations)]
        tracer = self._capturing
        log_probs = torch.zeros(responses.mask.shape)
        entropy = torch.zeros(responses.mask.shape)
        u: list[Tensor] = [torch.empty(0)] * len(responses)
        v = list(u)
        for batch in self._batches(responses):
            with activations_only(self.policy.model), tracer.capture(layout_of(batch), version=0):
                stats = self.policy.token_stats(batch, sketch=self.sketch)
                stats.log_probs.sum().backward()
            assert stats.factors is not None
            for place, row in enumerate(batch.rows.tolist()):
                length = int(batch.lengths[place])
                log_probs[row, :length] = stats.log_probs[place, :length].detach().float().cpu()
                entropy[row, :length] = stats.entropy[place, :length].detach().float().cpu()
                u[row] = stats.factors.u[place, :length].detach().float().cpu()
                v[row] = stats.factors.v[place, :length].detach().float().cpu()
        self._groups += 1
        captured = tracer.captured
        tracer.reset()
        groups = (group, *shuffled)
        weights = loss_weights(responses, accepted)
        labelled = {
            name: [self._influence(captured, weights, some, name) for some in groups] for name in KNOBS
        }
        mask = responses.mask
        pair = pad_sequence(u, batch_first=True), pad_sequence(v, batch_first=True)
        tables = {
            HEAD: [head_scores(*pair, mask, [some], "inverse", "contrast") for some in groups],
            NTHR: [head_scores(*pair, mask, [some], "identity", "accepted") for some in groups],
        }
        for name, found in tables.items():
            labelled[name] = [[table[row][mask[row]] for row in group.rows] for table in found]
        norms = gradient_norms(captured, tracer, len(responses))
        generator = torch.Generator().manual_seed(self.seed + self._groups)
        values: Rows = []
        nulls: list[dict[str, list[Tensor]]] = []
        for row in group.rows:
            shown: dict[str, Tensor] = {}
            null: dict[str, list[Tensor]] = {}
            for name, (true, *others) in labelled.items():
                for what, read in _readings(name).items():
                    shown[what] = read * true[row] if read else true[row].abs()
                    null[what] = [read * other[row] if read else other[row].abs() for other in others]
            length = int(mask[row].sum())
            shown["entropy"] = entropy[row][mask[row]]
            shown["-log-prob"] = -log_probs[row][mask[row]]
            shown["gradient norm"] = norms[row]
            shown["random"] = torch.rand(length, generator=generator)
            values.append(shown)
            nulls.append(null if self.permutations else {})
        return Valued([entropy[row][mask[row]] for row in group.rows], values, nulls)

    def _batches(self, responses: Responses) -> Iterator[MicroBatch]:
        """All responses in micro-batches, behind their prompt where the model can be called so."""
        policy, tokens = self.policy, responses.prompts[0].token_ids
        every, lengths = range(len(responses)), total_lengths(responses)
        if SharedPrompt.fits(policy, tokens):
            prompt = SharedPrompt(policy, tokens)
            for rows in split_by_tokens([n - len(tokens) + 1 for n in lengths], every, self.budget):
                yield prompt.batch(responses, rows)
            return
        for rows in split_by_tokens(lengths, every, self.budget, policy.packs):
            yield micro_batch(responses, rows, policy.compute.device, policy.packs)

    def _influence(
        self, captured: tuple[TokenFactors, ...], weights: Tensor, group: Group, name: str
    ) -> list[Tensor]:
        objective, _ = KNOBS[name]
        if objective == "training_loss":
            captured = tuple(replace(some, scale=_spread(weights, some)) for some in captured)
        tracer = self._scoring[name]
        tracer.take(captured)
        scores = tracer.scores((group,), dtype=torch.float64)
        return [scores[row] for row in group.rows]


def _readings(name: str) -> dict[str, int]:
    """What is read off a labelled score: the negative (-1), or its size (0)."""
    if name == NTHR:
        return {f"-{NTHR}": -1}
    return {f"-influence, {name}": -1, f"|influence|, {name}": 0}


def layout_of(batch: MicroBatch) -> Layout:
    """Where each response token is emitted, padded or packed."""
    if batch.packing is not None:
        return Layout.packed(batch.rows, batch.prompt_lengths, batch.lengths)
    return Layout.padded(batch.rows, batch.prompt_lengths, batch.lengths, batch.input_ids.shape[1])


def advantages_of(responses: Responses, accepted: tuple[bool, ...]) -> Tensor:
    """[R] GRPO's advantage of each response of one group."""
    rewards = torch.zeros(responses.mask.shape)
    rewards[torch.arange(len(responses)), responses.lengths - 1] = torch.tensor(accepted).float()
    one = torch.zeros(len(responses), dtype=torch.int64)
    return grpo(AdvantageInputs(rewards, responses.mask, one), GrpoSettings())[:, 0]


def loss_weights(responses: Responses, accepted: tuple[bool, ...]) -> Tensor:
    """[R] d loss / d log pi_t of the on-policy loss, the mean over the group's tokens: -A_r / T."""
    return -advantages_of(responses, accepted) / responses.mask.sum()


def _spread(weights: Tensor, factors: TokenFactors) -> Tensor:
    """[n] the weight of each captured position's response."""
    device = next(iter(factors.u.values())).device
    of_row = weights[factors.row.clamp(min=0)]
    return torch.where(factors.row >= 0, of_row, 0.0).to(device)


def gradient_norms(captured: Sequence[TokenFactors], tracer: InfluenceTracer, responses: int) -> list[Tensor]:
    """Per response [T]: sum over modules of |u_t| |v_t|, the norms of the projected gradients."""
    norms = [torch.empty(0)] * responses
    for factors in captured:
        total = torch.zeros(len(factors.row))
        for module in tracer.modules:
            u, v = factors.u[module.name].float(), factors.v[module.name].float()
            total += (u.norm(dim=1) * v.norm(dim=1) * module.scale).cpu()
        for row, places in factors.positions.items():
            norms[row] = total[places]
    return norms
