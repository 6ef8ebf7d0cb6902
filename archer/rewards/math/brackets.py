r"""Brackets of LaTeX: `( [ { \{ \langle \lfloor \begin` and theirs, and what stands outside all of them.

An interval may open with one kind and close with another, so only depths are counted here.
"""

import re

MAX_NESTING = 20

_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL)
_OPENING = frozenset(("(", "[", "{", r"\{", r"\langle", r"\lbrace", r"\lfloor", r"\lceil", r"\begin"))
_CLOSING = frozenset((")", "]", "}", r"\}", r"\rangle", r"\rbrace", r"\rfloor", r"\rceil", r"\end"))
OUTWARD = re.compile(r"(?P<left>[\[\]])(?P<inside>[^\[\]]*)(?P<right>[\[\]])")
"""An interval in the notation ]0, 1[, whose brackets open outwards."""


def tokens(text: str) -> list[str]:
    """Return the commands and characters of a text."""
    return _TOKEN.findall(text)


def is_sound(text: str) -> bool:
    """Tell whether all brackets are closed, in order and not nested too deeply to be worth reading."""
    depth = 0
    outward = OUTWARD.fullmatch(text) is not None
    for token in tokens(text):
        depth += (token in _OPENING) - (token in _CLOSING)
        if (depth < 0 and not outward) or depth > MAX_NESTING:
            return False
    return depth == 0


def enclosed(parts: list[str]) -> bool:
    """Tell whether the first bracket is closed by the last token."""
    depth = 0
    for index, token in enumerate(parts):
        depth += (token in _OPENING) - (token in _CLOSING)
        if depth == 0:
            return index == len(parts) - 1
    return False


def split(text: str, separator: re.Pattern[str]) -> list[str]:
    """Split a text at the separators that stand outside all brackets."""
    pieces, start = [], 0
    for match in top_level_matches(text, separator):
        pieces.append(text[start : match.start()])
        start = match.end()
    return [*pieces, text[start:]]


def top_level_matches(text: str, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    """Return a pattern's matches outside all brackets."""
    if not pattern.search(text):
        return []
    depths, depth = [0] * (len(text) + 1), 0
    for token in _TOKEN.finditer(text):
        depths[token.start()] = depth
        depth += (token[0] in _OPENING) - (token[0] in _CLOSING)
    return [match for match in pattern.finditer(text) if depths[match.start()] == 0]
