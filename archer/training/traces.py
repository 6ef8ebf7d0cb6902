"""Both traces of a run, whatever the engine: the record of a step, and what is written of it."""

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from archer.config.compose import stored_tree
from archer.config.root import TrainConfig
from archer.errors import ArcherError
from archer.influence import Group
from archer.rewards import RewardResult
from archer.rewards.telling import told
from archer.trace.arrays import TraceKind
from archer.trace.files import VALIDATION
from archer.trace.reader import is_trace
from archer.trace.schema import TraceStep
from archer.trace.vocab import Vocab, vocab_from_tokenizer
from archer.trace.writer import NullTraceWriter, StepSink, TraceWriter
from archer.training.credit import Credit
from archer.training.diagnose import LiveDiagnosis, NoDiagnosis, StepWatcher
from archer.training.update_marks import UpdateMarks


@dataclass(frozen=True)
class StepRecord:
    """The N responses that a step trains on, the longest L tokens long: on the CPU, zero outside the mask."""

    step: int
    prompts: Sequence[Any]  # N lists of token ids
    sample_index: Sequence[int]  # N places of the prompts in the dataset
    groups: Sequence[int]  # N numbers of prompts within the step
    tokens: Tensor  # [N, L] int64
    mask: Tensor  # [N, L] bool
    entropy: Tensor  # [N, L] of the policy before the update
    log_probs: Tensor  # [N, L] of the same
    advantages: Tensor  # [N, L]
    scores: Tensor  # [N] rewards, shaped
    correct: Tensor  # [N] bool: the raw verdicts
    unjudged: Tensor  # [N] bool: judging failed; reward and verdict mean nothing
    results: Sequence[RewardResult]  # N
    data_sources: Sequence[str]  # N
    ground_truths: Sequence[Any]  # N
    finished: Tensor  # [N] bool: ended by itself, not by the length limit
    seeds: Tensor | None = None  # [N] int64, where the sampler tells
    rollout_log_probs: Tensor | None = None  # [N, L] as sampled, where the sampler tells
    marks: UpdateMarks | None = None  # what the update did to each token, where it is known
    credit: Credit | None = (
        None  # what each token was paid of its response's advantage, where that is weighed
    )

    def trace_step(self, rows: list[int], influence: Tensor | None) -> TraceStep:
        """Return the arrays of the chosen rows. influence: [N, L], NaN where nothing was computed."""
        groups = [self.groups[row] for row in rows]

        def chosen(values: Tensor | None) -> Any:
            return None if values is None else values[rows].numpy()

        marks, credit = self.marks, self.credit
        texts: dict[str, Any] = told(
            [self.results[row] for row in rows],
            [self.ground_truths[row] for row in rows],
            [self.data_sources[row] for row in rows],
        )
        return TraceStep.from_batch(
            entropies=chosen(self.entropy),
            response_mask=chosen(self.mask),
            responses=chosen(self.tokens),
            response_index=rows,
            log_probs=chosen(self.log_probs),
            reward=chosen(self.scores),
            accepted=chosen(self.correct),
            unjudged=chosen(self.unjudged),
            group_id=groups,
            uid=[f"step{self.step}-group{group}" for group in groups],
            prompts=[self.prompts[row] for row in rows],
            sample_index=[self.sample_index[row] for row in rows],
            truncated=chosen(~self.finished),
            seed=chosen(self.seeds),
            rollout_log_probs=chosen(self.rollout_log_probs),
            ratio=None if marks is None else chosen(marks.ratio),
            clipped=None if marks is None else chosen(marks.clipped),
            loss_weight=None if marks is None else chosen(marks.loss_weight),
            credit=None if credit is None else chosen(credit.weights),
            credit_score=None if credit is None else chosen(credit.scores),
            paid=None if credit is None else chosen(self.advantages * credit.weights),
            influence=chosen(influence),
            advantage=None if influence is None else chosen(self.advantages),
            **texts,
        )


def prompt_groups(
    groups: Sequence[int], correct: Sequence[bool], unjudged: Sequence[bool] | None = None
) -> list[Group]:
    """Return the prompt groups of a step with their verdicts; all [N].

    A response without a verdict is neither accepted nor rejected: it is in no group.
    """
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        if unjudged is None or not unjudged[row]:
            members.setdefault(group, []).append(row)
    return [
        Group(str(group), tuple(rows), tuple(bool(correct[row]) for row in rows))
        for group, rows in members.items()
    ]


