"""prime-rl's token export: what its trainer writes with `enable_token_export`.

Folders `token_exports/step_<step>/` with one file a rank, `rank_<rank>.jsonl`, and an empty file `STABLE`
once the step is complete. One object a sequence, prompt and response together; the lists have one value a
token, and the value at a token belongs to that token:

    token_ids, loss_mask                  the sequence, and the tokens that are trained on
    entropy                               nats, at the sampling temperature
    trainer_logprobs, inference_logprobs  of the training pass, and as sampled
    importance_ratio                      of the two
    is_masked_high, is_masked_low         tokens that the loss leaves out, and at which side
    advantages, rewards                   the same value at every token of a response
    env_name                              the environment

The prompt is what stands before the first trained token. The texts are not in it: `--tokenizer` gives them.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from archer.errors import ArcherError
from archer.files import real_path
from archer.imports.lines import read_lines
from archer.imports.rows import ImportedRow, Record, StepFiles, clean

FOLDER = re.compile(r"step_(\d{1,9})")
FILE = re.compile(r"rank_(\d{1,6})\.jsonl")
SCHEMA_VERSION = 1


def find(source: Path) -> list[StepFiles]:
    """The steps of `token_exports`, of the folder that has it, of one `step_N` folder, or of one file."""
    if source.is_file():
        match = FOLDER.fullmatch(real_path(source).parent.name)
        return [StepFiles(int(match[1]), (source,))] if match and FILE.fullmatch(source.name) else []
    folder = source / "token_exports" if (source / "token_exports").is_dir() else source
    inside = [folder] if FOLDER.fullmatch(real_path(folder).name) else list(folder.glob("step_*"))
    found = []
    for path in inside:
        match = FOLDER.fullmatch(real_path(path).name)
        ranks = {int(m[1]): file for file in path.glob("rank_*.jsonl") if (m := FILE.fullmatch(file.name))}
        if match and ranks:
            found.append(StepFiles(int(match[1]), tuple(ranks[rank] for rank in sorted(ranks))))
    return sorted(found, key=lambda step: step.step)


def unfinished(step: StepFiles) -> bool:
    """Whether the exporter has not said that the step is complete."""
    return not (step.files[0].parent / "STABLE").exists()


def read(step: StepFiles) -> Iterator[ImportedRow]:
    """Yield the responses of a step, rank by rank."""
    for file in step.files:
        for record in read_lines(file):
            yield _row(record, step.step)


def _row(record: Record, step: int) -> ImportedRow:
    version = record.values.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise record.bad("schema_version", f"{SCHEMA_VERSION}, the one that Archer knows")
    ids = record.tokens("token_ids", int)
    mask = record.tokens("loss_mask", bool, len(ids))
    trained = np.flatnonzero(mask)
    if not trained.size:
        raise ArcherError(f"{record.where}, column loss_mask: no token is trained on; expected at least one.")
    own = slice(int(trained[0]), int(trained[-1]) + 1)

    def per_token(column: str) -> np.ndarray | None:
        values = record.floats(column, len(ids))
        return None if values is None else values[own]

    def of_response(column: str) -> float | None:
        values = record.floats(column, len(ids))
        known = np.empty(0) if values is None else values[own][np.isfinite(values[own])]
        return float(known[0]) if known.size else None

    high, low = per_token("is_masked_high"), per_token("is_masked_low")
    name = record.values.get("env_name")
    return ImportedRow(
        where=record.where,
        step=step,
        prompt=ids[: own.start],
        response=ids[own],
        reward=of_response("rewards"),
        data_source=clean(name) if isinstance(name, str) else None,
        mask=mask[own],
        entropies=per_token("entropy"),
        log_probs=per_token("trainer_logprobs"),
        rollout_log_probs=per_token("inference_logprobs"),
        ratio=per_token("importance_ratio"),
        clipped=None if high is None or low is None else np.nan_to_num(high) - np.nan_to_num(low),
        advantage=per_token("advantages"),
    )
