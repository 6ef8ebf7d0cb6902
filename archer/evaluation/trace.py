"""`val_trace/` of an evaluation: one step, written again after every chunk of prompts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from archer.errors import ArcherError
from archer.evaluation.plan import EvalPlan
from archer.evaluation.recorder import SampleRecorder
from archer.generation.build import Generation
from archer.trace.reader import TraceReader, is_trace
from archer.trace.schema import TraceStep
from archer.trace.stack import first_rows
from archer.trace.vocab import vocab_from_tokenizer
from archer.trace.writer import TraceWriter


@contextmanager
def evaluation_trace(
    folder: Path, recorder: SampleRecorder | None, plan: EvalPlan, generation: Generation, done: int
) -> Iterator[Callable[[], None]]:
    """Give what writes the responses recorded so far.

    A stopped evaluation goes on after `done` prompts; their responses are taken from the trace. Where it
    does not hold them, nothing is traced: a trace with a hole would pass for the whole.
    """
    if recorder is None:
        yield lambda: None
        return
    step = plan.model.step or 0
    before = _before(folder, step, min(done * recorder.n, recorder.limit))
    if done and before is None:
        yield lambda: None
        return
    recorder.begin(before)
    sampling = plan.config.actor_rollout_ref.rollout.val_kwargs
    metadata = {
        "experiment": plan.label,
        "model": plan.model.path,
        "temperature": sampling.temperature if sampling.do_sample else 1.0,
        "validation": True,
    }
    vocab = vocab_from_tokenizer(generation.tokenizer)
    written = recorder.rows
    with TraceWriter(folder, kind="entropy", metadata=metadata, vocab=vocab) as writer:

        def keep() -> None:
            nonlocal written
            arrays = recorder.step()
            if arrays is not None and arrays.rows > written:
                written = arrays.rows
                writer.write(step, arrays)
                writer.flush()

        yield keep


def _before(folder: Path, step: int, rows: int) -> TraceStep | None:
    """The first responses of the trace that a stopped evaluation left; None where it has not so many."""
    if not rows or not is_trace(folder):
        return None
    try:
        arrays = TraceReader(folder).read(step).arrays
    except ArcherError:
        return None
    return first_rows(arrays, rows) if arrays.rows >= rows else None
