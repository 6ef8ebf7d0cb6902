"""Token credit in the local engine: weights made ahead of the update, or in the forward that it runs anyway.

An update that goes once over all responses is its own old policy: what a mode reads (log-probs, entropy, the
head's factors) comes out of the forward whose loss the weights are for. Influence compares the responses of a
group, so that whole groups then go through the model together. Otherwise weights are made ahead: from the
pass that gives the old log-probs, or, for the influence of any modules, from a forward and backward of its
own.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from archer.algorithms.token_credit.base import CreditInputs
from archer.config.actor import ActorConfig
from archer.engines.local.batching import micro_batches, portions
from archer.engines.local.influence import InfluenceRecorder
from archer.generation.batch import MicroBatch, micro_batch, total_lengths
from archer.generation.judge import Judged
from archer.generation.policy import HeadFactors, Policy, TokenStats
from archer.influence import Group, select_groups
from archer.influence.factors import send
from archer.influence.head import HeadSketch
from archer.trace.vocab import Vocab
from archer.training.credit import Credit, TokenCredit, credit_metrics, credit_sums
from archer.training.metrics import TokenSums
from archer.training.mistakes import first_mistakes
from archer.training.portions import token_budget
from archer.training.traces import prompt_groups


class LocalCredit:
    """The chosen mode on this engine's model."""

    def __init__(self, credit: TokenCredit, policy: Policy, actor: ActorConfig, vocab: Vocab | None) -> None:
        self.credit, self.policy, self.actor = credit, policy, actor
        self._vocab = vocab  # for a mode that reads first mistakes
        head = policy.model.get_output_embeddings()
        scores = credit.scores
        self.sketch: HeadSketch | None = None
        self.recorder: InfluenceRecorder | None = None
        if scores is not None and scores.of == "head":
            self.sketch = credit.sketch(head)
        elif scores is not None:
            self.recorder = InfluenceRecorder(policy.model, credit.tracer_config())
            if self.recorder.traces(head):
                policy.run_head_everywhere()

    def step(self, judged: Judged, step: int) -> "StepCredit | None":
        """Begin a step; None where its tokens are not weighed."""
        if not self.credit.acts_at(step) or not len(judged.responses):
            return None
        mistakes, responses = None, judged.responses
        if self.credit.needs_mistakes:
            assert self._vocab is not None
            mistakes = first_mistakes(
                responses.prompts, responses.tokens, responses.mask, responses.finished, self._vocab
            )
        return StepCredit(self, judged, step, mistakes)


