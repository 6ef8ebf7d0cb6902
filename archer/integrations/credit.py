"""Token credit in another trainer's update: weights made in its own forward, or ahead of the update.

They are made in the loss's forward where that is the policy before the update and holds all that the mode
reads: not where old log-probs are kept apart, nor where influence compares responses that other micro-batches
or processes hold. Then they are made ahead: out of the pass that gives the old log-probs, where there is one,
or out of a forward of their own.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from archer.algorithms.token_credit.config import TokenCreditConfig
from archer.errors import ArcherError
from archer.influence import Group, InfluenceTracer, Layout
from archer.influence.modules import output_heads
from archer.integrations.head import HeadReader
from archer.integrations.sampled import SampledResponses
from archer.training.credit import TokenCredit

Forward = Callable[[list[int]], tuple[Tensor, Tensor]]
"""Places of rows -> (log-probs with a graph, entropies), [n', C] each."""


class TrainerCredit:
    """The chosen mode on a trainer's model.

    Args:
        model: what is trained, without wrappers for several processes.
        temperature: that responses are sampled at.
        gather: joins [n, C, k] tensors of all processes, rows in their order; None: there is one process.
    """

    def __init__(
        self,
        config: TokenCreditConfig,
        seed: int,
        model: Any,
        temperature: float,
        gather: Callable[[Tensor], Tensor] | None,
    ) -> None:
        self.of = TokenCredit(config, seed)
        if self.of.needs_mistakes:
            raise ArcherError(
                f"algorithm.token_credit.mode={config.mode} knows the first mistake of the built-in task "
                "alone: choose another mode in another trainer"
            )
        self.reader: HeadReader | None = None
        self.tracer: InfluenceTracer | None = None
        self._gather = gather
        self._model = model
        scores = self.of.scores
        if scores is not None and scores.of == "head":
            plain = model.get_base_model() if hasattr(model, "get_base_model") else model
            self.reader = HeadReader(model, self.of.sketch(plain.get_output_embeddings()), temperature)
        elif scores is not None:
            group = None if gather is None else torch.distributed.group.WORLD
            self.tracer = InfluenceTracer(model, self.of.tracer_config(), group)
            heads = output_heads(model)  # trainers fuse them with their log-probs: no module is called
            self.tracer.modules = [each for each in self.tracer.modules if id(each.module) not in heads]

    def cost(self, in_update: bool) -> str:
        """What is to be said of its cost before a run."""
        if self.tracer is not None:
            return (
                "token credit: a forward and a backward of its own before each update; the head is left out"
            )
        if self.reader is not None and not in_update:
            return (
                "token credit: a forward of its own before each update, unless old log-probs need it anyway"
            )
        return "token credit: in the update's own forward"

    def in_update(self, micro_batches: int) -> bool:
        """Whether the forward of an on-policy loss holds all that the mode reads."""
        if self.tracer is not None:
            return False
        return self.reader is None or (self._gather is None and micro_batches == 1)

    def of_rows(
        self, generation: SampledResponses, places: list[int], log_probs: Tensor, entropy: Tensor
    ) -> Tensor:
        """The weights of some rows [n', C], out of their log-probs, entropies and, if need be, the head."""
        scores = None
        if self.reader is not None:
            scores = self._head_scores(
                generation, places, self.reader.factors(self._tokens(generation, places))
            )
        return self._weigh(generation, places, log_probs, entropy, scores)

    def ahead(
        self,
        generation: SampledResponses,
        log_probs: Tensor,
        entropy: Tensor,
        factors: tuple[Tensor, Tensor] | None,
    ) -> None:
        """Make the weights of a whole generation from a pass before the update; all [n, C]."""
        every = list(range(len(generation.prompts)))
        scores = None if generation.scores is None else generation.scores.clone()
        if self.reader is not None:
            assert factors is not None
            scores = self._head_scores(generation, every, factors)
        self._weigh(generation, every, log_probs, entropy, scores)
        generation.log_probs, generation.entropy = log_probs.float(), entropy.float()
        generation.known = True

    def pass_of_its_own(
        self,
        generation: SampledResponses,
        forward: Forward,
        layout: Callable[[list[int], list[int]], Layout],
        rows: int,
    ) -> tuple[Tensor, Tensor]:
        """Forward and backward of sum_t log pi(y_t), so many rows at a time: influence in any modules.

        No gradient is left behind. Returns log-probs and entropies. `layout` is given places of rows and
        their names, -1 where a row is not compared with any.
        """
        assert self.tracer is not None
        parameters = [p for p in self._model.parameters() if p.requires_grad]
        before = [p.grad for p in parameters]
        found = []
        groups = [g for g in generation.verdicts.groups(generation.offset) if len(set(g.accepted)) == 2]
        compared = {row for group in groups for row in group.rows}
        try:
            for places in torch.arange(len(generation.prompts)).split(rows):
                lines = [
                    generation.names[p] if generation.names[p] in compared else -1 for p in places.tolist()
                ]
                with torch.enable_grad(), self.tracer.capture(layout(places.tolist(), lines)):
                    log_probs, entropy = forward(places.tolist())
                    torch.where(generation.mask[places], log_probs, 0).sum().backward()
                found.append((log_probs.detach(), entropy.detach()))
                for parameter in parameters:
                    parameter.grad = None
        finally:
            for parameter, gradient in zip(parameters, before, strict=True):
                parameter.grad = gradient
        scores = torch.full(generation.mask.shape, torch.nan)
        for name, line in self.tracer.scores(groups).items():
            scores[generation.local([name])[0], : len(line)] = line
        generation.scores = scores.to(generation.mask.device)
        self.tracer.metrics()  # counts of this pass are no metrics of the trace
        return torch.cat([pair[0] for pair in found]), torch.cat([pair[1] for pair in found])

    def _weigh(
        self,
        generation: SampledResponses,
        places: list[int],
        log_probs: Tensor,
        entropy: Tensor,
        scores: Tensor | None,
    ) -> Tensor:
        inputs = generation.credit_inputs(places, log_probs.detach(), entropy.detach(), scores)
        numbers = [generation.first + place for place in places]
        weights = self.of.weigh(inputs, generation.step, numbers).weights
        if generation.weights is None:
            generation.weights = torch.zeros(generation.mask.shape, device=weights.device)
        generation.weights[places] = weights
        if scores is not None:
            if generation.scores is None:
                generation.scores = torch.full(generation.mask.shape, torch.nan, device=weights.device)
            generation.scores[places] = scores.float()
        return weights

    def _tokens(self, generation: SampledResponses, places: list[int]) -> Tensor:
        return generation.tokens[places].to(generation.mask.device)

    def _head_scores(
        self, generation: SampledResponses, places: list[int], factors: tuple[Tensor, Tensor]
    ) -> Tensor:
        """[n', C]: the responses of each prompt are compared, those of other processes too."""
        u, v = factors
        mask, begin = generation.mask[places], 0
        width = mask.shape[1]
        numbers = [generation.first + place for place in places]
        if self._gather is not None:
            u, v, mask = self._gather(u), self._gather(v), self._gather(mask)
            begin, numbers = generation.first, list(range(len(mask)))
        place_of = {generation.offset + number: place for place, number in enumerate(numbers)}
        groups = [
            Group(g.uid, tuple(place_of[row] for row in g.rows), g.accepted)
            for g in generation.verdicts.groups(generation.offset)
            if len(set(g.accepted)) == 2
        ]
        scores = self.of.head_scores(u, v, mask, groups)
        return scores[begin : begin + len(places), :width]
