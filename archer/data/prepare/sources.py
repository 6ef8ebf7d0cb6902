"""Where records come from: files, the hub, or the built-in sums; and which of them a user means."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from archer.data.builtin import TENTHS, Split, arithmetic_rows
from archer.data.files import Row, read_source, sha256_of, source_suffix
from archer.data.prepare.catalogue import ARITHMETIC, DataSet
from archer.data.prepare.hub import HubRequest, fetch
from archer.errors import ArcherError

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class FileSource:
    """One or several files, in order."""

    files: tuple[Path, ...]
    origin: Mapping[Path, Mapping[str, str]] = field(default_factory=dict)
    """Of each: repo, commit and file on the hub."""

    def __str__(self) -> str:
        if self.origin:
            first, *_ = origins = list(self.origin.values())
            return f"{first['repo']} ({', '.join(origin['file'] for origin in origins)})"
        return ", ".join(map(str, self.files))

    def records(self) -> Iterator[Row]:
        """Yield the records of all files; places are named by the file, too."""
        for number, path in enumerate(self.files):
            for record in read_source(path):
                done = (number + record.done) / len(self.files)
                yield replace(record, where=f"{path.name}, {record.where}", done=done)

    def identity(self) -> Any:
        """Names, sizes and checksums of the files, and where on the hub they are from."""
        return [
            {"file": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
            | dict(self.origin.get(path, {}))
            for path in self.files
        ]


@dataclass(frozen=True)
class ArithmeticSource:
    """The built-in sums as records with a question and an answer."""

    split: Split
    digits: int
    size: int | None

    def __str__(self) -> str:
        return f"builtin:arithmetic/{self.split}"

    def records(self) -> Iterator[Row]:
        """Yield the problems, always the same ones in the same order."""
        rows = arithmetic_rows(self.split, digits=self.digits, size=self.size)
        for number, row in enumerate(rows, start=1):
            question, answer = row["prompt"][0]["content"], row["reward_model"]["ground_truth"]
            values = {"problem": question, "answer": answer, **row["extra_info"]}
            yield Row(f"row {number}", values, done=number / len(rows))

    def identity(self) -> Any:
        """What fixes the problems."""
        return {"builtin": str(self), "digits": self.digits, "size": self.size}


Source = FileSource | ArithmeticSource
"""Records, and what they are: the same identity gives the same records in the same order."""


def resolve(
    data_set: DataSet,
    source: str | None,
    split: str | None = None,
    config: str | None = None,
    revision: str = "main",
    digits: int = 3,
    size: int | None = None,
) -> Source:
    """Return the source that a user means, fetched from the hub where that is where it is."""
    if data_set.name == ARITHMETIC:
        if source is not None:
            raise ArcherError("arithmetic makes its own problems: leave the source out.")
        name: Any = split or data_set.split
        if name not in TENTHS:
            raise ArcherError(f"arithmetic has no split {name!r}; it has: {', '.join(TENTHS)}.")
        return ArithmeticSource(name, digits, size)
    if source is not None:
        path = Path(source).expanduser()
        if path.is_file():
            return FileSource((path,))
        if path.is_dir():
            raise ArcherError(f"{source} is a folder; give one file.")
        if source_suffix(path.name) is not None or not _HUB_ID.fullmatch(source):
            raise ArcherError(
                f"{source} does not exist. Give a file, or a hub id such as openai/gsm8k; relative paths "
                f"start at {Path.cwd()}."
            )
    files = fetch(hub_request(data_set, source, split, config, revision))
    return FileSource(tuple(files), files)


def hub_request(
    data_set: DataSet, source: str | None, split: str | None, config: str | None, revision: str
) -> HubRequest:
    """What is asked of the hub; what the user left out is filled in from the data set's own place there."""
    known = data_set.hub if data_set.hub is not None and source in (None, data_set.hub.repo) else None
    repo = source or (known.repo if known else "")
    if not repo:
        raise ArcherError(
            f"{data_set.name} has no place on the hub that Archer knows: give a file or a hub id."
        )
    wanted = split or data_set.split
    # The hub's only split may have another name than what it is used for: AIME's is called train.
    if known and len(known.splits) == 1 and wanted == data_set.split:
        wanted = known.splits[0]
    return HubRequest(repo, config or (known.config if known else None), wanted, revision)
