"""The policy update: epochs, mini-batches, micro-batches, optimizer steps, the learning rate."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from archer.algorithms.aggregation import LossTotals
from archer.config.actor import ActorConfig, OptimConfig
from archer.engines.local.batching import (
    filled_up,
    group_batches,
    micro_batches,
    mini_batches,
    portions,
)
from archer.engines.local.credit import StepCredit
from archer.engines.local.influence import InfluenceRecorder
from archer.engines.local.loss import Experience, MicroBatchLoss, take
from archer.errors import ArcherError
from archer.generation.batch import MicroBatch, micro_batch
from archer.generation.policy import Policy, TokenStats
from archer.influence import InfluenceConfig
from archer.influence.factors import send
from archer.training.metrics import TokenSums
from archer.training.portions import token_budget


@dataclass(frozen=True)
class UpdateResult:
    """Metrics of an update and what its first pass over each response saw, [N, L] on the CPU."""

    metrics: dict[str, float]
    log_probs: Tensor
    entropy: Tensor


class Updater:
    """Applies PPO-style updates to a policy."""

    def __init__(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        config: ActorConfig,
        max_response_length: int,
        skip_optimizer_step: bool = False,
        recorder: InfluenceRecorder | None = None,
        max_skipped: int = 5,
    ) -> None:
        self.policy = policy
        self.optimizer = optimizer
        self.config = config
        self.skip_optimizer_step = skip_optimizer_step
        self.recorder = recorder or InfluenceRecorder(policy.model, InfluenceConfig())
        self.max_skipped = max_skipped
        self.skipped_in_a_row = 0
        self._loss = MicroBatchLoss(config, config.loss_scale_factor or max_response_length)

    def update(
        self, experience: Experience, step: int, traced: bool = False, credit: StepCredit | None = None
    ) -> UpdateResult:
        """Run all epochs over the step's responses.

        `traced`: the first epoch's backward passes also give the influence of every selected token. All
        groups of a mini-batch are scored before its optimizer step, so that the factors of a group belong to
        one set of weights.

        `credit` weighs the advantage of each token.
        """
        self.recorder.begin(experience.judged, traced)
        sums = TokenSums()
        seen = TokenStats.zeros(experience.responses.mask.shape)
        losses: list[dict[str, float]] = []
        norms: list[float] = []
        skipped = 0
        for epoch in range(self.config.ppo_epochs):
            for rows in mini_batches(experience.judged.groups, self.config, epoch, step):
                terms, passes = self._accumulate(experience, rows, sums, epoch == 0, credit)
                if epoch == 0:
                    for batch, stats in passes:
                        seen.put(batch, stats)
                losses.append({name: float(value) for name, value in terms.items()})
                norms.append(self._apply())
                skipped += not math.isfinite(norms[-1])
                self._count_skipped(norms[-1], step)
        metrics = {f"actor/{name}": value for name, value in sums.means().items()}
        for name in losses[0] if losses else ():
            metrics[f"actor/{name}"] = sum(loss[name] for loss in losses) / len(losses)
        if norms:
            metrics["actor/grad_norm"] = sum(norms) / len(norms)
        metrics["actor/skipped_updates"] = float(skipped)
        metrics["actor/lr"] = self.optimizer.param_groups[0]["lr"]
        return UpdateResult(metrics, seen.log_probs, seen.entropy)

    def _accumulate(
        self,
        experience: Experience,
        rows: list[int],
        sums: TokenSums,
        first: bool,
        credit: StepCredit | None,
    ) -> tuple[dict[str, Tensor], list[tuple[MicroBatch, TokenStats]]]:
        """Backward through one mini-batch, a micro-batch at a time; the `first` epoch captures influence.

        Returns the loss terms and what each pass saw. Nothing is read from the device here, so that it never
        waits for the program.
        """
        totals = LossTotals.of(experience.loss_mask[rows])
        self.optimizer.zero_grad(set_to_none=True)
        terms: dict[str, Tensor] = {}
        passes: list[tuple[MicroBatch, TokenStats]] = []
        idle = self._idle_rows(experience, rows, credit)
        active = [row for row in rows if row not in idle]
        if not active:  # a gradient of zero, which the optimizer's momentum still answers
            for parameter in self._parameters():
                parameter.grad = torch.zeros_like(parameter)
        with torch.no_grad():
            for batch in self._micro_batches(experience, sorted(idle)):
                stats = self.policy.token_stats(batch)
                self._loss(experience, batch, stats, totals, sums, terms, credit)
                passes.append((batch, stats))
        whole = credit is not None and credit.keeps_groups
        sketch = credit.of.sketch if credit is not None and whole else None
        for portion in self._portions(experience, active, first, whole):
            for batch in self._micro_batches(experience, portion, whole):
                with self.recorder.capture(batch) if first else nullcontext():
                    stats = self.policy.token_stats(batch, self.config.entropy_coeff != 0, sketch)
                    loss = self._loss(experience, batch, stats, totals, sums, terms, credit)
                    if first:
                        rewards = send(experience.judged.scores[batch.rows], loss.device)
                        advantages = take(experience.advantages, batch)
                        self.recorder.watch(loss, stats.log_probs, batch, advantages, rewards)
                    loss.backward()
                passes.append((batch, stats.detached()))
            if first and any(map(self.recorder.selects, portion)):
                self.recorder.score(portion)
        return terms, passes

    def _micro_batches(
        self, experience: Experience, rows: list[int], whole: bool = False
    ) -> Iterator[MicroBatch]:
        """Yield the given rows, so many at a time as go through the model together; `whole`: whole groups."""
        packed = self.policy.packs
        if whole:
            groups = experience.judged.groups
            chunks = group_batches(experience.responses, groups, rows, self.config, packed)
        else:
            chunks = micro_batches(experience.responses, rows, self.config, packed)
        for chunk in chunks:
            yield micro_batch(experience.responses, chunk, self.policy.compute.device, packed)

    def _portions(
        self, experience: Experience, rows: list[int], first: bool, whole: bool = False
    ) -> list[list[int]]:
        """Divide a mini-batch into whole groups whose factors are captured, scored and freed together.

        Kept for a whole mini-batch of long responses, token factors would outgrow the model itself. What is
        not traced goes apart, last, and is spared the hooks, but for rows that fill up a micro-batch: one
        more of them would cost more than a few lines that the hooks leave out. `whole`: no group is split.
        """
        traced = [row for row in rows if first and self.recorder.selects(row)]
        if not traced:
            return [rows]
        rest = [row for row in rows if not self.recorder.selects(row)]
        if self.recorder.divisible(traced):
            parts = portions(experience.responses, experience.judged.groups, traced, self.config)
        else:
            parts = [traced]
        if self.policy.packs and self.config.use_dynamic_bsz and not whole:
            parts[-1], rest = filled_up(parts[-1], rest, experience.responses, token_budget(self.config))
        return [*parts, rest] if rest else parts

    def _idle_rows(self, experience: Experience, rows: list[int], credit: StepCredit | None) -> set[int]:
        """Return the rows whose gradient is exactly zero, so that no backward is spent on them.

        Without a KL or entropy term the loss of a token is its advantage times a weight; groups that are all
        right or all wrong have advantage 0 throughout. A row whose influence is traced needs its backward,
        one that others of its group are compared with its forward beside theirs.
        """
        if self.config.use_kl_loss or self.config.entropy_coeff != 0:
            return set()
        moves = (experience.advantages[rows] != 0).any(-1).tolist()
        return {
            row
            for row, moved in zip(rows, moves, strict=True)
            if not moved and not self.recorder.selects(row) and not (credit is not None and credit.needs(row))
        }

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _apply(self) -> float:
        """Clip, step and return the gradient norm. A norm that is not finite leaves the weights alone."""
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters(), self.config.grad_clip))
        if not self.skip_optimizer_step and math.isfinite(norm):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _count_skipped(self, norm: float, step: int) -> None:
        """Stop a run that has stopped learning: one bad batch passes, weights gone wrong do not."""
        self.skipped_in_a_row = 0 if math.isfinite(norm) else self.skipped_in_a_row + 1
        if self.skipped_in_a_row >= self.max_skipped:
            raise ArcherError(
                f"Step {step}: the gradients of {self.skipped_in_a_row} updates in a row were not finite "
                f"(last norm: {norm}), so nothing is learnt any more; "
                f"trainer.max_skipped_updates={self.max_skipped}. Look at rewards and losses in "
                "metrics.jsonl for the first value that is not finite; lower "
                "actor_rollout_ref.actor.optim.lr, or set engine.dtype=float32, and run it again."
            )


def lr_factor(config: OptimConfig, total_steps: int) -> Callable[[int], float]:
    """Return step -> factor on the peak learning rate, for step = 0 ... total_steps - 1.

    Linear warm-up over w steps, (step + 1) / (w + 1), so that no step has rate 0; then constant, or a cosine
    from 1 to m = min_lr_ratio:  m + (1 - m) / 2 * (1 + cos(2 pi * cycles * progress)).
    """
    warmup = config.lr_warmup_steps
    if warmup < 0:
        warmup = int(config.lr_warmup_steps_ratio * total_steps)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        if config.lr_scheduler_type == "constant":
            return 1.0
        progress = (step - warmup) / max(1, total_steps - warmup)
        wave = 0.5 * (1.0 + math.cos(2.0 * math.pi * config.num_cycles * progress))
        return config.min_lr_ratio + (1.0 - config.min_lr_ratio) * wave

    return factor
