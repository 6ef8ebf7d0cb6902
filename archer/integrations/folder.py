"""Both traces of another trainer's run, in one folder that `archer view` is given."""

import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from archer.influence import InfluenceConfig
from archer.trace.reader import is_trace
from archer.trace.vocab import vocab_from_tokenizer
from archer.trace.writer import NullTraceWriter, StepSink, TraceWriter
from archer.training.traces import StepRecord

_logger = logging.getLogger(__name__)


class TracedStep(Protocol):
    """A step as it is written."""

    @property
    def record(self) -> StepRecord:
        """All its responses."""

    @property
    def influence(self) -> Tensor:
        """[N, L], NaN where nothing was computed."""

    @property
    def selected(self) -> list[int]:
        """The rows that are in the influence trace."""


class TraceFolder:
    """Opens `entropy_trace/` and `influence_trace/`; steps are written in the background.

    Args:
        folder: where they lie.
        entropy_every: every how many steps go to the entropy trace; 0: there is none.
        influence: how scores are defined, or None: there is no influence trace.
        tokenizer: the model's, or the processor that holds it.
        metadata: what the traces say of the run.
        resumed_at: the step that the run continues from; later ones are dropped.
    """

    def __init__(
        self,
        folder: Path,
        entropy_every: int,
        influence: InfluenceConfig | None,
        tokenizer: Any,
        metadata: Mapping[str, Any],
        resumed_at: int,
    ) -> None:
        self.entropy: StepSink = NullTraceWriter()
        self.influence: StepSink = NullTraceWriter()
        if not entropy_every and influence is None:
            return
        plain = tokenizer.tokenizer if hasattr(tokenizer, "tokenizer") else tokenizer
        common: dict[str, Any] = {"vocab": vocab_from_tokenizer(plain)}
        beside = None
        if entropy_every:
            where = _fresh(folder / "entropy_trace", resumed_at)
            beside = TraceWriter(
                where, kind="entropy", write_every=entropy_every, metadata=metadata, **common
            )
            beside.truncate_after(resumed_at)
            self.entropy = beside
        if influence is not None:
            where = _fresh(folder / "influence_trace", resumed_at)
            self.influence = TraceWriter(
                where,
                kind="influence",
                write_every=influence.write_every,
                fsync=influence.fsync,
                metadata={**metadata, "influence_trace": asdict(influence)},
                beside=None if influence.self_contained else beside,
                **common,
            )
            self.influence.truncate_after(resumed_at)
        self._refers = beside is not None and influence is not None and not influence.self_contained

    def write(self, whole: TracedStep) -> None:
        """Hand a step over."""
        record, step = whole.record, whole.record.step
        if self.entropy.wants(step):
            self.entropy.write(step, record.trace_step(list(range(len(record.mask))), None))
        if whole.selected and self.influence.wants(step):
            refers = self._refers and self.entropy.wants(step)
            self.influence.write(step, record.trace_step(whole.selected, whole.influence), refers=refers)

    def flush(self) -> None:
        """Wait until everything handed over is written."""
        self.entropy.flush()
        self.influence.flush()

    def close(self) -> None:
        """Write what is in flight and end."""
        self.influence.close()
        self.entropy.close()


def _fresh(folder: Path, resumed_at: int) -> Path:
    if resumed_at == 0 and is_trace(folder):
        _logger.warning(
            "%s holds the trace of an earlier run, which this one begins again and replaces; another "
            "output_dir keeps both",
            folder,
        )
    return folder
