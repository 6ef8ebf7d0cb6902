"""Notes that people keep beside a run: `notes.jsonl`, one JSON object per line, never rewritten.

    {"id": "9f2c...", "time": 1763460000.0, "text": "wrong sign", "step": 40, "group": 13, "response": 111}
    {"id": "9f2c...", "time": 1763460100.0, "deleted": true}

A note is about the run, or about a step, a group, a response or a token of it. Each line is appended with a
single write under a lock, so that several viewers may write the same file.
"""

import fcntl
import json
import os
import secrets
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archer.errors import ArcherError

NOTES = "notes.jsonl"
PLACE = ("step", "group", "response", "token")
MAX_TEXT = 4000  # characters
MAX_FILE = 16 * 2**20
MAX_LINE = 64 * 2**10
MAX_NOTES = 5000
_LARGEST = 10**15


class NotesOffError(ArcherError):
    """Notes cannot be written here; the message says why."""


@dataclass(frozen=True)
class Notebook:
    """The notes of one run."""

    folder: Path
    read_only: bool = False

    @property
    def off(self) -> str | None:
        """Why no note can be written; None where it can."""
        if self.read_only:
            return "This viewer was started with --read-only."
        if not os.access(self.folder, os.W_OK):
            return f"The folder {self.folder} cannot be written to."
        return None

    def to_json(self) -> dict[str, Any]:
        """All notes, oldest first, and whether more can be written."""
        notes, bad_lines = self._read()
        return {"notes": notes, "bad_lines": bad_lines, "off": self.off}

    def add(self, text: str, place: dict[str, int | None]) -> dict[str, Any]:
        """Write a note; returns it as it stands in the file."""
        clean = text.strip()
        if not clean:
            raise ArcherError("a note needs a text.")
        if len(clean) > MAX_TEXT:
            raise ArcherError(f"the note has {len(clean):,} characters, expected at most {MAX_TEXT:,}.")
        if len(self._read()[0]) >= MAX_NOTES:
            raise ArcherError(f"this run has {MAX_NOTES:,} notes, which is the most; delete some first.")
        note: dict[str, Any] = {"id": secrets.token_hex(8), "time": time.time(), "text": clean}
        note |= _place(place)
        self._append(note)
        return note

    def delete(self, note_id: str) -> None:
        """Take a note away."""
        if not any(note["id"] == note_id for note in self._read()[0]):
            raise ArcherError("there is no such note; it may have been deleted meanwhile.")
        self._append({"id": note_id, "time": time.time(), "deleted": True})

    def _append(self, record: dict[str, Any]) -> None:
        if self.off is not None:
            raise NotesOffError(f"{self.off} Notes are off.")
        path = self.folder / NOTES
        line = json.dumps(record, ensure_ascii=True, allow_nan=False).encode() + b"\n"
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            raise NotesOffError(f"{path} cannot be written: {error.strerror}.") from error
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise NotesOffError(f"{path} is no regular file; move it away to keep notes.")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = os.fstat(descriptor).st_size
            if size + len(line) > MAX_FILE:
                raise NotesOffError(f"{path} is full ({MAX_FILE // 2**20} MiB); move it away to keep notes.")
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line  # a line that a kill cut short stays alone
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def _read(self) -> tuple[list[dict[str, Any]], int]:
        """The notes that are not deleted, and the number of lines that are none."""
        notes: dict[str, dict[str, Any]] = {}
        bad = 0
        for raw in self._content().split(b"\n"):
            if not raw.strip():
                continue
            record = _parse(raw)
            if record is None:
                bad += 1
            elif record.get("deleted"):
                notes.pop(record["id"], None)
            elif len(notes) < MAX_NOTES:
                notes[record["id"]] = record
        return list(notes.values()), bad

    def _content(self) -> bytes:
        try:
            descriptor = os.open(self.folder / NOTES, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return b""
        with os.fdopen(descriptor, "rb") as file:
            return file.read(MAX_FILE) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""


def _parse(raw: bytes) -> dict[str, Any] | None:
    """A line as a note or a deletion; what else stands in it is left out. None for anything else."""
    try:
        line = json.loads(raw) if len(raw) <= MAX_LINE else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or not isinstance(line.get("id"), str) or not 0 < len(line["id"]) <= 64:
        return None
    if line.get("deleted") is True:
        return {"id": line["id"], "deleted": True}
    when, text = line.get("time"), line.get("text")
    if not isinstance(text, str) or not isinstance(when, int | float) or not 0 <= when < _LARGEST:
        return None
    return {"id": line["id"], "time": float(when), "text": text[:MAX_TEXT], **_place(line)}


def _place(given: dict[str, Any]) -> dict[str, int]:
    """The place as deep as it goes without a gap: a group without its step says nothing."""
    place: dict[str, int] = {}
    for name in PLACE:
        value = given.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _LARGEST:
            break
        place[name] = value
    return place
