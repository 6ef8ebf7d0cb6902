"""The tracer: what an engine or a custom loop talks to.

Once per model, once per micro-batch, once per step:

    tracer = InfluenceTracer(model, config)

    with tracer.capture(layout):
        loss = ...                               # the forward belongs inside
        tracer.watch(loss, log_probs, where)     # for objectives other than training_loss
        loss.backward()

    scores = tracer.scores(groups)               # {row: float32[len]}; frees the factors
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._dynamo import OptimizedModule

from archer.errors import ArcherError
from archer.influence.block import Block
from archer.influence.bundle import Bundle, make_bundles, rows_of
from archer.influence.capture import STORAGE, Capture, product_dtype
from archer.influence.cautions import cautions
from archer.influence.config import InfluenceConfig
from archer.influence.costs import Counters, Stopwatch, describe
from archer.influence.coverage import coverage
from archer.influence.distributed import Exchange, Ranks
from archer.influence.factors import TokenFactors
from archer.influence.groups import Group, Selection, comparison_groups, select_groups
from archer.influence.layout import Layout
from archer.influence.modules import TracedModule, traced_modules
from archer.influence.objective import Objective, wanted_weights
from archer.influence.scoring import Scorer
from archer.sign import meaning_of_sign

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class InfluenceTracer:
    """Captures token factors in the real backward and turns them into influence scores.

    Args:
        model: the model that is trained, as it is called in the loop.
        config: the knobs; with `enable=False` every method does nothing.
        process_group: the ranks over which groups may be spread; None when each rank's groups are its own.
        lockstep: parameters are sharded over these ranks, whose passes therefore go together (FSDP): what
            makes one rank run a second backward makes all of them, and each captures its micro-batches in
            step with the others, also one that holds no traced response.
    """

    def __init__(
        self,
        model: nn.Module,
        config: InfluenceConfig,
        process_group: ProcessGroup | None = None,
        lockstep: bool = False,
    ) -> None:
        self.model, self.config = model, config
        self.modules: list[TracedModule] = traced_modules(model, config) if config.enable else []
        self.counters = Counters()
        self.weights_of: dict[int, int] = {}  # row -> version of the weights its last scores belong to
        self._exchange = Exchange() if process_group is None else Ranks(process_group)
        self._lockstep = lockstep
        self._batches: list[TokenFactors] = []
        self._watched: list[Tensor] = []  # bools: each backward was that of the loss given to `watch`
        self._versions: set[int] = set()  # of weights seen since the last metrics
        self._active: Capture | None = None
        self._objective: Objective | None = None

    @contextmanager
    def capture(self, layout: Layout, version: int | None = None) -> Iterator[None]:
        """Hooks live only inside: one forward and backward of one micro-batch.

        Args:
            layout: which response token each position of the micro-batch's activations emits.
            version: which weights these are. None: read from the parameters, whose versions every optimizer
                step raises.
        """
        if not self.config.enable:
            yield
            return
        if self._active is not None:
            raise ArcherError(
                "tracer.capture is already active: captures follow one another, they do not nest"
            )
        capture = Capture(self.modules, layout, self.config, self.counters, self._stopwatch, self._lockstep)
        self._check_new_rows(capture)
        weights = self._weight_version() if version is None else version
        self._active = capture
        try:
            capture.attach()
            with run_eagerly(self.model):
                yield
            if len(capture.kept):
                self._keep(capture, weights)
        finally:
            capture.detach()
            if self._objective is not None:
                self._objective.close()
            self._active = self._objective = None

    def watch(
        self,
        loss: Tensor,
        log_probs: Tensor,
        where: Layout,
        advantages: Tensor | None = None,
        rewards: Tensor | None = None,
    ) -> None:
        """Between forward and backward: tells the tracer how the loss depends on the log-probs.

        Needed for every `output_function` but training_loss, for which it does nothing. Where the wanted
        weights are not proportional to the real ones, the objective's own backward runs here.

        Args:
            loss: the scalar whose backward follows; a constant factor may still be applied to it.
            log_probs: the tensor of token log-probs that the loss was computed from.
            where: the response token of each element of log_probs.reshape(-1), rows as in the capture's
                layout.
            advantages: like log_probs, or [N, 1]; for log_prob_advantage.
            rewards: like log_probs, or [N, 1]; for log_prob_reward.
        """
        if not self.config.enable or self.config.output_function == "training_loss":
            return
        if self._active is None:
            raise ArcherError(
                "tracer.watch belongs inside `with tracer.capture(layout)`, before the backward"
            )
        if len(self._active.kept) == 0 and not self._lockstep:
            return
        wanted = wanted_weights(self.config.output_function, log_probs, advantages, rewards)
        tolerance = self.config.proportionality_tolerance
        self._objective = Objective(log_probs, where, wanted, self._active, tolerance)
        exchange = self._exchange if self._lockstep else Exchange()
        self._objective.prepare(loss, self.model, self.counters, self._stopwatch, exchange)

    def select(self, groups: Sequence[Group]) -> Selection:
        """The groups to trace; those without contrast and those over the cap are left out and counted."""
        selection = select_groups(groups, self.config.max_prompts_per_step)
        self.counters.skipped_all_accepted = selection.skipped_all_accepted
        self.counters.skipped_all_rejected = selection.skipped_all_rejected
        self.counters.debug_skipped_by_cap = selection.skipped_by_cap
        self.counters.selected_prompts = len(selection.groups)
        self.counters.selected_responses = len(selection.rows)
        return selection

    def scores(
        self, groups: Sequence[Group] | Selection, dtype: torch.dtype = torch.float32
    ) -> dict[int, Tensor]:
        """Score per response token, {row: [response length]} on the CPU, and free the factors.

        NaN marks tokens that were not traced (`max_tokens_per_response`). Under a process group every rank
        calls with the same groups and gets the rows whose tokens it captured.
        """
        if not self.config.enable:
            return {}
        selection = groups if isinstance(groups, Selection) else self.select(groups)
        compared = comparison_groups(selection, self.config)
        self.counters.debug_portions += bool(compared)
        device, compute = self._device, self._compute_dtype
        scorer = self._scorer(device, compute)
        try:
            found: list[tuple[Bundle, Block]] = []
            scores: list[Tensor] = []
            for bundle in make_bundles(
                compared, self._batches, self.modules, self.config, self._exchange, device, compute
            ):
                if bundle.crosses_ranks and bundle.counted_here:
                    self.counters.debug_cross_rank_groups += len(bundle.groups)
                found += [(bundle, block) for block in bundle.blocks]
                scores += scorer.scores(bundle)
            emitted: dict[int, Tensor] = {}
            values_read = scorer.read(scores, dtype)
            self._check_watched()
            for (bundle, block), values in zip(found, values_read, strict=True):
                _emit(emitted, bundle, block, values)
            self.weights_of = {
                row: batch.version for batch in self._batches for row in batch.lengths if row in emitted
            }
            self.counters.rows_emitted += len(emitted)
            return emitted
        finally:
            self.reset()

    @property
    def captured(self) -> tuple[TokenFactors, ...]:
        """The factors captured and not scored yet."""
        return tuple(self._batches)

    def take(self, captured: Sequence[TokenFactors]) -> None:
        """Put factors captured before in the place of its own: to score them again, with other knobs.

        They must come from a tracer with the same modules and projections.
        """
        self._batches = list(captured)

    def reset(self) -> None:
        """Drop all captured factors."""
        self._batches.clear()
        self._watched.clear()

    def metrics(self) -> dict[str, float]:
        """Counts and times since the last call, under the names the trainer logs."""
        metrics = self.counters.metrics()
        self.counters = Counters()
        self._versions.clear()
        return metrics

    def describe(self, responses: int | None = None, head: bool = True) -> str:
        """What is traced and what is not, the memory it needs and how scores read: to print once.

        Args:
            responses: sampled for each prompt, where that is known.
            head: whether the output head can be traced.
        """
        if not self.config.enable:
            return "influence tracing is off"
        told = [*coverage(self.model, self.modules).lines(head)]
        told.append(f"sign: {meaning_of_sign(self.config.output_function)}")
        told += [f"caution: {text}" for text in cautions(self.config, responses)]
        table = describe(self.modules, self.config, self._factor_dtype, self._device)
        return "\n".join([table, *(f"  {line}" for line in told)])

    def _scorer(self, device: torch.device, compute: torch.dtype) -> Scorer:
        return Scorer(self.modules, self.config, self.counters, self._stopwatch, device, compute)

    def _keep(self, capture: Capture, version: int) -> None:
        objective = self._objective
        if objective is None and self.config.output_function != "training_loss":
            raise ArcherError(
                f"output_function={self.config.output_function} needs tracer.watch(loss, log_probs, where) "
                "between forward and backward"
            )
        u, v = capture.factors()
        row, token = capture.layout.row[capture.kept], capture.layout.token[capture.kept]
        scaled = None if objective is None else objective.scale()
        scale = None
        if scaled is not None:
            scale, holds = scaled
            self._watched.append(holds)
        experts = capture.expert_factors()
        batch = TokenFactors(row, token, u, v, scale, capture.lengths, version, capture.runs(), experts)
        self._batches.append(batch)
        self.counters.debug_micro_batches += 1
        # Counted here, while a GPU is still at work on the backward.
        self.counters.debug_captured_tokens += sum(batch.counts.values())
        self._versions.add(version)
        self.counters.debug_weight_versions = len(self._versions)

    def _check_watched(self) -> None:
        """Refuse scores of a backward that was not that of the loss that `watch` was given."""
        if self._watched and not bool(torch.stack([flag.cpu() for flag in self._watched]).all()):
            raise ArcherError(
                "the backward that ran is not that of the loss given to tracer.watch: the weights of the "
                "log-probs differ by more than a factor"
            )

    def _check_new_rows(self, capture: Capture) -> None:
        again = sorted(
            {row for batch in self._batches for row in batch.lengths}.intersection(capture.lengths)
        )
        if again:
            raise ArcherError(
                f"response rows {again[:8]} were captured before and not scored yet; a response is captured "
                "once, in one micro-batch of one epoch: call tracer.scores or tracer.reset first"
            )

    def _weight_version(self) -> int:
        places = {id(traced.fused or traced.module): traced for traced in self.modules}  # experts share one
        return sum(traced.weight._version for traced in places.values())

    @property
    def _weight(self) -> Tensor:
        return self.modules[0].weight

    @property
    def _stopwatch(self) -> Stopwatch:
        return Stopwatch(self.counters, self._weight.device, self.config.profile_timing)

    @property
    def _device(self) -> torch.device:
        on_cpu = self.config.grad_offload_to_cpu and not self.config.force_gpu_compute
        return torch.device("cpu") if on_cpu else self._weight.device

    @property
    def _factor_dtype(self) -> torch.dtype:
        return STORAGE.get(self.config.factor_dtype) or product_dtype(self._weight)

    @property
    def _compute_dtype(self) -> torch.dtype:
        return torch.float64 if self._factor_dtype == torch.float64 else torch.float32


def run_eagerly(model: nn.Module) -> AbstractContextManager[Any]:
    """Where the model or a part of it is compiled, run it uncompiled: compiled code calls no later hooks."""
    compiled = any(
        isinstance(module, OptimizedModule) or module._compiled_call_impl is not None
        for module in model.modules()
    )
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def _emit(emitted: dict[int, Tensor], bundle: Bundle, block: Block, scores: Tensor) -> None:
    rows = rows_of(bundle.groups)
    for member, first, line in zip(block.responses, block.first, scores, strict=True):
        row = rows[member]
        count, length = block.batch.counts[row], block.batch.lengths[row]
        values = line[first : first + count]  # in token order
        if count < length:
            emitted[row] = torch.full((length,), torch.nan, dtype=scores.dtype)
            emitted[row][block.batch.token[block.batch.positions[row]]] = values
        else:
            emitted[row] = values.clone()  # a row of its own: sent or saved, a view takes all others along
