"""File operations that survive a kill at any instant, and paths that never leave the trace folder."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from archer.errors import ArcherError
from archer.files import sync_folder

STEPS_FOLDER = "steps"
MANIFEST = "manifest.jsonl"
SUMMARY = "summary.json"
LATEST = "latest_step.txt"
VOCAB = "vocab.npz"
TEMPORARY_SUFFIX = ".tmp"


def step_file_name(step: int) -> str:
    """`step_000001.npz`; more digits when a step needs them."""
    return f"step_{step:06d}.npz"


def step_of_file_name(name: str) -> int | None:
    """The step of a step file's name, or None when `name` is not exactly what the writer would use."""
    digits = name.removeprefix("step_").removesuffix(".npz")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 15:
        return None
    step = int(digits)
    return step if name == step_file_name(step) else None


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


def leftover_temporaries(folder: Path) -> list[Path]:
    """Temporary files in a trace folder: a writer at work, or one that was killed."""
    found: list[Path] = []
    for place in (folder, folder / STEPS_FOLDER):
        if place.is_dir():
            found += sorted(place.glob(f".*{TEMPORARY_SUFFIX}"))
    return found


def regular_file_inside(folder: Path, relative: str) -> Path | None:
    """A file of the trace, None when it is not there.

    A trace is data from strangers: links that lead out of the folder, and things that are not plain files
    (opening a pipe would wait for ever), are refused.
    """
    path = folder / relative
    resolved = path.resolve()
    if not resolved.is_relative_to(folder.resolve()):
        raise ArcherError(
            f"{relative} is a link that leads out of the trace folder {folder}; it is not followed."
        )
    if not resolved.exists():
        return None
    if not stat.S_ISREG(resolved.stat().st_mode):
        raise ArcherError(f"{relative} in {folder} is not a regular file.")
    return resolved
