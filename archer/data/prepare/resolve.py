"""Which source a user means: a file here, a data set on the hub, or the built-in sums."""

import re
from dataclasses import dataclass
from pathlib import Path

from archer.data.arithmetic_rows import TENTHS, Split
from archer.data.prepare.catalogue import ARITHMETIC
from archer.data.prepare.example import DataSet
from archer.data.prepare.hub import HubRequest, fetch
from archer.data.prepare.records import suffix_of
from archer.data.prepare.sources import ArithmeticSource, FileSource, Source
from archer.errors import ArcherError

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Wanted:
    """What the user gave about the source."""

    data_set: DataSet
    source: str | None
    split: str | None
    config: str | None
    revision: str = "main"
    digits: int = 3
    size: int | None = None


def resolve(wanted: Wanted) -> Source:
    """Return the source, fetched from the hub where that is where it is."""
    if wanted.data_set.name == ARITHMETIC:
        return _arithmetic(wanted)
    if wanted.source is not None:
        path = Path(wanted.source).expanduser()
        if path.is_file():
            return FileSource((path,))
        if path.is_dir():
            raise ArcherError(f"{wanted.source} is a folder; give one file.")
        if suffix_of(path.name) is not None or not _HUB_ID.fullmatch(wanted.source):
            raise ArcherError(
                f"{wanted.source} does not exist. Give a file, or a hub id such as openai/gsm8k; relative "
                f"paths start at {Path.cwd()}."
            )
    return _from_hub(wanted)


def _from_hub(wanted: Wanted) -> FileSource:
    known = wanted.data_set.hub
    if known is None and wanted.source is None:
        raise ArcherError(
            f"{wanted.data_set.name} has no place on the hub that Archer knows: give a file or a hub id."
        )
    own = known is not None and wanted.source in (None, known.repo)
    repo = wanted.source or (known.repo if known else "")
    config = wanted.config or (known.config if own and known else None)
    # The hub's only split may have another name than what it is used for: AIME's is called train.
    only = known.splits[0] if own and known and len(known.splits) == 1 else None
    split = wanted.split if wanted.split and wanted.split != wanted.data_set.split else only
    files = fetch(HubRequest(repo, config, split or wanted.split or wanted.data_set.split, wanted.revision))
    return FileSource(tuple(file.path for file in files), tuple(files))


def _arithmetic(wanted: Wanted) -> ArithmeticSource:
    if wanted.source is not None:
        raise ArcherError("arithmetic makes its own problems: leave the source out.")
    splits: dict[str, Split] = {split: split for split in TENTHS}
    name = wanted.split or wanted.data_set.split
    if name not in splits:
        raise ArcherError(f"arithmetic has no split {name!r}; it has: {', '.join(splits)}.")
    return ArithmeticSource(splits[name], wanted.digits, wanted.size)
