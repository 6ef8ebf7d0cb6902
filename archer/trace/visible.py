"""Makes untrusted text safe to print: what a terminal would obey or hide becomes a visible sign."""

import unicodedata

_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories: controls, format signs (bidi overrides, zero-width), surrogates, private, unassigned,
separators.
"""


def visible(text: str) -> str:
    """Replace control and format characters: C0 by their Unicode pictures (`␛`), the others by `\\u202e`
    and the like.
    """
    return "".join(_sign(char) if unicodedata.category(char) in _INVISIBLE else char for char in text)


def _sign(char: str) -> str:
    point = ord(char)
    if point < 0x20:
        return chr(0x2400 + point)
    if point == 0x7F:
        return "␡"
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