class StepCredit:
    """The weights of one step's N responses."""

    def __init__(self, of: LocalCredit, judged: Judged, step: int, mistakes: Tensor | None) -> None:
        self.of, self.judged, self.number = of, judged, step
        self.mistakes = mistakes  # [N, L] bool
        verdicts = prompt_groups(judged.groups.tolist(), judged.correct.tolist(), judged.unjudged.tolist())
        self.groups = select_groups(verdicts, 0).groups  # those with both verdicts
        self._group_of = {row: group for group in self.groups for row in group.rows}
        shape = judged.responses.mask.shape
        self.weights = torch.zeros(shape)
        self.scores: Tensor | None = None  # [N, L]
        if of.credit.scores is not None:
            self.scores = torch.full(shape, torch.nan)
        self.ahead = False  # whether all weights are made
        self._sums = TokenSums()

    def fits_in_update(self) -> bool:
        """Whether everything that the mode reads comes out of one micro-batch of an on-policy update."""
        if self.of.recorder is not None:
            return False
        if self.of.sketch is None:
            return True
        if not self.of.actor.use_dynamic_bsz:
            return False
        lengths, budget = total_lengths(self.judged.responses), token_budget(self.of.actor)
        longest = max(lengths)
        if not self.of.policy.packs:
            lengths = [longest] * len(lengths)
        return all(sum(lengths[row] for row in group.rows) <= budget for group in self.groups)

    @property
    def keeps_groups(self) -> bool:
        """Whether a micro-batch of the update must hold whole groups."""
        return not self.ahead and self.of.sketch is not None

    def needs(self, row: int) -> bool:
        """Whether a row goes through the update's forward with its group, even where it moves nothing."""
        return self.keeps_groups and row in self._group_of

    def forward(self) -> TokenStats:
        """Log-probs and entropies of all responses, [N, L] on the CPU; the head's influence on the way."""
        responses = self.judged.responses
        stats = TokenStats.zeros(responses.mask.shape)
        every = list(range(len(responses)))
        with torch.no_grad():
            for rows in portions(responses, self.judged.groups, every, self.of.actor):
                parts = []
                for batch in self._batches(rows):
                    found = self.of.policy.token_stats(batch, sketch=self.of.sketch)
                    stats.put(batch, found)
                    parts.append((batch, found))
                if self.of.sketch is not None:
                    self._score(sorted(rows), _joined(parts, sorted(rows)))
        return stats

    def pass_of_its_own(self) -> TokenStats:
        """Forward and backward of sum_t log π(y_t) over the mixed groups: their influence in any modules.

        Returns log-probs and entropies of these, zero elsewhere. No gradient is left behind.
        """
        recorder, responses = self.of.recorder, self.judged.responses
        assert recorder is not None
        recorder.begin(self.judged, True)
        stats = TokenStats.zeros(responses.mask.shape)
        rows = recorder.selection.rows
        for part in portions(responses, self.judged.groups, rows, self.of.actor) if rows else []:
            for batch in self._batches(part):
                with recorder.capture(batch):
                    found = self.of.policy.token_stats(batch)
                    found.log_probs.sum().backward()
                stats.put(batch, found.detached())
                for parameter in self.of.policy.model.parameters():
                    parameter.grad = None
            recorder.score(part)
        recorder.tracer.metrics()  # counts of this pass are no metrics of the trace
        self.scores = recorder.influence
        return stats

    def make_ahead(self, stats: TokenStats, advantages: Tensor) -> None:
        """Make all weights before the update; both [N, L] on the CPU."""
        every = range(len(self.judged.responses))
        self.weights = self._weigh(stats, advantages, self.judged.responses.mask, every, self.scores)
        self.ahead = True

    def of_batch(self, batch: MicroBatch, stats: TokenStats, advantages: Tensor) -> Tensor:
        """The weights of a micro-batch, [n, L] on its device; advantages: [n, L] there."""
        width = batch.mask.shape[1]
        if self.ahead:
            return send(self.weights[batch.rows, :width], batch.mask.device)
        rows = batch.rows.tolist()
        scores: Tensor | None = None
        if self.of.sketch is not None:
            scores = torch.full_like(stats.log_probs.detach(), torch.nan)
            if stats.factors is not None:
                scores = self._head_scores(rows, stats.factors, batch.mask)
        weights = self._weigh(stats.detached(), advantages, batch.mask, rows, scores)
        self.weights[batch.rows, :width] = weights.float().cpu()
        if scores is not None and self.scores is not None:
            self.scores[batch.rows, :width] = scores.float().cpu()
        return weights

    def result(self) -> Credit:
        """Weights and scores, [N, L] on the CPU."""
        return Credit(self.weights, self.scores)

    def metrics(self) -> dict[str, float]:
        """What is measured of the weights."""
        return credit_metrics(self._sums, self.of.credit.strength(self.number))

    def _weigh(
        self, stats: TokenStats, advantages: Tensor, mask: Tensor, rows: Sequence[int], scores: Tensor | None
    ) -> Tensor:
        chosen, device, width = torch.as_tensor(rows), mask.device, mask.shape[1]
        judged = send(~self.judged.unjudged[chosen], device)
        mistakes = None if self.mistakes is None else send(self.mistakes[chosen, :width], device)
        inputs = CreditInputs(
            log_probs=stats.log_probs,
            entropy=stats.entropy,
            advantages=advantages,
            mask=mask,
            accepted=send(self.judged.correct[chosen], device) & judged,
            judged=judged,
            scores=scores,
            mistakes=mistakes,
        )
        weights = self.of.credit.weigh(inputs, self.number, rows).weights
        credit_sums(inputs, weights, inputs.of_side(self.of.credit.side), self._sums)
        return weights

    def _head_scores(self, rows: Sequence[int], factors: HeadFactors, mask: Tensor) -> Tensor:
        """[n, L] of the given rows, which hold every mixed group of theirs whole."""
        place = {row: number for number, row in enumerate(rows)}
        inside = dict.fromkeys(self._group_of[row] for row in rows if row in self._group_of)
        local = [Group(g.uid, tuple(place[row] for row in g.rows), g.accepted) for g in inside]
        return self.of.credit.head_scores(factors.u, factors.v, mask, local)

    def _score(self, rows: Sequence[int], factors: HeadFactors) -> None:
        width = factors.u.shape[1]
        mask = send(self.judged.responses.mask[list(rows), :width], factors.u.device)
        assert self.scores is not None
        self.scores[list(rows), :width] = self._head_scores(rows, factors, mask).float().cpu()

    def _batches(self, rows: list[int]) -> Iterator[MicroBatch]:
        policy, responses = self.of.policy, self.judged.responses
        for chunk in micro_batches(responses, rows, self.of.actor, policy.packs):
            yield micro_batch(responses, chunk, policy.compute.device, policy.packs)


def _joined(parts: list[tuple[MicroBatch, TokenStats]], rows: list[int]) -> HeadFactors:
    """The factors of several micro-batches as those of one, its rows in the order given."""
    place = {row: number for number, row in enumerate(rows)}
    width = max(batch.mask.shape[1] for batch, _ in parts)

    def join(pieces: list[Tensor]) -> Tensor:
        whole = pieces[0].new_zeros(len(rows), width, pieces[0].shape[-1])
        for (batch, _), values in zip(parts, pieces, strict=True):
            whole[[place[row] for row in batch.rows.tolist()], : values.shape[1]] = values
        return whole

    factors = [stats.factors for _, stats in parts if stats.factors is not None]
    return HeadFactors(join([found.u for found in factors]), join([found.v for found in factors]))
