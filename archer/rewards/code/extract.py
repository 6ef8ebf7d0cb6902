"""Finding the program in a response: its last fenced block of Python.

One pass over the lines, so no text can make extraction slow.
"""

import re
import textwrap
from dataclasses import dataclass

from archer.rewards.boxed import final_part

_FENCE = re.compile(r"[ \t]*(?P<marks>`{3,}+|~{3,}+)[ \t]*(?P<language>[\w+#.-]*)(?P<rest>[^`\n]*)$")
_PYTHON = {"python", "python3", "py", "py3", "python-3"}


@dataclass(frozen=True)
class _Block:
    language: str
    text: str
    closed: bool


def extract_program(response: str) -> str | None:
    """Return the last Python program of a response, or None if it gives none.

    Thinking does not count: nothing before the last `</think>`, nothing after a `<think>` that stays open.
    A block marked as Python is preferred to one without a mark. When the last block is never closed, the
    response was cut off while it wrote its program, and an earlier one is not what it meant to say.
    """
    blocks = _blocks(final_part(response))
    marked = [block for block in blocks if block.language.lower() in _PYTHON]
    candidates = marked or [block for block in blocks if not block.language]
    if not candidates or not candidates[-1].closed or not candidates[-1].text.strip():
        return None
    return textwrap.dedent(candidates[-1].text)


def _blocks(text: str) -> list[_Block]:
    blocks: list[_Block] = []
    opening: re.Match[str] | None = None
    lines: list[str] = []
    for line in text.split("\n"):
        fence = _FENCE.match(line)
        if opening is None:
            if fence:
                opening, lines = fence, []
        elif fence and _closes(fence, opening):
            blocks.append(_Block(opening["language"], "\n".join(lines) + "\n", closed=True))
            opening = None
        else:
            lines.append(line)
    if opening is not None:
        blocks.append(_Block(opening["language"], "\n".join(lines), closed=False))
    return blocks


def _closes(fence: re.Match[str], opening: re.Match[str]) -> bool:
    return fence["marks"].startswith(opening["marks"]) and not (fence["language"] or fence["rest"].strip())
