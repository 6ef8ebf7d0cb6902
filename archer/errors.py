"""What a user is told: the one error type meant to be read, install hints, text made safe to print."""

import unicodedata
from pathlib import Path

_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories: controls, format signs (bidi overrides, zero-width), surrogates, private, unassigned,
separators.
"""


class ArcherError(Exception):
    """A problem the user can fix: says what was wrong, what was expected and what to do.

    The command line prints the message without a traceback and exits with code 2.
    """


def install_hint(extra: str, checkout: Path = Path(__file__).parents[1]) -> str:
    """Return the command that adds an extra; in a checkout, held to the versions Archer is tested with."""
    if not (checkout / "pyproject.toml").is_file():
        return f'pip install "archer-rl[{extra}]"'
    versions = "constraints-gpu.txt" if extra == "gpu" else "constraints.txt"
    return f'pip install -c {versions} -e ".[{extra}]" in Archer\'s checkout'


def visible(text: str) -> str:
    """Make untrusted text safe to print: what a terminal would obey or hide becomes a visible sign.

    C0 controls become their Unicode pictures (`␛`), other controls and format signs `\\u202e` and the like.
    """
    return "".join(_sign(char) if unicodedata.category(char) in _INVISIBLE else char for char in text)


_HIDDEN: dict[str, str] = {}
SHORTEST_SECRET = 4


def hide(value: str, written: str) -> None:
    """Note a value that came out of the environment: `masked` shows how it was written instead."""
    if len(value) >= SHORTEST_SECRET:
        _HIDDEN[value] = written


def masked(text: str) -> str:
    """Return a text without the values that `hide` was told of: they may be keys or passwords."""
    for value in sorted(_HIDDEN, key=len, reverse=True):
        text = text.replace(value, _HIDDEN[value])
    return text


def _sign(char: str) -> str:
    point = ord(char)
    if point < 0x20:
        return chr(0x2400 + point)
    if point == 0x7F:
        return "␡"
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
