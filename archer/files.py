"""Writing files so that a kill at any instant leaves the old content or the new, never half of it; locks.

Everything that replaces or appends to a file goes through here, and so never replaces a device, a pipe or a
folder, nor waits for ever for the other end of one.
"""

import fcntl
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import IO, BinaryIO

from archer.errors import ArcherError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}
PRIVATE = 0o600  # mode of files that only their owner may read
TEMPORARY_SUFFIX = ".tmp"


def real_path(path: Path) -> Path:
    """Return where a path leads through links; a loop of links stays as it is: there is nothing there."""
    return Path(os.path.realpath(path))


def plain_file(path: Path) -> Path:
    """Return where writing to `path` ends up, through links; refuse what is there but is no regular file."""
    try:
        target = path.resolve()
        mode = target.stat().st_mode
    except FileNotFoundError:
        return target
    except (OSError, RuntimeError) as error:  # a loop of links, a folder that may not be looked into
        raise ArcherError(f"{path} cannot be written: {error}. Choose another name.") from error
    if not stat.S_ISREG(mode):
        link = f" (a link to {target})" if path.is_symlink() else ""
        raise ArcherError(
            f"{path}{link} is {_KINDS.get(stat.S_IFMT(mode), 'no regular file')}, which is never replaced. "
            "Choose the name of a file."
        )
    return target


def replace_atomically(
    path: Path, fill: Callable[[BinaryIO], object], *, fsync: bool, mode: int | None = None
) -> int:
    """Write a file under a hidden temporary name in its folder, rename it into place, return its size.

    With `fsync` content and name are on disk before this returns, so that even a power cut leaves the old
    file or the new one; without it that holds for a killed process only. `mode` is exact; without it the
    file is as readable as the process makes its files.
    """
    target = plain_file(path)
    temporary = target.with_name(f".{target.name}{TEMPORARY_SUFFIX}")
    temporary.unlink(missing_ok=True)  # of a killed process, or a link that somebody put there
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
    with os.fdopen(descriptor, "wb") as file:
        fill(file)
        file.flush()
        size = file.tell()
        if fsync:
            os.fsync(file.fileno())
    temporary.replace(target)
    if fsync:
        sync_folder(target.parent)
    return size


def write_atomically(path: Path, text: str, mode: int | None = None) -> None:
    """Replace `path` by `text`, durably."""
    content = text.encode()
    replace_atomically(path, lambda file: file.write(content), fsync=True, mode=mode)


def put_in_place(temporary: Path, path: Path) -> None:
    """Rename a finished file to the name it was made for, durably."""
    temporary.replace(plain_file(path))
    sync_folder(path.parent)


def append_to(path: Path) -> IO[str]:
    """Open a text file to append to."""
    return plain_file(path).open("a", encoding="utf-8")


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
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ArcherError(f"{folder} is no folder, so it is not removed. Move it away and try again.")
    if folder.exists():
        folder.rename(hidden)
        shutil.rmtree(hidden)


def lock(path: Path, refusal: str) -> IO[str]:
    """Hold a lock file while the returned file is open; another holder is an error that says `refusal`.

    The kernel lets go of it when the process ends, however it ends.
    """
    file = plain_file(path).open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ArcherError(refusal) from None
    return file
