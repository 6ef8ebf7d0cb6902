"""Writing files so that a kill at any instant leaves the old content or the new, never half of it; locks."""

import fcntl
import os
import shutil
from pathlib import Path
from typing import IO

from archer.errors import ArcherError


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text`: written to a hidden neighbour, synced, renamed."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


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
