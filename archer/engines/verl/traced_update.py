"""verl's training engine with capture inside its real backward."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor, nn
from verl.utils import tensordict_utils as tu
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

from archer.engines.verl.adapters import save_adapter
from archer.engines.verl.credit import HeadRecorder
from archer.engines.verl.influence import Portion, RankRecorder, RankTrace, TracedRows, TracePlan
from archer.engines.verl.log_probs import chunked_log_probs, exact_entropies
from archer.errors import ArcherError
from archer.generation.model import disable_dropout
from archer.influence import InfluenceConfig, Layout
from archer.training.credit import TokenCredit

LossFunction = Callable[..., tuple[Tensor, dict[str, Any]]]

ROW_ID = "row_id"
"""Field of the queue that names the row of every response, whatever verl does to their order."""


class TracedUpdate(FSDPEngine):
    """Mixed into verl's language-model engine: `trace` turns capture on.

    verl calls `forward_step`, then `loss.backward()`, for each micro-batch of `forward_backward_batch`, and
    then `optimizer_step`. A capture therefore begins in `forward_step` and ends with the next one, or with
    the batch.
    """

    recorder: RankRecorder | None = None
    head: HeadRecorder | None = None  # for token credit by the head's influence
    credit_recorder: RankRecorder | None = None  # for token credit by the influence of any modules
    reading_credit = False  # whether this is no update, but the pass that the latter is read from
    skip_optimizer_step = False
    skipped_updates = 0
    _last_portion = True

    def trace(self, config: InfluenceConfig) -> RankRecorder:
        """Capture influence in the backward passes of this engine."""
        self.recorder = RankRecorder(self.module, config, self._ranks)
        return self.recorder

    def read_for(self, credit: TokenCredit, temperature: float) -> None:
        """Prepare to read the influence that a mode of token credit wants, if it wants any."""
        if credit.scores is None:
            return
        if credit.scores.of == "head":
            self.head = HeadRecorder(self.module, credit, temperature, self._ranks)
        else:
            self.credit_recorder = RankRecorder(self.module, credit.tracer_config(), self._ranks)

    @property
    def _ranks(self) -> "dist.ProcessGroup | None":
        return dist.group.WORLD if dist.get_world_size() > 1 else None

    def forward_backward_batch(
        self, data: TensorDict, loss_function: LossFunction, forward_only: bool = False
    ) -> Any:
        """Run a mini-batch; its losses are divided by the responses and tokens that it really holds.

        One that is traced goes portion by portion, each scored when its backward passes are through.
        """
        if forward_only:
            return super().forward_backward_batch(data, loss_function, forward_only)
        responses, tokens = self._totals(data)
        tu.assign_non_tensor(data, global_batch_size=responses)
        recorder = self.recorder
        if recorder is None or not recorder.active:
            return super().forward_backward_batch(data, loss_function)
        outputs = []
        try:
            for portion, part in zip(recorder.portions, divided(data, recorder.portions), strict=True):
                self._last_portion = portion is recorder.portions[-1]
                outputs.append(super().forward_backward_batch(part, of_whole(loss_function, tokens)))
                recorder.close()
                recorder.score(portion)
        except BaseException:
            recorder.abandon()
            raise
        finally:
            self._last_portion = True
        return joined(outputs)

    def _gradient_sync_context(self, *, is_last_micro_batch: bool) -> Any:
        """Where verl is told to reduce gradients once a mini-batch, that is at the end of its last portion.

        The setting is `use_no_sync_for_gradient_accumulation`; otherwise each micro-batch reduces its own.
        """
        return super()._gradient_sync_context(is_last_micro_batch=is_last_micro_batch and self._last_portion)

    def forward_step(
        self, micro_batch: TensorDict, loss_function: LossFunction, forward_only: bool
    ) -> tuple[Tensor, dict[str, Any]]:
        """Run the forward of a micro-batch, captured when it is one of those to be traced."""
        recorder, head = self.recorder, self.head
        if forward_only and head is not None and head.active:
            rows = traced_rows(micro_batch, head)
            tokens = micro_batch["responses"].values()
            with head.reading(rows, self._layout(micro_batch, rows), tokens):
                return super().forward_step(micro_batch, loss_function, forward_only)
        if forward_only or recorder is None or not recorder.active:
            return super().forward_step(micro_batch, loss_function, forward_only)
        rows = traced_rows(micro_batch, recorder)
        recorder.open(self._layout(micro_batch, rows))
        return super().forward_step(micro_batch, watched(loss_function, recorder, rows), forward_only)

    def _layout(self, micro_batch: TensorDict, rows: TracedRows) -> Layout:
        if not tu.get_non_tensor_data(micro_batch, "use_remove_padding", True):
            return rows.padded()
        length = int(micro_batch["input_ids"].offsets()[-1])
        return rows.packed(self._get_packed_pad_size(length))

    def begin_credit(self, plan: TracePlan) -> None:
        """Read influence for token credit, until `finish_credit`, from what looks like an update."""
        assert self.credit_recorder is not None
        self.credit_recorder.begin(plan)
        self._set_aside, self.recorder = self.recorder, self.credit_recorder
        self.reading_credit = True

    def finish_credit(self) -> RankTrace:
        """Return the scores; updates are updates again."""
        assert self.credit_recorder is not None
        self.recorder, self.reading_credit = self._set_aside, False
        return self.credit_recorder.finish()

    def lr_scheduler_step(self) -> Any:
        """Step the schedule, unless this is no update."""
        return self.lr_scheduler.get_last_lr()[0] if self.reading_credit else super().lr_scheduler_step()

    def prepare_model_outputs(self, *args: Any, **options: Any) -> Any:
        """Turn logits into log-probs and entropies."""
        with chunked_log_probs(), exact_entropies(self):
            return super().prepare_model_outputs(*args, **options)

    def optimizer_step(self) -> float:
        """Step, and remember that the weights are others."""
        if self.recorder is not None:
            self.recorder.next_mini_batch()
        if self.reading_credit:
            self.optimizer.zero_grad()
            return 0.0
        norm = self._step() if self.skip_optimizer_step else super().optimizer_step()
        self.skipped_updates += not math.isfinite(norm)
        return norm

    def _step(self) -> float:
        """Everything of an optimizer step but the step."""
        step, self.optimizer.step = self.optimizer.step, _no_step
        try:
            return super().optimizer_step()
        finally:
            self.optimizer.step = step

    def save_checkpoint(self, local_path: str, *args: Any, **options: Any) -> None:
        """Save what verl saves, and adapters in the format that others load."""
        super().save_checkpoint(local_path, *args, **options)
        if self._is_lora:
            save_adapter(self.module, self.model_config.path, Path(local_path))

    def _build_module(self) -> nn.Module:
        module = super()._build_module()
        disable_dropout(module)  # ratios of two forward passes must differ by weights alone
        return module

    def _totals(self, data: TensorDict) -> tuple[int, int]:
        """(responses, tokens) of the mini-batch on all ranks; what only fills it up is left out."""
        tokens = torch.stack([mask.sum() for mask in data["loss_mask"].unbind()])
        counts = torch.stack([(tokens > 0).sum(), tokens.sum()]).to(self._count_device())
        dist.all_reduce(counts, group=self.get_data_parallel_group())
        responses, total = counts.tolist()
        return responses, total

    def _count_device(self) -> torch.device:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _no_step(*_: Any, **__: Any) -> None:
    return None


def divided(data: TensorDict, portions: Sequence[Portion]) -> list[TensorDict]:
    """The rows of a rank's mini-batch, portion by portion."""
    if len(portions) == 1:
        return [data]
    rows = data[ROW_ID].reshape(-1).tolist()
    places = [[place for place, row in enumerate(rows) if row in portion.rows] for portion in portions]
    if sorted(place for part in places for place in part) != list(range(len(rows))) or not all(places):
        raise ArcherError(
            f"the {len(rows)} rows of this rank are not those of the {len(portions)} portions that were "
            "planned for the mini-batch: an error in the order of the batch"
        )
    return [tu.index_select_tensor_dict(data, part) for part in places]


