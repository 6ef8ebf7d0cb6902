"""A trace from imported rows: one step in memory at a time, in a hidden folder renamed when it is whole.

Groups are equal prompts of a step, unless the tool names them. A response is accepted where the tool says so;
otherwise where its reward is above a threshold (0). One without a reward is unjudged.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from archer.errors import ArcherError
from archer.imports.rows import MAX_TOKENS, ImportedRow, StepFiles
from archer.imports.tokens import TextTokenizer
from archer.trace.schema import TraceStep
from archer.trace.vocab import write_vocab
from archer.trace.writer import TraceWriter

TRACE_FOLDER = "entropy_trace"
MAX_CELLS = 2**28  # responses x the longest of a step
MAX_TEXT = 1000  # characters of each text said of a response
MAX_ANSWER = 200
MAX_EXTRAS = 32
NOT_COMPUTED = "not_computed"  # summary metadata: arrays that hold NaN because the tool did not write them

PER_TOKEN = ("entropies", "log_probs", "rollout_log_probs", "ratio", "clipped", "advantage")


@dataclass(frozen=True)
class Imported:
    """What an import made."""

    folder: Path
    steps: int
    rows: int
    arrays: tuple[str, ...]  # per-token arrays that the source had


@dataclass(frozen=True)
class _Tokenised:
    """A row with its tokens."""

    row: ImportedRow
    prompt: list[int]
    response: list[int]


def import_steps(
    steps: Sequence[StepFiles],
    read: Callable[[StepFiles], Iterator[ImportedRow]],
    out: Path,
    *,
    tokenizer: TextTokenizer,
    accepted_above: float | None,
    metadata: Mapping[str, Any],
    progress: Callable[[int], None] = lambda step: None,
) -> Imported:
    """Write the steps as the entropy trace of the run folder `out`, which must be new or empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ArcherError(f"{out} exists and is not an empty folder; import to a new one.")
    hidden = out.with_name(f".{out.name}.importing")
    if hidden.exists():
        raise ArcherError(
            f"{hidden} is there: another import to {out} is at work, or one was killed. Remove it if none is."
        )
    try:
        made = _write(steps, read, hidden, tokenizer, accepted_above, metadata, progress)
        if out.exists():
            out.rmdir()  # it is empty
        hidden.rename(out)
    except OSError as error:
        raise ArcherError(f"cannot write to {out}: {error}. Choose another folder.") from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return replace(made, folder=out)


def _write(
    steps: Sequence[StepFiles],
    read: Callable[[StepFiles], Iterator[ImportedRow]],
    folder: Path,
    tokenizer: TextTokenizer,
    accepted_above: float | None,
    metadata: Mapping[str, Any],
    progress: Callable[[int], None],
) -> Imported:
    trace = folder / TRACE_FOLDER
    found: set[str] = set()
    rows = 0
    with TraceWriter(trace, kind="entropy", complete=False) as writer:
        for files in steps:
            arrays, had = build_step(read(files), tokenizer, accepted_above)
            if arrays is None:
                continue
            writer.write(files.step, arrays)
            found |= had
            rows += arrays.rows
            progress(files.step)
    if not rows:
        raise ArcherError("the source holds no response; nothing was imported.")
    vocab = tokenizer.vocab()
    if vocab is not None:
        write_vocab(trace, vocab, fsync=False)
    missing = [] if "entropies" in found else ["entropies"]
    told = {**metadata, "tokenizer": tokenizer.name, NOT_COMPUTED: missing}
    TraceWriter(trace, kind="entropy", metadata=told, complete=False).close()
    return Imported(folder, len(steps), rows, tuple(name for name in PER_TOKEN if name in found))


