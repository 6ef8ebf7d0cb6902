"""verl's rollout and validation dumps: `trainer.rollout_data_dir` and `trainer.validation_data_dir`.

One file a step, `<step>.jsonl`, one object a response:

    input, output   texts, special tokens left out
    gts             the ground truth, any JSON value or null
    score           the reward, summed over tokens
    step            the step
    acc             the verdict, where the reward gives one (or any name the reward chose)
    uid             `{prompt}_{rollout}_{output}`, from verl's newer trainers
    ...             everything else that the reward said

There are no tokens, entropies or log-probs in them.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from archer.errors import ArcherError
from archer.imports.lines import read_lines
from archer.imports.rows import ImportedRow, Record, StepFiles, as_number, clean, further

FILE = re.compile(r"(\d{1,9})\.jsonl")
TAKEN = ("input", "output", "gts", "score", "step", "acc", "uid", "pred", "data_source")
_KEY = re.compile(r"(.+)_\d+_\d+")


def find(source: Path) -> list[StepFiles]:
    """The steps of a folder of dumps, or of one file."""
    files = [source] if source.is_file() else sorted(source.glob("*.jsonl"))
    named = {int(match[1]): path for path in files if (match := FILE.fullmatch(path.name))}
    return [StepFiles(step, (named[step],)) for step in sorted(named)]


def read(step: StepFiles) -> Iterator[ImportedRow]:
    """Yield the responses of a step."""
    for file in step.files:
        for record in read_lines(file):
            yield _row(record, step.step)


def _row(record: Record, step: int) -> ImportedRow:
    values = record.values
    if values.get("step") is not None and record.whole("step") != step:
        raise ArcherError(
            f"{record.where}, column step: found {values['step']}, expected {step} as the file's name says."
        )
    score = None if "score" in values and values["score"] is None else record.number("score")
    acc = values.get("acc")
    if acc is not None and as_number(acc) is None:
        raise record.bad("acc", "true, false or a number")
    truth, key = values.get("gts"), values.get("uid")
    group = _KEY.fullmatch(key) if isinstance(key, str) else None
    named = {name: values[name] for name in ("pred", "data_source") if isinstance(values.get(name), str)}
    return ImportedRow(
        where=record.where,
        step=step,
        prompt=record.text("input"),
        response=record.text("output"),
        reward=score,
        accepted=None if acc is None else record.number("acc") > 0,
        group=clean(group[1]) if group else None,
        ground_truth=None if truth is None else clean(truth if isinstance(truth, str) else str(truth)),
        extracted_answer=clean(named["pred"]) if "pred" in named else None,
        data_source=clean(named["data_source"]) if "data_source" in named else None,
        extra=further(values, TAKEN),
    )
