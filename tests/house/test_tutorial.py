"""docs/tutorial.md: every command runs as it stands there, and prints what is shown below it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
LEFT_OUT = "..."
PORT = "7862"

pytestmark = pytest.mark.slow


def examples(text: str) -> Iterator[tuple[str, list[str]]]:
    """(command, the lines shown below it) of the page, in order; a paragraph at the margin ends them."""
    lines = iter(re.sub(r"\n\n(?=    [^$ ])|\n\n(?=     )", "\n    \n", text).splitlines())
    shown: list[str] = []
    command = ""
    for line in lines:
        if line.startswith("    $ ") or not line.startswith("    "):
            if command:
                yield command, shown
            command, shown = line[6:] if line.startswith("    $ ") else "", []
        elif command:
            shown.append(line[4:])
    if command:
        yield command, shown


def fits(shown: list[str], printed: str) -> bool:
    """Whether the output is what is shown; `...` is any text in a line, alone in a line any lines."""
    pattern = ""
    for line in shown:
        if line.strip() == LEFT_OUT:
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(map(re.escape, line.rstrip().split(LEFT_OUT))) + r"[ ]*\n"
    text = "\n".join(printed.splitlines()) + "\n"
    return re.fullmatch(pattern + (r"\s*" if shown[-1:] != [LEFT_OUT] else r"(?:.*\n)*"), text) is not None


class Shell:
    """A shell in an empty folder that knows `archer` and `python`, and keeps variables."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.variables = folder, ""
        tools = folder / "tools"
        tools.mkdir()
        for name, arguments in (("python", ""), ("archer", "-m archer")):
            tool = tools / name
            tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
            tool.chmod(0o755)
        self.environment = os.environ | {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "80",
        }

    def start(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", f"{self.variables}exec {command}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str) -> tuple[str, int]:
        if re.match(r"\w+=", command):
            self.variables += f"{command}\n"
            return "", 0
        if command.startswith("archer view"):
            return self.serve(command), 0
        process = self.start(command)
        return process.communicate(timeout=300)[0], process.returncode

    def serve(self, command: str) -> str:
        """What a server says before it waits; on a free port, shown as the usual one."""
        process = self.start(f"{command} --port 0")
        try:
            assert process.stdout is not None
            said = list(takewhile(lambda line: "Ctrl-C" not in line, process.stdout))
        finally:
            process.terminate()
            process.wait(20)
        return re.sub(r"(127\.0\.0\.1:)\d+", rf"\g<1>{PORT}", "".join(said))


def test_what_is_left_out_is_any_text_and_the_rest_is_exact():
    assert fits(["a", "...", "c ... d"], "a\nb\nb\nc 1 d\n")
    assert fits(["...", "b", "..."], "a\nb\nc\n")
    assert not fits(["a", "b"], "a\nc\n")
    assert not fits(["a"], "a\nb\n")
    assert list(examples("x\n\n    $ one\n    1\n\n    2\n\ny\n\n    $ two\n\n    $ three\n    3\n")) == [
        ("one", ["1", "", "2"]),
        ("two", []),
        ("three", ["3"]),
    ]


def test_every_command_prints_what_the_page_shows(tmp_path):
    shell = Shell(tmp_path)
    found = list(examples(PAGE.read_text()))
    assert len(found) >= 8
    for command, shown in found:
        printed, status = shell.run(command)
        broken = command.startswith("archer diagnose output/")
        assert status == (1 if broken else 0), f"$ {command}\n{printed}"
        assert fits(shown, printed), f"$ {command}\nprints\n{printed}\nand the page shows\n" + "\n".join(
            shown
        )
