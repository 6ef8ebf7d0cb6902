"""What happens around a GRPO trainer's methods: capture around its loss, credit, records, traces, metrics.

A generation of responses is divided into micro-batches; each goes once or several times through the loss.
Influence is captured in the first of them and scored when the optimizer is about to step: responses of a
prompt are compared where they share an optimizer step. A step is written once all its responses have been
through their first loss.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from archer.algorithms.token_credit.base import CreditInputs
from archer.errors import ArcherError
from archer.influence import Group, InfluenceConfig, InfluenceTracer, Layout, Selection
from archer.influence.distributed import gather_groups
from archer.influence.modules import output_heads
from archer.integrations.credit import TrainerCredit
from archer.integrations.folder import TraceFolder
from archer.integrations.options import Tracing
from archer.integrations.sampled import SampledResponses, Verdicts, whole_step
from archer.training.credit import credit_metrics, credit_sums
from archer.training.metrics import TokenSums


@dataclass(frozen=True)
class RunFacts:
    """What the trainer says of itself when it begins."""

    model: Any  # without wrappers for several processes
    tokenizer: Any
    output_dir: Path
    metadata: dict[str, Any]
    temperature: float
    micro_batches: int  # of a generation
    group_size: int  # responses of one prompt
    rank: int
    world: int
    resumed_at: int
    gather: Callable[[Tensor], Tensor] | None  # [n, C, ...] of all processes, rows in their order


@dataclass(eq=False)
class LossPass:
    """One call of the loss: which rows, and what their forward gave."""

    generation: SampledResponses
    names: list[int]
    inputs: dict[str, Any]
    first: bool  # not seen before
    log_probs: Tensor | None = None  # [n', C] with its graph
    entropy: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def places(self) -> list[int]:
        """Of its rows among the generation's."""
        return self.generation.local(self.names)


