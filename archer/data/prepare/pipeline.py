"""Preparing a data set: records in, rows in verl's schema out, with a manifest beside them."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from archer import __version__
from archer.data.answers import answer_kind
from archer.data.checksum import sha256_of
from archer.data.prepare.counts import FIRST_FEW, Counts
from archer.data.prepare.example import DataSet, Example, RowError
from archer.data.prepare.parts import Parts
from archer.data.prepare.prompt import PromptStyle
from archer.data.prepare.records import Record
from archer.data.prepare.schema import answer_key, question_key, to_row
from archer.data.prepare.sources import Source
from archer.errors import ArcherError
from archer.files import write_atomically

PART_RECORDS = 10_000
HOPELESS_AFTER = 1000  # records without a single usable one
OUTPUTS = (".parquet", ".jsonl")

Start = Literal["fresh", "resumed", "restarted", "unchanged"]


@dataclass(frozen=True)
class Request:
    """What is prepared from what, and how."""

    data_set: DataSet
    source: Source
    output: Path
    split: str
    style: PromptStyle = field(default_factory=PromptStyle)
    data_source: str | None = None  # default: the data set's
    question_field: str | None = None
    answer_field: str | None = None
    limit: int | None = None  # use only the first records
    overwrite: bool = False

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
            "style": asdict(self.style),
            "data_source": self.reward_source,
            "question_field": self.question_field,
            "answer_field": self.answer_field,
            "limit": self.limit,
            "archer": __version__,
        }


@dataclass(frozen=True)
class Prepared:
    """What preparing did."""

    output: Path
    manifest: Path
    sha256: str
    counts: Counts
    start: Start


def prepare(
    request: Request, progress: Callable[[float, Counts], None] = lambda done, counts: None
) -> Prepared:
    """Write the output of a request; `progress` is told the share of the source read, and the counts."""
    output = request.output
    if output.suffix not in OUTPUTS:
        raise ArcherError(f"--out {output}: expected a name that ends in {' or '.join(OUTPUTS)}.")
    identity = request.identity()
    parts = Parts(output, identity)
    interrupted = parts.exists()
    if output.exists() and not request.overwrite and not interrupted:
        return _unchanged(request, identity)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArcherError(f"--out {output} cannot be written: {error.strerror}.") from error
    with parts.held():
        return _prepare(request, parts, identity, interrupted, progress)


def _prepare(
    request: Request,
    parts: Parts,
    identity: dict[str, Any],
    interrupted: bool,
    progress: Callable[[float, Counts], None],
) -> Prepared:
    counts = parts.resume()
    start: Start = "resumed" if counts is not None else "restarted" if interrupted else "fresh"
    counts = counts or Counts()
    _convert(request, parts, counts, progress)
    if not counts.kept:
        parts.remove()
        raise _nothing_usable(request, counts)
    parts.finish(request.output)
    checksum = sha256_of(request.output)
    _write_manifest(request, identity, counts, checksum)
    parts.remove()
    return Prepared(request.output, manifest_path(request.output), checksum, counts, start)


def manifest_path(output: Path) -> Path:
    """Where the manifest of an output is."""
    return output.with_name(f"{output.name}.manifest.json")


def _convert(
    request: Request, parts: Parts, counts: Counts, progress: Callable[[float, Counts], None]
) -> None:
    """Read what has not been read yet, part by part."""
    seen = dict(parts.keys())
    rows: list[dict[str, Any]] = []
    done = 0.0
    for record in _from(request, counts.read):
        counts.read += 1
        done = record.done
        row = _row(request, record, counts, seen)
        if row is not None:
            rows.append(row)
        if counts.read % PART_RECORDS == 0:
            parts.add(rows, counts)
            rows = []
            progress(done, counts)
        if counts.read == HOPELESS_AFTER and not counts.kept:
            parts.remove()
            raise _nothing_usable(request, counts)
    if rows:
        parts.add(rows, counts)
    progress(1.0, counts)


def _from(request: Request, skip: int) -> Iterator[Record]:
    for number, record in enumerate(request.source.records()):
        if request.limit is not None and number >= request.limit:
            return
        if number >= skip:
            yield record


def _row(request: Request, record: Record, counts: Counts, seen: dict[str, str]) -> dict[str, Any] | None:
    """The row of a record, or None where it is left out; either way it is counted."""
    try:
        if record.problem is not None:
            raise RowError(record.problem)
        example = request.data_set.convert(_renamed(request, record.values))
        _check_unicode(example)
    except RowError as bad:
        counts.refuse(record.where, bad.reason, bad.detail)
        return None
    key, answer = question_key(example.question), answer_key(example.ground_truth)
    if key in seen:
        counts.duplicates += 1
        counts.conflicts += seen[key] != answer
        return None
    seen[key] = answer
    row = to_row(
        example,
        request.data_set,
        request.style,
        data_source=request.reward_source,
        split=request.split,
        index=counts.kept,
    )
    counts.keep(sum(len(message["content"]) for message in row["prompt"]), answer_kind(example.ground_truth))
    return row | {"question_key": key, "answer_key": answer}


def _check_unicode(example: Example) -> None:
    """Refuse halves of characters, which JSON can hold and files cannot."""
    try:
        f"{example.question}{example.ground_truth}{example.id}{example.meta}".encode()
    except UnicodeEncodeError as error:
        raise RowError("text with half a character (a lone surrogate)") from error


def _renamed(request: Request, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record with the user's fields under the names that the data set's reader looks for first."""
    renamed = dict(values)
    for given, name in ((request.question_field, "problem"), (request.answer_field, "answer")):
        if given is not None:
            if values.get(given) is None:
                raise RowError(f"no field {given}")
            renamed[name] = values[given]
    return renamed


def _nothing_usable(request: Request, counts: Counts) -> ArcherError:
    if not counts.read:
        return ArcherError(f"{request.source}: there are no rows.")
    reasons = "\n".join(
        f"  {rows:,} rows: {reason}" for reason, rows in counts.invalid.most_common(FIRST_FEW)
    )
    first = next(iter(request.source.records()))
    return ArcherError(
        f"{request.source}: none of the first {counts.read:,} rows is usable as {request.data_set.name}:\n"
        f"{reasons}\nThe fields of the first row are: {', '.join(first.values) or 'none'}. Choose the data "
        "set that fits, or name the fields with --question-field and --answer-field."
    )


def _unchanged(request: Request, identity: dict[str, Any]) -> Prepared:
    """Accept an output that this very request made before; refuse any other."""
    manifest = manifest_path(request.output)
    if manifest.is_file():
        stored = json.loads(manifest.read_text(encoding="utf-8"))
        same = stored.get("identity") == identity
        if same and stored.get("sha256") == sha256_of(request.output):
            counts = Counts.from_json(stored["counts"])
            return Prepared(request.output, manifest, stored["sha256"], counts, "unchanged")
    raise ArcherError(
        f"{request.output} exists and was not made from this source with these options. "
        "Choose another --out, or --overwrite to replace it."
    )


def _write_manifest(request: Request, identity: dict[str, Any], counts: Counts, checksum: str) -> None:
    document = {
        "output": request.output.name,
        "sha256": checksum,
        "bytes": request.output.stat().st_size,
        "rows": counts.kept,
        "identity": identity,
        "counts": counts.to_json(),
    }
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    write_atomically(manifest_path(request.output), text)
