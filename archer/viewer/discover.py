"""Finding runs below a folder, and telling apart those of one name."""

import os
from collections import Counter
from pathlib import Path

from archer.trace.reader import TRACE_FOLDERS, is_trace
from archer.viewer.metricsfile import METRICS

MAX_DEPTH = 5
MAX_RUNS = 1000
MAX_FOLDERS = 20_000
"""Folders that one look goes through."""
SKIPPED = ("checkpoints", "node_modules", "steps", "wandb", "tensorboard")
VALIDATION = "val_trace"


def is_run(folder: Path) -> bool:
    """Whether a folder is a run: it holds traces, or metrics to draw."""
    held = any(is_trace(folder / name) for name in (*TRACE_FOLDERS, VALIDATION))
    return held or (folder / METRICS).is_file()


def find_runs(folder: Path) -> list[Path]:
    """Runs and single traces at or below a folder, by name; links to folders are not followed.

    A run's `val_trace` is a place of its own: the validation samples are not the training responses.
    """
    found: list[Path] = []
    level, seen = [folder], 0
    for _ in range(MAX_DEPTH + 1):
        below: list[Path] = []
        for place in level:
            seen += 1
            if seen > MAX_FOLDERS or len(found) >= MAX_RUNS:
                return sorted(found)
            if is_run(place):
                found += _places(place)
            elif is_trace(place):
                found.append(place)
            else:
                below += _subfolders(place)
        level = below
    return sorted(found)


def _places(run: Path) -> list[Path]:
    """The run itself, and its validation samples."""
    whole = any(is_trace(run / name) for name in TRACE_FOLDERS) or (run / METRICS).is_file()
    validation = [run / VALIDATION] if is_trace(run / VALIDATION) else []
    return [*([run] if whole else []), *validation]


def _subfolders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [
                entry.name
                for entry in entries
                if not entry.name.startswith(".")
                and entry.name not in SKIPPED
                and entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []  # not ours to look into
    return [folder / name for name in sorted(names)]


def unique_names(names: list[str], folders: list[Path]) -> list[str]:
    """Names that differ: where several are the same, as many folders as tell them apart stand before.

    The folder of the run is the first of them, unless the name says it already. Two runs of one folder, which
    no folder tells apart, get a number.
    """
    shown = list(names)
    parents = [_unsaid(name, folder) for name, folder in zip(names, folders, strict=True)]
    for _ in range(MAX_DEPTH + 2):
        # Of one folder given twice no parent tells anything.
        distinct = Counter(name for name, _ in set(zip(shown, folders, strict=True)))
        twice = {name for name, count in distinct.items() if count > 1}
        if not twice:
            break
        for place, name in enumerate(shown):
            if name in twice and parents[place].name:
                shown[place] = f"{parents[place].name}/{name}"
                parents[place] = parents[place].parent
    used: set[str] = set()
    for place, name in enumerate(shown):
        number = 2
        while shown[place] in used:
            shown[place] = f"{name} ({number})"
            number += 1
        used.add(shown[place])
    return shown


def _unsaid(name: str, folder: Path) -> Path:
    """The innermost folder of a run that its name does not hold; a trace's own folder says nothing."""
    place = folder.parent if folder.name in TRACE_FOLDERS else folder
    for part in reversed(name.split("/")):
        if place.name == part:
            place = place.parent
    return place
