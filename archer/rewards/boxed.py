r"""Finding the final answer in a response: `\boxed{...}`, or the last number as an option.

Every scan is linear in the length of the response, so no text can make extraction slow.
"""

import re

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])[ \t]*")
_BARE_BOX_END = re.compile(r"[\s$]|\\[)\]]")
_LAST_NUMBER = re.compile(
    r"""(?:(?<![\w)\]}.])-)?    # a minus is a sign unless something stands before it to subtract from
        (?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)
        (?:[eE][+-]?[0-9]+)?
        (?:/[0-9]+)?
        (?:[ ]?\\?%)?""",
    re.VERBOSE,
)

_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"


def final_part(response: str) -> str:
    """Return the part of a response that may hold its answer: none of it is thinking.

    After a `</think>` only what follows the last one counts (chat templates often open the block in the
    prompt, so the response may hold the closing tag alone). From a `<think>` that is never closed, nothing
    counts.
    """
    close = response.rfind(_THINK_CLOSE)
    part = response if close < 0 else response[close + len(_THINK_CLOSE) :]
    return part.partition(_THINK_OPEN)[0]


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` or `\fbox{...}`, or of a bare `\boxed 3`.

    Braces are matched, and escaped ones (`\{`) are not counted. A last box that is never closed gives None:
    the response was cut off while it wrote its answer, and an earlier box is not what it meant to say.
    """
    start = None
    for match in _BOX.finditer(text):
        start = match.end()
    if start is None or start == len(text):
        return None
    if text[start] != "{":
        end = _BARE_BOX_END.search(text, start)
        return text[start : end.start() if end else len(text)].rstrip(".,;") or None
    end_brace = closing_brace(text, start)
    return None if end_brace is None else text[start + 1 : end_brace].strip()


def closing_brace(text: str, opening: int) -> int | None:
    """Return the index of the brace that closes the one at `opening`, or None if it stays open."""
    depth, position = 0, opening
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 1  # the next character is escaped, or is the first letter of a command
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    return None


def last_number(text: str) -> str | None:
    """Return the last number in the text (`-3`, `1,234`, `0.5`, `3/4`, `50%`), or None."""
    found = None
    for match in _LAST_NUMBER.finditer(text):
        found = match.group()
    return found


def extract_answer(response: str, last_number_fallback: bool) -> str | None:
    """Return the response's final answer, or None if it gives none.

    `last_number_fallback` takes the last number of a response that has no box at all; a response whose last
    box is cut off gives no answer either way.
    """
    part = final_part(response)
    if _BOX.search(part):
        return last_boxed(part)
    return last_number(part) if last_number_fallback else None
