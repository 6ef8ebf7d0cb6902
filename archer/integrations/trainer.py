"""Token influence in a transformers Trainer: which training tokens help a validation set, or a contrast.

    from archer.integrations.trainer import TracingTrainer, TokenTracing

    trainer = TracingTrainer(..., archer=TokenTracing(target=validation_examples))   # for Trainer(...)

A trainer of your own: `class Mine(TracingTrainerMixin, MyTrainer)`. Tokens are those that `labels` name
(-100: not learnt). Scores belong to the weights before each traced optimizer step, and go to
`influence_trace/` in the output folder, with log-probs and entropies, for `archer view`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel, Trainer, TrainerCallback

from archer.errors import ArcherError
from archer.generation.head import token_statistics
from archer.influence import InfluenceConfig, InfluenceTracer, Layout, TargetTracer, groups_from
from archer.influence.distributed import gather_groups
from archer.influence.layout import IGNORED
from archer.integrations.folder import TraceFolder
from archer.integrations.supervised import Examples, supervised_step

__all__ = ["TokenTracing", "TracingTrainer", "TracingTrainerMixin"]

PLAIN = ("NO", "MULTI_GPU", "MULTI_CPU")
NEXT_TOKEN = (None, "ForCausalLM", "ForConditionalGeneration")
"""Losses of transformers' models that are of the next token; None: of models named LMHeadModel."""

RANK_ROWS = 2**32  # rows of one process are named from its rank times this

HELPING = InfluenceConfig(enable=True, reg_rule="kernel_trace")
"""Gradients of losses on both sides: positive says that learning the token lowers the target's loss."""


@dataclass(frozen=True)
class TokenTracing:
    """What is traced, and towards what.

    Attributes:
        target: examples as the trainer's data collator takes them, a validation set: a token's score says how
            much a step on it lowers their mean loss. Its gradient is computed anew for each traced step, so
            that some dozens of examples are enough.
        uid_column, accepted_column: without a target, columns of the batches: responses of one uid are
            compared, accepted ones with rejected ones (`remove_unused_columns=False`). They are taken out
            of the batch before the model sees it.
        every: trace every so many optimizer steps; it costs a backward of the target each time.
        influence: how scores are defined; the objective is the training loss.
        output_dir: the folder that `archer view` is given; None: the trainer's own `args.output_dir`.
    """

    target: Sequence[Any] | None = None
    uid_column: str | None = None
    accepted_column: str | None = None
    every: int = 1
    influence: InfluenceConfig = HELPING
    output_dir: str | Path | None = None

    def __post_init__(self) -> None:
        contrast = self.uid_column is not None and self.accepted_column is not None
        if (self.target is not None) == contrast:
            raise ArcherError(
                "TokenTracing needs a target (validation examples), or uid_column and accepted_column for a "
                "contrast, not both"
            )
        if self.influence.output_function != "training_loss" or not self.influence.enable or self.every < 1:
            raise ArcherError(
                "TokenTracing compares gradients of the training loss: influence needs enable=True and "
                "output_function=training_loss, every at least 1"
            )


