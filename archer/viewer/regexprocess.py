"""Holds the process that runs a user's regular expressions, and ends it when one takes too long."""

import json
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from archer.errors import ArcherError
from archer.viewer import matcher

SECONDS = 2.0
"""How long an expression may take on the responses of one step."""
STARTUP = 20.0


class RegexError(ArcherError):
    """An expression that cannot be read, or that takes too long; the message says which."""


class RegexProcess:
    """One question at a time; the process starts with the first and lives until `close` or a slow one."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()

    def find(self, pattern: str, texts: list[str], *, ignore_case: bool, most: int) -> list[list[int]]:
        """For every text the edges of its matches, as `matcher.spans` gives them."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            question = {"pattern": pattern, "ignore_case": ignore_case, "texts": texts, "most": most}
            told = self._ask(question, self._seconds)
        if told is None:
            raise RegexError(
                f"This expression takes longer than {self._seconds:g} s on the responses of one step, "
                "or too much memory. Make it simpler, for example without a repetition inside a repetition."
            )
        if "error" in told:
            raise RegexError(told["error"])
        return told["found"]

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with suppress(OSError):  # what was still to be sent has nobody to read it
                        pipe.close()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        self.close()
        command = [sys.executable, "-I", "-X", "utf8", str(Path(matcher.__file__))]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(
            command, **pipes, stderr=subprocess.DEVNULL, text=True, encoding="utf-8"
        )
        self._answers = queue.Queue()
        threading.Thread(target=_listen, args=(self._process, self._answers), daemon=True).start()
        if self._ask({"pattern": "a", "ignore_case": False, "texts": [], "most": 1}, STARTUP) is None:
            raise ArcherError("the process that runs regular expressions did not start; plain search works.")

    def _ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        """The answer; None, and no process any more, where none came in time."""
        assert self._process is not None and self._process.stdin is not None
        sender = threading.Thread(target=_send, args=(self._process.stdin, question), daemon=True)
        sender.start()  # in a thread: a pipe is full while the other side is busy
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            line = ""
        if not line:
            self.close()
            return None
        sender.join()
        return json.loads(line)


def _send(pipe: Any, question: dict[str, Any]) -> None:
    try:
        pipe.write(json.dumps(question) + "\n")
        pipe.flush()
    except (OSError, ValueError):  # ended meanwhile; whoever waits is told by the empty answer
        pass


def _listen(process: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
    assert process.stdout is not None
    try:
        for line in process.stdout:
            answers.put(line)
    except (OSError, ValueError):
        pass
    answers.put("")