def of_whole(loss_function: LossFunction, tokens: int) -> LossFunction:
    """The loss divided by the tokens of the whole mini-batch, where verl counts those of a portion."""

    def loss(model_output: dict[str, Tensor], data: TensorDict, **options: Any) -> Any:
        tu.assign_non_tensor(data, batch_num_tokens=tokens)
        return loss_function(model_output=model_output, data=data, **options)

    return loss


def joined(outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """One output of several portions, as verl makes it of micro-batches."""
    first, *others = outputs
    for output in others:
        first["loss"] += output["loss"]
        for name, values in output["metrics"].items():
            first["metrics"].setdefault(name, []).extend(values)
    return first


def traced_rows(micro_batch: TensorDict, recorder: RankRecorder | HeadRecorder) -> TracedRows:
    """Read off a micro-batch which rows it holds and where their tokens lie."""
    return TracedRows(
        rows=[recorder.row(row) for row in micro_batch[ROW_ID].reshape(-1).tolist()],
        prompt_lengths=micro_batch["prompts"].offsets().diff().tolist(),
        response_lengths=micro_batch["responses"].offsets().diff().tolist(),
        response_mask=micro_batch["response_mask"].values().bool(),
    )


def watched(loss_function: LossFunction, recorder: RankRecorder, rows: TracedRows) -> LossFunction:
    """Let the recorder see the log-probs that a loss is computed from.

    verl hands the loss a jagged tensor. It is taken apart and put together again, so that the tensor watched
    lies on the path from the loss to the model.
    """

    def loss_and_watch(model_output: dict[str, Tensor], data: TensorDict, **options: Any) -> Any:
        jagged: Any = model_output["log_probs"]
        log_probs = jagged.values()
        rebuilt = torch.nested.nested_tensor_from_jagged(log_probs, jagged.offsets())
        loss, metrics = loss_function(
            model_output={**model_output, "log_probs": rebuilt}, data=data, **options
        )
        recorder.watch(loss, log_probs, rows, data["advantages"].values())
        return loss, metrics

    return loss_and_watch