class TracingTrainerMixin:
    """To be put before a transformers Trainer; only its public methods are overridden."""

    def __init__(self, *args: Any, archer: TokenTracing, **options: Any) -> None:
        super().__init__(*args, **options)
        self.archer_options = archer
        self.archer_tracer: InfluenceTracer | None = None
        self._seen: Examples | None = None  # of the micro-batch whose loss is computed
        self._window: list[Examples] = []
        self._traces: TraceFolder | None = None
        self._begun_at = 0  # the step that this run continues from
        self._own_metrics: dict[str, float] = {}
        kind = self.accelerator.distributed_type.value  # type: ignore[attr-defined]
        if kind not in PLAIN:
            raise ArcherError(f"models that {kind} shards cannot be traced here; one process or DDP can")
        check_shifted(self.model)  # type: ignore[attr-defined]
        self._tokenizer = tokenizer_of(self)
        self.add_callback(_Flushing(self))  # type: ignore[attr-defined]

    def training_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Tensor:
        """Forward and backward of a micro-batch, captured in the steps that are traced."""
        options_given, state = self.archer_options, self.state  # type: ignore[attr-defined]
        if (state.global_step + 1) % options_given.every:
            return super().training_step(model, inputs, *args, **options)  # type: ignore[misc]
        if self.archer_tracer is None:
            self._begin()
        tracer, accelerator = self.archer_tracer, self.accelerator  # type: ignore[attr-defined]
        assert tracer is not None
        uids, accepted = self._verdicts(inputs)
        if not self._window and isinstance(tracer, TargetTracer):
            self._aim(tracer)
        labels, first = labels_of(inputs), sum(len(seen.labels) for seen in self._window)
        rows = [accelerator.process_index * RANK_ROWS + first + i for i in range(len(labels))]
        self._seen = Examples(rows, inputs["input_ids"].cpu(), labels.cpu(), uids, accepted)
        try:
            with tracer.capture(Layout.from_labels(labels, rows)):
                loss = super().training_step(model, inputs, *args, **options)  # type: ignore[misc]
            self._window.append(self._seen)
        finally:
            self._seen = None
        if accelerator.sync_gradients:
            self._score(tracer)
        return loss

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **options: Any) -> Any:
        """The trainer's loss; of a traced micro-batch log-probs and entropies are kept on the way."""
        verdicts = (self.archer_options.uid_column, self.archer_options.accepted_column)
        inputs = {name: value for name, value in inputs.items() if name not in verdicts}
        if self._seen is None:
            return super().compute_loss(model, inputs, return_outputs, **options)  # type: ignore[misc]
        loss, outputs = super().compute_loss(model, inputs, True, **options)  # type: ignore[misc]
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[1]
        if logits is not None:
            with torch.no_grad():
                for row, line in enumerate(self._seen.labels):
                    learnt = (line[1:] != IGNORED).nonzero().squeeze(1)
                    tokens = line[1:][learnt].to(logits.device)
                    log_probs, entropy = token_statistics(logits[row, learnt.to(logits.device)], tokens, 1.0)
                    self._seen.note(row, log_probs, entropy)
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """The trainer's metrics and the tracer's."""
        if "loss" in logs:
            logs.update(self._own_metrics)
            self._own_metrics = {}
        super().log(logs, *args, **options)  # type: ignore[misc]

    def _verdicts(self, inputs: Any) -> tuple[list[Any] | None, list[bool] | None]:
        chosen = self.archer_options
        if chosen.target is not None:
            return None, None
        absent = [name for name in (chosen.uid_column, chosen.accepted_column) if name not in inputs]
        if absent:
            raise ArcherError(
                f"the batch has no {absent[0]!r}, only {', '.join(inputs)}: set remove_unused_columns=False, "
                "and let the data collator keep it"
            )
        uids, accepted = inputs[chosen.uid_column], inputs[chosen.accepted_column]
        return (
            [uid.item() if isinstance(uid, Tensor) else uid for uid in uids],
            [bool(flag) for flag in accepted],
        )

    def _begin(self) -> None:
        several = dist.group.WORLD if self.accelerator.num_processes > 1 else None  # type: ignore[attr-defined]
        kind = InfluenceTracer if self.archer_options.target is None else TargetTracer
        self.archer_tracer = kind(self.model, self.archer_options.influence, several)  # type: ignore[attr-defined]
        if self.is_world_process_zero():  # type: ignore[attr-defined]
            print(self.archer_tracer.describe(), flush=True)

    def _aim(self, tracer: TargetTracer) -> None:
        """The gradient of the target's mean loss per token, under the weights as they are."""
        model, accelerator = self.model, self.accelerator  # type: ignore[attr-defined]
        target = self.archer_options.target
        assert target is not None
        mine = range(accelerator.process_index, len(target), accelerator.num_processes)
        if not mine:
            raise ArcherError(
                f"{len(target)} target examples for {accelerator.num_processes} processes: too few"
            )
        tracer.clear_target()
        trained = model.training
        model.eval()
        aimed = False
        try:
            with gradients_set_aside(model):
                size = self.args.per_device_eval_batch_size  # type: ignore[attr-defined]
                for begin in range(0, len(mine), size):
                    examples = [target[i] for i in mine[begin : begin + size]]
                    batch = self._prepare_inputs(self.data_collator(examples))  # type: ignore[attr-defined]
                    learnt = int((labels_of(batch)[:, 1:] != IGNORED).sum())
                    if not learnt:
                        continue  # its mean loss is 0 / 0
                    mask = batch.get("attention_mask", torch.ones_like(batch["labels"]))
                    with torch.enable_grad(), tracer.capture(Layout.from_mask(mask.bool())):
                        self.compute_loss(model, dict(batch)).backward()
                    tracer.add_to_target(weight=learnt)
                    aimed = True
        finally:
            model.train(trained)
        if not aimed:
            raise ArcherError(
                "no target example has a label: the data collator gives each token -100, which is not learnt"
            )

    def _score(self, tracer: InfluenceTracer) -> None:
        """Score what was captured since the last optimizer step, before the weights move, and write it."""
        seen, self._window = self._window, []
        self._average_over_processes(tracer)
        if isinstance(tracer, TargetTracer):
            if not self._learns(seen):
                tracer.reset()
                return
            scores = tracer.target_scores()
        else:
            groups = groups_from(
                [uid for part in seen for uid in part.uids or ()],
                [flag for part in seen for flag in part.accepted or ()],
                [row for part in seen for row in part.rows],
            )
            if self.accelerator.num_processes > 1:  # type: ignore[attr-defined]
                assert dist.group.WORLD is not None
                groups = gather_groups(groups, dist.group.WORLD)
            scores = tracer.scores(tracer.select(groups))
        for part in seen:
            part.scores.update({row: scores[row] for row in part.rows if row in scores})
        self._write(seen, tracer.metrics())

    def _average_over_processes(self, tracer: InfluenceTracer) -> None:
        """Divide gradients by the number of processes, as DDP does after the backward that was captured."""
        world = self.accelerator.num_processes  # type: ignore[attr-defined]
        if world > 1:
            captured = tracer.captured
            tracer.take([replace(part, scale=torch.full((len(part.row),), 1 / world)) for part in captured])

    def _learns(self, seen: list[Examples]) -> bool:
        """Whether any process has a token with a label: cut examples may have none."""
        here = any(bool((part.labels[:, 1:] != IGNORED).any()) for part in seen)
        flag = torch.tensor([here], device=self.accelerator.device)  # type: ignore[attr-defined]
        return bool(self.accelerator.gather(flag).any())  # type: ignore[attr-defined]

    def _write(self, seen: list[Examples], metrics: dict[str, float]) -> None:
        world = self.accelerator.num_processes  # type: ignore[attr-defined]
        everyone: list[Any] | None = [None] * world if self.is_world_process_zero() else None  # type: ignore[attr-defined]
        if world > 1:
            dist.gather_object(seen, everyone)
        else:
            everyone = [seen]
        self._own_metrics = metrics
        if everyone is None:
            return
        step = self.state.global_step + 1  # type: ignore[attr-defined]
        whole = supervised_step(step, [part for parts in everyone for part in parts])
        if self._traces is None:
            args, chosen = self.args, self.archer_options  # type: ignore[attr-defined]
            self._traces = TraceFolder(
                Path(args.output_dir if chosen.output_dir is None else chosen.output_dir),
                0,
                chosen.influence,
                self._tokenizer,
                {
                    "project": "transformers",
                    "experiment": args.run_name or Path(args.output_dir).name,
                    "model": str(self.model.config.name_or_path),  # type: ignore[attr-defined]
                    "target": "contrast" if chosen.target is None else f"{len(chosen.target)} examples",
                    **whole.missing,
                },
                self._begun_at,
            )
        self._traces.write(whole)