class GRPOTracing:
    """All of it, for one trainer; `begin` is called when training begins."""

    def __init__(self, options: Tracing) -> None:
        self.options = options
        self.influence = options.influence if options.influence is not None else InfluenceConfig()
        self.facts: RunFacts
        self.tracer: InfluenceTracer
        self.credit: TrainerCredit | None = None
        self.folder: TraceFolder | None = None  # on the process that writes
        self.current: SampledResponses | None = None
        self.loss_pass: LossPass | None = None
        self._pending: list[SampledResponses] = []
        self._window: list[int] = []  # names of the rows captured since the last optimizer step
        self._capture = ExitStack()
        self._offset = 0
        self._metrics: dict[str, list[float]] = {}

    def begin(self, facts: RunFacts) -> str:
        """Start a run; returns what is to be printed of it."""
        self.facts = facts
        several = dist.group.WORLD if facts.world > 1 else None
        self.tracer = InfluenceTracer(facts.model, self.influence, several)
        heads = output_heads(facts.model)
        if any(id(traced.module) in heads for traced in self.tracer.modules):
            raise ArcherError(
                "the trainer makes log-probs of the output head's weight without calling the head at every "
                "position, so that it cannot be traced: leave it out of module_name_filter"
            )
        said = [self.tracer.describe(facts.group_size, head=False)]
        if self.options.credit.mode != "none":
            self.credit = TrainerCredit(
                self.options.credit, self.options.seed, facts.model, facts.temperature, facts.gather
            )
            said.append(self.credit.cost(self.credit.in_update(facts.micro_batches)))
        if facts.rank == 0:
            chosen = self.options.output_dir
            self.folder = TraceFolder(
                facts.output_dir if chosen is None else Path(chosen),
                self.options.write_every if self.options.entropy_trace else 0,
                self.options.influence,
                facts.tokenizer,
                facts.metadata,
                facts.resumed_at,
            )
        return "\n".join(said)

    def traces(self, step: int) -> bool:
        """Whether influence is captured in a step: where it is written."""
        return self.influence.enable and step % self.influence.write_every == 0

    def sampled(
        self, step: int, make: Callable[[int, frozenset[int]], SampledResponses], verdicts: Verdicts
    ) -> SampledResponses:
        """A new generation: choose the groups whose influence is traced."""
        groups = verdicts.groups(self._offset)
        selection = self.tracer.select(groups) if self.traces(step) else Selection((), 0, 0, 0)
        self.current = make(self._offset, frozenset(selection.rows))
        self._offset += len(verdicts.accepted)
        self._pending.append(self.current)
        return self.current

    @contextmanager
    def loss(self, names: list[int], inputs: dict[str, Any]) -> Iterator[LossPass]:
        """Surrounds the computation of a loss; its capture goes on until `after_backward`."""
        generation = self.current
        if generation is None or not set(names) <= set(generation.names):
            raise ArcherError(
                "the trainer learns from responses that were not sampled in its last generation"
            )
        first = generation.seen.isdisjoint(names)
        step = LossPass(generation, names, inputs, first)
        if first and self.traces(generation.step):
            self._capture.enter_context(self.tracer.capture(self.layout(step)))
        self.loss_pass = step
        try:
            yield step
        except BaseException:
            self.abandon()
            raise
        finally:
            self.loss_pass = None
        generation.seen.update(names)

    def watch(self, step: LossPass, loss: Tensor) -> None:
        """Between the loss and its backward."""
        generation, places = step.generation, step.places
        captured = step.first and self.traces(generation.step)
        if not captured or self.influence.output_function == "training_loss":
            return
        assert step.log_probs is not None
        numbers = torch.tensor(places) + generation.first
        rewards = generation.verdicts.rewards[numbers].nan_to_num(0.0).to(loss.device)
        advantages = generation.token_advantages(places)
        self.tracer.watch(loss, step.log_probs, self._where(step), advantages, rewards[:, None])

    def forward(self, log_probs: Tensor, entropy: Tensor) -> Tensor | None:
        """The forward of the loss under way has run. Returns its weighted advantages [n', C], if weighed."""
        step = self.loss_pass
        assert step is not None
        step.log_probs, step.entropy = log_probs, entropy.detach()
        generation, places = step.generation, step.places
        if step.first and not generation.known:
            mask = generation.mask[places]
            generation.log_probs[places] = torch.where(mask, log_probs.detach().float(), 0)
            generation.entropy[places] = torch.where(mask, step.entropy.float(), 0)
        if not self.weighs(generation):
            return None
        assert self.credit is not None
        if generation.known:
            assert generation.weights is not None
            weights = generation.weights[places]
        else:
            weights = self.credit.of_rows(generation, places, log_probs.detach(), step.entropy)
        return generation.token_advantages(places) * weights

    def weighs(self, generation: SampledResponses) -> bool:
        """Whether token credit acts on it."""
        return self.credit is not None and self.credit.of.acts_at(generation.step)

    def after_backward(self, steps: bool) -> None:
        """The backward has run; `steps`: the optimizer is about to step."""
        self._capture.close()
        if steps:
            self._score()
            self._write()

    def abandon(self) -> None:
        """Drop the capture under way: something failed."""
        self._capture.__exit__(*sys.exc_info())
        self._capture = ExitStack()

    def metrics(self) -> dict[str, float]:
        """Means over the steps since the last call."""
        found = {name: sum(values) / len(values) for name, values in self._metrics.items()}
        self._metrics.clear()
        return found

    def flush(self) -> None:
        """Wait until everything is written."""
        if self.folder is not None:
            self.folder.flush()

    def layout(self, step: LossPass) -> Layout:
        """Where the forward's activations [n', P + C] emit the traced tokens, which are noted."""
        generation, prompt = step.generation, step.inputs["prompt_ids"].shape[1]
        rows = self._traced(step)
        self._window += [row for row in rows if row >= 0]
        width = prompt + generation.mask.shape[1]
        if generation.whole:
            lengths = [generation.lengths[place] for place in step.places]
            return Layout.blocks(rows, prompt, lengths, width)
        return masked_layout(rows, generation.mask[step.places], prompt - 1, width)

    def _where(self, step: LossPass) -> Layout:
        """The same for log-probs [n', C]."""
        generation, rows = step.generation, self._traced(step)
        width = generation.mask.shape[1]
        if generation.whole:
            return Layout.responses(rows, [generation.lengths[place] for place in step.places], width)
        return masked_layout(rows, generation.mask[step.places], 0, width)

    def _traced(self, step: LossPass) -> list[int]:
        return [name if name in step.generation.selected else -1 for name in step.names]

    def _score(self) -> None:
        """Score the responses captured since the last optimizer step, before the weights move."""
        if not self.influence.enable:
            return
        here, self._window = set(self._window), []
        mine = []
        for generation in self._pending:
            for group in generation.verdicts.groups(generation.offset):
                pairs = [pair for pair in zip(group.rows, group.accepted, strict=True) if pair[0] in here]
                if pairs:
                    rows, accepted = zip(*pairs, strict=True)
                    mine.append(Group(f"{generation.offset}-{group.uid}", rows, accepted))
        if self.facts.world > 1:
            assert dist.group.WORLD is not None
            mine = gather_groups(mine, dist.group.WORLD)
        groups = tuple(group for group in mine if len(set(group.accepted)) == 2)
        for name, line in self.tracer.scores(Selection(groups, 0, 0, 0)).items():
            for generation in self._pending:
                if name in generation.names:
                    generation.influence[generation.local([name])[0], : len(line)] = line

    def _write(self) -> None:
        """Put the steps together whose responses have all been learnt from, and write them."""
        if not self._pending or not all(generation.complete for generation in self._pending):
            return
        done, self._pending = self._pending, []
        mine = ([generation.columns() for generation in done], self.tracer.metrics())
        everyone: list[Any] | None = [None] * self.facts.world if self.facts.rank == 0 else None
        if self.facts.world > 1:
            dist.gather_object(mine, everyone)
        else:
            everyone = [mine]
        if everyone is None:
            return
        if any(self.traces(generation.step) for generation in done):
            self._note(_over_ranks([metrics for _, metrics in everyone]))
        verdicts = {generation.offset: generation.verdicts for generation in done}
        parts = [part for columns, _ in everyone for part in columns]
        for number in sorted({part["step"] for part in parts}):
            whole = whole_step([part for part in parts if part["step"] == number], verdicts)
            if whole.record.credit is not None:
                self._note(self._credit_metrics(whole.record))
            assert self.folder is not None
            self.folder.write(whole)

    def _credit_metrics(self, record: Any) -> dict[str, float]:
        assert self.credit is not None
        sums, of = TokenSums(), self.credit.of
        inputs = CreditInputs(
            log_probs=record.log_probs,
            entropy=record.entropy,
            advantages=record.advantages,
            mask=record.mask,
            accepted=record.correct,
            judged=~record.unjudged,
            scores=record.credit.scores,
        )
        credit_sums(inputs, record.credit.weights, inputs.of_side(of.side), sums)
        return credit_metrics(sums, of.strength(record.step))

    def _note(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self._metrics.setdefault(name, []).append(value)


def masked_layout(rows: list[int], mask: Tensor, begin: int, width: int) -> Layout:
    """Token t of line i, where mask [n, C] is True, belongs to position begin + t of a line of `width`."""
    row = torch.full((len(rows), width), -1, dtype=torch.int64)
    tokens = torch.arange(mask.shape[1])
    row[:, begin + tokens] = torch.where(mask.cpu(), torch.tensor(rows)[:, None], -1)
    token = (torch.arange(width) - begin).clamp(min=0).expand(row.shape)
    return Layout(row.flatten(), token.flatten())


def _over_ranks(metrics: list[dict[str, float]]) -> dict[str, float]:
    """Counts add up; times, and what every rank counts alike, are the largest."""
    alike = ("timing", "selected", "skipped", "weight_versions")
    return {
        name: max(found) if any(word in name for word in alike) else sum(found)
        for name in metrics[0]
        for found in [[each[name] for each in metrics]]
    }