def build_step(
    rows: Iterable[ImportedRow], tokenizer: TextTokenizer, accepted_above: float | None
) -> tuple[TraceStep | None, set[str]]:
    """Return the arrays of a step and which per-token ones its source had; None: there is no response."""
    tokenised = [_tokenise(row, tokenizer) for row in rows]
    if not tokenised:
        return None, set()
    width = max(len(item.response) for item in tokenised)
    if len(tokenised) * width > MAX_CELLS:
        raise ArcherError(
            f"{tokenised[0].row.where}: the step has {len(tokenised):,} responses, the longest {width:,} "
            f"tokens long; together they may be {MAX_CELLS:,}. Split the step's file."
        )
    responses = np.zeros((len(tokenised), width), dtype=np.int64)
    mask = np.zeros(responses.shape, dtype=np.bool_)
    for place, item in enumerate(tokenised):
        responses[place, : len(item.response)] = item.response
        mask[place, : len(item.response)] = True if item.row.mask is None else item.row.mask
    held = {name: array for name in PER_TOKEN if (array := _padded(name, tokenised, width)) is not None}
    had = set(held)
    held.setdefault("entropies", np.full(mask.shape, np.nan))
    held.setdefault("log_probs", held["entropies"])
    plain = [item.row for item in tokenised]
    groups = _groups(tokenised)
    rewards = [row.reward if row.reward is not None and math.isfinite(row.reward) else None for row in plain]
    said = [_judgement(row) for row in plain]
    step = TraceStep.from_batch(
        response_mask=mask,
        responses=responses,
        response_index=np.arange(len(plain)),
        reward=[0.0 if reward is None else reward for reward in rewards],
        accepted=[_accepted(row, reward, accepted_above) for row, reward in zip(plain, rewards, strict=True)],
        unjudged=[reward is None for reward in rewards],
        group_id=groups,
        uid=[row.group or f"step{row.step}-group{group}" for row, group in zip(plain, groups, strict=True)],
        prompts=[item.prompt for item in tokenised],
        judgement=said if any(said) else None,
        ground_truth=_texts([row.ground_truth for row in plain]),
        extracted_answer=_texts([row.extracted_answer for row in plain]),
        data_source=_texts([row.data_source for row in plain]),
        **held,  # type: ignore[arg-type]
    )
    return step if "log_probs" in had else replace(step, log_probs=None), had


def _tokenise(row: ImportedRow, tokenizer: TextTokenizer) -> _Tokenised:
    prompt, response = row.prompt, row.response
    if isinstance(prompt, str):
        prompt_ids = tokenizer.encode(prompt)
    elif prompt and isinstance(prompt[0], dict):
        prompt_ids = tokenizer.prompt(prompt)
    else:
        prompt_ids = list(prompt)  # type: ignore[arg-type]
    response_ids = tokenizer.encode(response) if isinstance(response, str) else list(response)
    if len(prompt_ids) + len(response_ids) > MAX_TOKENS:
        raise ArcherError(
            f"{row.where}: {len(prompt_ids) + len(response_ids):,} tokens; at most {MAX_TOKENS:,}."
        )
    return _Tokenised(row, prompt_ids, response_ids)


def _padded(name: str, rows: Sequence[_Tokenised], width: int) -> np.ndarray | None:
    """[N, width] of a per-token value, NaN where a row has none; None where no row has any."""
    if all(getattr(item.row, name) is None for item in rows):
        return None
    array = np.full((len(rows), width), np.nan)
    for place, item in enumerate(rows):
        values = getattr(item.row, name)
        if values is not None:
            array[place, : len(item.response)] = values
    return np.nan_to_num(array) if name == "clipped" else array


def _groups(rows: Sequence[_Tokenised]) -> list[int]:
    numbers: dict[Any, int] = {}
    keys = [item.row.group if item.row.group is not None else tuple(item.prompt) for item in rows]
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _accepted(row: ImportedRow, reward: float | None, above: float | None) -> bool:
    if reward is None:
        return False
    if above is None and row.accepted is not None:
        return row.accepted
    return reward > (0.0 if above is None else above)


def _judgement(row: ImportedRow) -> str:
    extra = {
        name[:MAX_ANSWER]: value[:MAX_TEXT] if isinstance(value, str) else value
        for name, value in list(row.extra.items())[:MAX_EXTRAS]
    }
    return json.dumps({"extra": extra}) if extra else ""


def _texts(values: Sequence[str | None]) -> list[str] | None:
    if all(value is None for value in values):
        return None
    return [(value or "")[:MAX_ANSWER] for value in values]