class TracingTrainer(TracingTrainerMixin, Trainer):
    """transformers' Trainer with `archer=TokenTracing(...)`."""


class _Flushing(TrainerCallback):
    """Opens the trace where a run begins, and leaves whole files at checkpoints and at the end."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        if self.trainer._traces is not None:  # of an earlier call of train()
            self.trainer._traces.close()
        self.trainer._traces, self.trainer._begun_at = None, state.global_step

    def on_save(self, *_: Any, **__: Any) -> None:
        if self.trainer._traces is not None:
            self.trainer._traces.flush()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.on_save()


def check_shifted(model: Any) -> None:
    """Refuse models whose labels are not those of the next token, as a layout takes them to be."""
    plain = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not isinstance(plain, PreTrainedModel):
        return
    if plain.config.is_encoder_decoder or plain.loss_type not in NEXT_TOKEN:
        raise ArcherError(
            f"{type(plain).__name__} does not learn to emit the next token at each position: token tracing "
            "is for causal language models"
        )


def tokenizer_of(trainer: Any) -> Any:
    """What turns the trace's tokens into text: the trainer's own, else its data collator's."""
    if trainer.processing_class is not None:
        return trainer.processing_class
    if not hasattr(trainer.data_collator, "tokenizer"):
        raise ArcherError("a trace holds the text of tokens: give the trainer processing_class=tokenizer")
    return trainer.data_collator.tokenizer


def labels_of(batch: Any) -> Tensor:
    """[n, S] of a batch."""
    for name in ("labels", "input_ids"):
        if name not in batch:
            raise ArcherError(
                f"the batch has no {name!r}, only {', '.join(batch)}: token tracing needs input_ids, and "
                "labels that say which of them are learnt (-100: not), from the data collator"
            )
    labels: Tensor = batch["labels"]
    return labels


@contextmanager
def gradients_set_aside(model: Any) -> Iterator[None]:
    """Backward passes inside leave no gradient behind, and take none away."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient
