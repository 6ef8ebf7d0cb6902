"""Preparing a data set: records in, rows in verl's schema out, with a manifest beside them.

All prepared files have the same columns, so they can be mixed in `data.train_files` and read together by
readers that insist on it (verl's, `datasets`). What a data set has beyond them is JSON text in
`extra_info.meta`.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from archer import __version__
from archer.data.files import Row, sha256_of
from archer.data.prepare.catalogue import DataSet
from archer.data.prepare.choice import Choice, same_question
from archer.data.prepare.example import PLACE, RowError, chat_messages, compact_json
from archer.data.prepare.sources import Source
from archer.data.show import answer_kind
from archer.errors import ArcherError
from archer.files import lock, plain_file, put_in_place, write_atomically

BATCH_RECORDS = 10_000  # whose rows are written together
PROGRESS_RECORDS = 100
HOPELESS_AFTER = 1000  # records without a single usable one
FIRST_FEW = 5
OUTPUTS = (".parquet", ".jsonl")
TEXT = pa.string()
SCHEMA = pa.schema(
    {
        "data_source": TEXT,
        "prompt": pa.list_(pa.struct({"role": TEXT, "content": TEXT})),
        "ability": TEXT,
        "reward_model": pa.struct({"style": TEXT, "ground_truth": TEXT}),
        "extra_info": pa.struct(
            {"split": TEXT, "index": pa.int64(), "id": TEXT, "question": TEXT, "meta": TEXT}
        ),
    }
)


@dataclass(frozen=True)
class Request:
    """What is prepared from what, and how."""

    data_set: DataSet
    source: Source
    output: Path
    split: str
    instruction: str | None = None  # default: the data set's
    system: str | None = None
    data_source: str | None = None  # default: the data set's
    question_field: str | None = None
    answer_field: str | None = None
    limit: int | None = None  # use only the first records
    overwrite: bool = False
    choice: Choice = field(default_factory=Choice)  # which records are wanted

    @property
    def reward_source(self) -> str:
        """The data_source column."""
        return self.data_source or self.data_set.data_source

    def identity(self) -> dict[str, Any]:
        """Everything the output depends on, as plain JSON."""
        return {
            "data_set": self.data_set.name,
            "source": self.source.identity(),
            "split": self.split,
            "style": {"instruction": self.instruction, "system": self.system},
            "data_source": self.reward_source,
            "question_field": self.question_field,
            "answer_field": self.answer_field,
            "limit": self.limit,
            "archer": __version__,
        } | self.choice.identity()


@dataclass
class Counts:
    """What preparing met: rows in, kept, left out and why, lengths and kinds of answers."""

    read: int = 0
    kept: int = 0
    duplicates: int = 0
    conflicts: int = 0  # duplicates whose answer differs from the one kept
    not_chosen: int = 0  # for which --where does not hold
    excluded: int = 0  # held out by --exclude
    invalid: Counter[str] = field(default_factory=Counter)  # reason -> rows
    first_invalid: list[str] = field(default_factory=list)  # where the first few are, and what is wrong
    kinds: Counter[str] = field(default_factory=Counter)  # kind of answer -> rows kept
    prompt_chars: int = 0  # sum over kept rows
    shortest: int = 0
    longest: int = 0

    def refuse(self, where: str, reason: str, detail: str = "") -> None:
        """Count a row that cannot be used."""
        self.invalid[reason] += 1
        if len(self.first_invalid) < FIRST_FEW:
            more = f" ({detail[:160]})" if detail else ""
            self.first_invalid.append(f"{where}: {reason}{more}")

    def keep(self, prompt_chars: int, kind: str) -> None:
        """Count a row that goes into the output."""
        self.kept += 1
        self.kinds[kind] += 1
        self.prompt_chars += prompt_chars
        self.shortest = min(self.shortest or prompt_chars, prompt_chars)
        self.longest = max(self.longest, prompt_chars)


@dataclass(frozen=True)
class Prepared:
    """What preparing did."""

    output: Path
    manifest: Path
    sha256: str
    counts: Counts
    unchanged: bool = False  # it was there already


Progress = Callable[[float, Counts], None]


def prepare(request: Request, progress: Progress = lambda done, counts: None) -> Prepared:
    """Write the output of a request; `progress` is told the share of the source read, and the counts."""
    output = request.output
    if output.suffix not in OUTPUTS:
        raise ArcherError(f"--out {output}: expected a name that ends in {' or '.join(OUTPUTS)}.")
    if request.instruction is not None and request.instruction.count(PLACE) > 1:
        raise ArcherError(f"--instruction holds {PLACE} more than once; the question goes in one place.")
    plain_file(output)
    plain_file(manifest_path(output))
    if output.exists() and not request.overwrite:
        return _unchanged(request)
    lock_file = output.with_name(f".{output.name}.lock")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        busy = f"Another process is preparing {output}. Wait for it, or choose another --out."
        held = lock(lock_file, busy)
    except OSError as error:
        raise ArcherError(f"--out {output} cannot be written: {error.strerror}.") from error
    temporary = output.with_name(f".{output.name}.tmp")
    with held:
        try:
            return _write(request, temporary, progress)
        finally:
            temporary.unlink(missing_ok=True)
            lock_file.unlink()


def manifest_path(output: Path) -> Path:
    """Where the manifest of an output is."""
    return output.with_name(f"{output.name}.manifest.json")


def _unchanged(request: Request) -> Prepared:
    """Accept an output that this very request made before; refuse any other."""
    manifest = manifest_path(request.output)
    if manifest.is_file():
        stored = json.loads(manifest.read_text(encoding="utf-8"))
        checksum = sha256_of(request.output)
        if stored.get("identity") == request.identity() and stored.get("sha256") == checksum:
            counts = Counts(**stored["counts"])
            counts.invalid, counts.kinds = Counter(counts.invalid), Counter(counts.kinds)
            return Prepared(request.output, manifest, checksum, counts, unchanged=True)
    raise ArcherError(
        f"{request.output} exists and was not made from this source with these options. "
        "Choose another --out, or --overwrite to replace it."
    )


def _write(request: Request, temporary: Path, progress: Progress) -> Prepared:
    """Write the rows to `temporary` and rename it: the output appears whole or not at all."""
    counts = Counts()
    with _writer(temporary, request.output.suffix) as write:
        for rows in _batches(request, counts, progress):
            write(rows)
    if not counts.kept:
        raise _nothing_usable(request, counts)
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    checksum = sha256_of(temporary)
    manifest = {
        "output": request.output.name,
        "sha256": checksum,
        "bytes": temporary.stat().st_size,
        "rows": counts.kept,
        "identity": request.identity(),
        "counts": vars(counts),
    }
    path = manifest_path(request.output)
    write_atomically(path, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
    put_in_place(temporary, request.output)
    return Prepared(request.output, path, checksum, counts)


@contextmanager
def _writer(path: Path, suffix: str) -> Iterator[Callable[[list[dict[str, Any]]], object]]:
    """A function that adds rows to a file."""
    if suffix == ".parquet":
        with pq.ParquetWriter(path, SCHEMA) as writer:
            yield lambda rows: writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
    else:
        with path.open("w", encoding="utf-8") as file:
            yield lambda rows: file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _batches(request: Request, counts: Counts, progress: Progress) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of the output; every record is counted."""
    seen: dict[str, str] = {}
    held_out = request.choice.held_out()
    rows: list[dict[str, Any]] = []
    for record in islice(request.source.records(), request.limit):
        counts.read += 1
        row = _row(request, record, counts, seen, held_out)
        if row is not None:
            rows.append(row)
        if counts.read == HOPELESS_AFTER == sum(counts.invalid.values()):
            raise _nothing_usable(request, counts)
        if counts.read % PROGRESS_RECORDS == 0:
            progress(record.done, counts)
        if counts.read % BATCH_RECORDS == 0:
            yield rows
            rows = []
    if rows:
        yield rows
    progress(1.0, counts)


def _row(
    request: Request, record: Row, counts: Counts, seen: dict[str, str], held_out: frozenset[str]
) -> dict[str, Any] | None:
    """The row of a record, or None where it is left out; `seen` holds the answer to every question so far."""
    try:
        if record.problem is not None:
            raise RowError(record.problem)
        if not request.choice.wants(record.values):
            counts.not_chosen += 1
            return None
        example = request.data_set.convert(_renamed(request, record.values))
        # JSON can hold halves of characters, files cannot.
        f"{example.question}{example.ground_truth}{example.id}{example.meta}".encode()
    except UnicodeEncodeError:
        counts.refuse(record.where, "text with half a character (a lone surrogate)")
        return None
    except RowError as bad:
        counts.refuse(record.where, bad.reason, bad.detail)
        return None
    key = same_question(example.question)
    if key in held_out:
        counts.excluded += 1
        return None
    answer = hashlib.blake2b(example.ground_truth.encode(), digest_size=16).hexdigest()
    if key in seen:
        counts.duplicates += 1
        counts.conflicts += seen[key] != answer
        return None
    seen[key] = answer
    instruction = request.instruction
    if instruction is None:
        instruction = example.instruction or request.data_set.instruction
    messages = chat_messages(example.question, instruction, request.system)
    counts.keep(sum(len(message["content"]) for message in messages), answer_kind(example.ground_truth))
    return {
        "data_source": request.reward_source,
        "prompt": messages,
        "ability": request.data_set.ability,
        "reward_model": {"style": "rule", "ground_truth": example.ground_truth},
        "extra_info": {
            "split": request.split,
            "index": counts.kept - 1,
            "id": example.id,
            "question": example.question,
            "meta": compact_json(example.meta),
        },
    }


def _renamed(request: Request, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record with the user's fields under the names that the data set's reader looks for first."""
    renamed = dict(values)
    for chosen, name in ((request.question_field, "problem"), (request.answer_field, "answer")):
        if chosen is not None:
            if values.get(chosen) is None:
                raise RowError(f"no field {chosen}")
            renamed[name] = values[chosen]
    return renamed


def _nothing_usable(request: Request, counts: Counts) -> ArcherError:
    if not counts.read:
        return ArcherError(f"{request.source}: there are no rows.")
    if not counts.invalid:
        conditions = ", ".join(condition.text for condition in request.choice.conditions)
        return ArcherError(
            f"{request.source}: nothing is left of {counts.read:,} rows: --where {conditions or '(none)'} "
            f"does not hold for {counts.not_chosen:,}, --exclude holds out {counts.excluded:,}."
        )
    most = counts.invalid.most_common(FIRST_FEW)
    reasons = "\n".join(f"  {rows:,} rows: {reason}" for reason, rows in most)
    first = next(iter(request.source.records()))
    return ArcherError(
        f"{request.source}: none of the first {counts.read:,} rows is usable as {request.data_set.name}:\n"
        f"{reasons}\nThe fields of the first row are: {', '.join(first.values) or 'none'}. Choose the data "
        "set that fits, or name the fields with --question-field and --answer-field."
    )