def traces_validation(config: TrainConfig) -> bool:
    """Whether the responses of validations are traced."""
    chosen = config.trainer.val_trace.enable
    wanted = config.trainer.entropy_trace.enable if chosen is None else chosen
    return wanted and bool(config.data.val_files)


class Traces:
    """Writes `entropy_trace/` over all responses of a step and `influence_trace/` over the selected ones.

    `val_trace/` has the validations, each as the step after which it was made.
    """

    def __init__(self, config: TrainConfig, tokenizer: Any, resumed_at: int) -> None:
        trainer = config.trainer
        stored = stored_tree(config)
        metadata = {
            "project": stored["trainer"]["project_name"],
            "experiment": stored["trainer"]["experiment_name"],
            "model": stored["actor_rollout_ref"]["model"]["path"],
            "temperature": config.actor_rollout_ref.rollout.temperature,
        }
        validates = traces_validation(config)
        enabled = (
            trainer.entropy_trace.enable or trainer.influence_trace.enable or validates or trainer.diagnose
        )
        vocab = vocab_from_tokenizer(tokenizer) if enabled else None
        self.entropy: StepSink = NullTraceWriter()
        self.influence: StepSink = NullTraceWriter()
        self.validation: StepSink = NullTraceWriter()
        self.diagnosis: StepWatcher = LiveDiagnosis(vocab) if trainer.diagnose else NoDiagnosis()
        self._refers = False  # whether influence steps leave to the entropy trace what that holds too
        if trainer.entropy_trace.enable:
            options = trainer.entropy_trace
            folder = _folder(config, options.output_dir, "entropy_trace", resumed_at)
            self.entropy = _writer(
                folder, "entropy", options.write_every, options.fsync, metadata, vocab, resumed_at
            )
        if validates:
            sampling = config.actor_rollout_ref.rollout.val_kwargs
            temperature = sampling.temperature if sampling.do_sample else 1.0
            details = metadata | {"temperature": temperature, "validation": True}
            self.validation = _writer(
                config.run_dir / VALIDATION,
                "entropy",
                1,
                trainer.entropy_trace.fsync,
                details,
                vocab,
                resumed_at,
            )
        if trainer.influence_trace.enable:
            knobs = trainer.influence_trace
            folder = _folder(config, knobs.output_dir, "influence_trace", resumed_at)
            details = metadata | {"influence_trace": stored["trainer"]["influence_trace"]}
            beside = self.entropy if isinstance(self.entropy, TraceWriter) else None
            if beside is not None and beside.folder.resolve().parent != folder.resolve().parent:
                beside = None  # one may be moved without the other
            if knobs.self_contained:
                beside = None
            self._refers = beside is not None
            self.influence = _writer(
                folder, "influence", knobs.write_every, knobs.fsync, details, vocab, resumed_at, beside
            )

    def wants(self, step: int) -> bool:
        """Whether any trace, or the diagnosis, takes the step."""
        return self.diagnosis.wants(step) or self.entropy.wants(step) or self.influence.wants(step)

    def write(self, record: StepRecord, influence: Tensor | None, selected: Collection[int]) -> None:
        """Hand the step's arrays to the background writers.

        influence: [N, L], NaN where nothing was computed; None: nothing of the step was traced
        selected:  the rows that were
        """
        step = record.step
        if self.entropy.wants(step) or self.diagnosis.wants(step):
            whole = record.trace_step(list(range(len(record.mask))), None)
            self.diagnosis.look(step, whole)
            if self.entropy.wants(step):
                self.entropy.write(step, whole)
        if influence is not None and self.influence.wants(step):
            refers = self._refers and self.entropy.wants(step)
            self.influence.write(step, record.trace_step(sorted(selected), influence), refers=refers)

    def flush(self) -> None:
        """Wait until everything handed over is written: before a checkpoint that counts it as done."""
        for trace in (self.entropy, self.influence, self.validation):
            trace.flush()

    def close(self) -> None:
        """Write what is in flight and end the writers."""
        with ExitStack() as closing:
            for trace in (self.validation, self.influence, self.entropy):
                closing.callback(trace.close)  # the last first; each, whatever another raises


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
    beside: TraceWriter | None = None,
) -> TraceWriter:
    writer = TraceWriter(
        folder,
        kind=kind,
        write_every=write_every,
        fsync=fsync,
        metadata=metadata,
        vocab=vocab,
        beside=beside,
    )
    writer.truncate_after(resumed_at)
    return writer
