"""Both traces of a run: what the update captures, and what is written after each step."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archer.config.root import TrainConfig
from archer.engines.local.batch import MicroBatch
from archer.engines.local.experience import Experience, Judged
from archer.engines.local.policy import TokenStats
from archer.errors import ArcherError
from archer.influence import Group, InfluenceConfig, InfluenceTracer, Layout, Selection
from archer.trace.reader import is_trace
from archer.trace.schema import TraceKind, TraceStep
from archer.trace.tokenizer_bytes import vocab_from_tokenizer
from archer.trace.vocab import Vocab
from archer.trace.writer import NullTraceWriter, StepSink, TraceWriter


class InfluenceRecorder:
    """Captures the selected responses of a step in the real backward and scores their tokens.

    With tracing off, or in a step that is not written, nothing is selected and no hook is installed.
    """

    def __init__(self, model: torch.nn.Module, config: InfluenceConfig) -> None:
        self.tracer = InfluenceTracer(model, config)
        self.selection = Selection((), 0, 0, 0)
        self.influence = torch.empty(0, 0)  # [N, L], NaN where nothing was computed
        self._rows: set[int] = set()

    def traces(self, module: torch.nn.Module) -> bool:
        """Whether a module is one of those traced."""
        return any(traced.module is module for traced in self.tracer.modules)

    def begin(self, judged: Judged, wanted: bool) -> None:
        """Choose the groups of a step that are traced."""
        self.influence = torch.full(judged.responses.mask.shape, torch.nan)
        self.selection = self.tracer.select(groups_of(judged) if wanted else [])
        self._rows = set(self.selection.rows)

    def selects(self, row: int) -> bool:
        """Whether a row of the step is traced."""
        return row in self._rows

    def divisible(self, rows: list[int]) -> bool:
        """Whether rows hold traced groups that are scored each for itself."""
        by_prompt = self.tracer.config.accepted_rejected_scope == "per_prompt"
        return by_prompt and not self._rows.isdisjoint(rows)

    @contextmanager
    def capture(self, batch: MicroBatch) -> Iterator[None]:
        """Surround the forward and backward of one micro-batch."""
        layout = Layout.padded(
            self._traced(batch), batch.prompt_lengths, batch.lengths, batch.input_ids.shape[1]
        )
        with self.tracer.capture(layout):
            yield

    def watch(
        self, loss: Tensor, log_probs: Tensor, batch: MicroBatch, advantages: Tensor, rewards: Tensor
    ) -> None:
        """Between forward and backward: [n, L] log-probs and advantages, [n] rewards."""
        where = Layout.responses(self._traced(batch), batch.lengths, log_probs.shape[1])
        self.tracer.watch(loss, log_probs, where, advantages, rewards[:, None])

    def score(self, rows: list[int]) -> None:
        """Score the groups among `rows` and free their factors; before the optimizer moves the weights."""
        inside = set(rows)
        groups = tuple(group for group in self.selection.groups if group.rows[0] in inside)
        for row, scores in self.tracer.scores(Selection(groups, 0, 0, 0)).items():
            self.influence[row, : len(scores)] = scores

    def _traced(self, batch: MicroBatch) -> list[int]:
        return [row if row in self._rows else -1 for row in batch.rows.tolist()]


def groups_of(judged: Judged) -> list[Group]:
    """Return the prompt groups of a step with their verdicts."""
    members: dict[int, list[int]] = {}
    for row, group in enumerate(judged.groups.tolist()):
        members.setdefault(group, []).append(row)
    correct = judged.correct.tolist()
    return [
        Group(str(group), tuple(rows), tuple(correct[row] for row in rows)) for group, rows in members.items()
    ]


class Traces:
    """Writes `entropy_trace/` over all responses of a step and `influence_trace/` over the selected ones."""

    def __init__(self, config: TrainConfig, tokenizer: Any, resumed_at: int) -> None:
        trainer = config.trainer
        metadata = {
            "project": trainer.project_name,
            "experiment": trainer.experiment_name,
            "model": config.actor_rollout_ref.model.path,
            "temperature": config.actor_rollout_ref.rollout.temperature,
        }
        enabled = trainer.entropy_trace.enable or trainer.influence_trace.enable
        vocab = vocab_from_tokenizer(tokenizer) if enabled else None
        self.entropy: StepSink = NullTraceWriter()
        self.influence: StepSink = NullTraceWriter()
        if trainer.entropy_trace.enable:
            options = trainer.entropy_trace
            folder = _folder(config, options.output_dir, "entropy_trace", resumed_at)
            self.entropy = _writer(
                folder, "entropy", options.write_every, options.fsync, metadata, vocab, resumed_at
            )
        if trainer.influence_trace.enable:
            knobs = trainer.influence_trace
            folder = _folder(config, knobs.output_dir, "influence_trace", resumed_at)
            details = metadata | {"influence_trace": _plain(asdict(knobs))}
            self.influence = _writer(
                folder, "influence", knobs.write_every, knobs.fsync, details, vocab, resumed_at
            )

    def write(
        self, step: int, experience: Experience, stats: TokenStats, recorder: InfluenceRecorder
    ) -> None:
        """Hand the step's arrays to the background writers."""
        everything = list(range(len(experience.responses)))
        if self.entropy.wants(step):
            self.entropy.write(step, trace_step(step, experience, stats, None, everything))
        if self.influence.wants(step):
            rows = sorted(recorder.selection.rows)
            self.influence.write(step, trace_step(step, experience, stats, recorder.influence, rows))

    def flush(self) -> None:
        """Wait until everything handed over is written: before a checkpoint that counts it as done."""
        self.entropy.flush()
        self.influence.flush()

    def close(self) -> None:
        """Write what is in flight and end the writers."""
        try:
            self.entropy.close()
        finally:
            self.influence.close()


