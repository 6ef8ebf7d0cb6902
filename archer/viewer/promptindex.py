"""One prompt through training: the groups that answered it at every step, from an index that grows.

A step is read once and leaves only the figures of its groups; it is read again when its files change. A look
indexes for a bounded time, so that the first answer comes at once and says how many steps are still to come.
"""

import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from archer.errors import ArcherError
from archer.viewer.groups import GroupFigures, group_figures, group_rows
from archer.viewer.prompts import prompt_id, prompt_key, prompt_texts
from archer.viewer.runs import TracedRun
from archer.viewer.steps import StepData, load_step

SECONDS = 0.8
"""How long one look may index."""
MAX_GROUPS = 500_000
"""Groups of all steps of a run that are kept; steps beyond it are not indexed, and the answer says so."""


@dataclass(frozen=True)
class IndexedGroup:
    """A group as the index knows it."""

    group: int
    prompt: str | None  # what it is found by
    key: str | None  # digest of the prompt's text
    figures: GroupFigures


@dataclass(frozen=True)
class IndexedStep:
    """The groups of a step, or why there are none."""

    version: str
    groups: tuple[IndexedGroup, ...]
    problem: str | None = None


class PromptIndex:
    """The index of one run. Methods may be called from several threads."""

    def __init__(self, run: TracedRun) -> None:
        self._run = run
        self._steps: dict[int, IndexedStep] = {}
        self._lock = threading.Lock()

    def look(self, prompt: str, seconds: float = SECONDS) -> dict[str, Any]:
        """The groups of a prompt at all steps indexed so far, and how far that is."""
        with self._lock:
            wanted = [entry.step for entry in self._run.timeline()]
            waiting, full = self._grow(wanted, time.monotonic() + seconds)
            known = [(step, self._steps[step]) for step in wanted if step in self._steps]
        found = [
            {"step": step, "group": group.group, "key": group.key, **asdict(group.figures)}
            for step, indexed in known
            for group in indexed.groups
            if group.prompt == prompt
        ]
        return {
            "prompt": prompt,
            "steps": len(wanted),
            "indexed": len(wanted) - waiting,
            "full": full,
            "problems": {step: indexed.problem for step, indexed in known if indexed.problem},
            "groups": found,
            "text": self._text(found),
        }

    def _grow(self, wanted: list[int], until: float) -> tuple[int, bool]:
        """Index what is new or changed; returns how many steps are left, and whether there is no room."""
        for step in self._steps.keys() - set(wanted):
            del self._steps[step]
        held = sum(len(indexed.groups) for indexed in self._steps.values())
        for place, step in enumerate(wanted):
            known = self._steps.get(step)
            version = self._run.version(step)
            if known is not None and known.version == version:
                continue
            if held >= MAX_GROUPS:
                return len(wanted) - place, True
            if time.monotonic() > until:
                return sum(each not in self._steps for each in wanted[place:]) or 1, False
            self._steps[step] = _indexed(self._run, step, version)
            held += len(self._steps[step].groups) - (len(known.groups) if known else 0)
        return 0, False

    def _text(self, found: list[dict[str, Any]]) -> str | None:
        """The prompt as its newest group has it."""
        for entry in reversed(found):
            try:
                data = load_step(self._run, entry["step"])
                rows = data.rows_of_group(entry["group"])
            except ArcherError:  # written again, or damaged meanwhile: an older one has the same text
                continue
            return prompt_texts(data, [int(rows[0])], self._run.vocab()[0])[0]
        return None


def _indexed(run: TracedRun, step: int, version: str) -> IndexedStep:
    try:
        data = load_step(run, step)
    except ArcherError as error:
        return IndexedStep(version, (), str(error))
    return IndexedStep(version, tuple(_group(run, data, rows) for rows in group_rows(data.groups)))


def _group(run: TracedRun, data: StepData, rows: Any) -> IndexedGroup:
    row = int(rows[0])
    prompt = data.arrays.prompt(row)
    key = None if prompt is None else prompt_key(run.vocab()[0], prompt)
    return IndexedGroup(int(data.groups[row]), prompt_id(data, row, key), key, group_figures(data, rows))
