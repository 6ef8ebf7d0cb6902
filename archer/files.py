"""Writing files so that a kill at any instant leaves the old content or the new, never half of it; locks."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, BinaryIO

from archer.errors import ArcherError

TEMPORARY_SUFFIX = ".tmp"


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text`, on disk before this returns."""
    replace_atomically(path, lambda file: file.write(text.encode()), fsync=True)


def replace_atomically(path: Path, fill: Callable[[BinaryIO], object], *, fsync: bool) -> int:
    """Write a file under a hidden temporary name in its folder, rename it into place, return its size.

    With `fsync` content and name are on disk before this returns, so that even a power cut leaves the old
    file or the new one; without it that holds for a killed process only.
    """
    temporary = path.with_name(f".{path.name}{TEMPORARY_SUFFIX}")
    with temporary.open("wb") as file:
        fill(file)
        file.flush()
        size = file.tell()
        if fsync:
            os.fsync(file.fileno())
    temporary.replace(path)
    if fsync:
        sync_folder(path.parent)
    return size


def sync_folder(folder: Path) -> None:
    """Make renames and new files of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Make every file below `folder` durable."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    sync_folder(folder)


def remove_tree(folder: Path) -> None:
    """Delete a folder so that a kill half-way leaves only a hidden remainder."""
    hidden = folder.with_name(f".removing-{folder.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    if folder.exists():
        folder.rename(hidden)
        shutil.rmtree(hidden)


def lock(path: Path, refusal: str) -> IO[str]:
    """Hold a lock file while the returned file is open; another holder is an error that says `refusal`.

    The kernel lets go of it when the process ends, however it ends.
    """
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ArcherError(refusal) from None
    return file