def trace_step(
    step: int, experience: Experience, stats: TokenStats, influence: Tensor | None, rows: list[int]
) -> TraceStep:
    """Return the arrays of the chosen rows."""
    judged, responses = experience.judged, experience.responses
    prompts = [responses.prompts[row] for row in rows]
    return TraceStep.from_batch(
        entropies=stats.entropy[rows].numpy(),
        response_mask=responses.mask[rows].numpy(),
        responses=responses.tokens[rows].numpy(),
        response_index=rows,
        log_probs=stats.log_probs[rows].numpy(),
        reward=judged.scores[rows].numpy(),
        accepted=judged.correct[rows].numpy(),
        group_id=judged.groups[rows].numpy(),
        uid=[f"step{step}-group{group}" for group in judged.groups[rows].tolist()],
        prompts=[prompt.token_ids for prompt in prompts],
        sample_index=[prompt.index for prompt in prompts],
        influence=None if influence is None else influence[rows].numpy(),
        advantage=None if influence is None else experience.advantages[rows].numpy(),
    )


def _folder(config: TrainConfig, chosen: str | None, name: str, resumed_at: int) -> Path:
    """Return the trace folder; one outside the run folder must not hold another run's trace."""
    if chosen is None:
        return config.run_dir / name
    folder = Path(chosen)
    inside = config.run_dir.resolve() in folder.resolve().parents
    if not inside and resumed_at == 0 and is_trace(folder):
        raise ArcherError(
            f"trainer.{name}.output_dir={chosen} holds a trace already, which would be lost. "
            "Choose an empty folder."
        )
    return folder


def _writer(
    folder: Path,
    kind: TraceKind,
    write_every: int,
    fsync: bool,
    metadata: dict[str, Any],
    vocab: Vocab | None,
    resumed_at: int,
) -> TraceWriter:
    writer = TraceWriter(
        folder, kind=kind, write_every=write_every, fsync=fsync, metadata=metadata, vocab=vocab
    )
    writer.truncate_after(resumed_at)
    return writer


def _plain(knobs: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in knobs.items()}
