"""math-verify, for notation that `expression.py` does not read: sums, integrals, set operations, limits.

math-verify is generous: it drops primes and units, reads "(2)(3)" as the mixed number 5, takes R for r, and
evaluates what was asked to be evaluated. So it is asked only about two texts that use the same unknown
notation and the same letters, and that hold no numerals side by side.

Its own limits are SIGALRM handlers, which fail outside the main thread; they are switched off, and the worker
pool enforces the time. Nothing here is bounded: call it in a worker.
"""

import logging
import re
from functools import cache
from typing import Any

_MAX_CHARS = 400
_KNOWN = re.compile(
    r"\\(?:frac|sqrt|binom|cdot|times|div|pi|sin|cos|tan|ln|log|exp|infty|left|right|alpha|beta|theta)(?![A-Za-z])"
)
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)")
_LETTER = re.compile(r"[A-Za-z]")
_FORBIDDEN = re.compile(r"[0-9)}\]][\s{}()]+[0-9]|\\text|[^\x20-\x7e]|['\"`@#&?:~]")


@cache
def load_math_verify() -> Any:
    """Import math-verify (a third of a second: sympy) and silence its notice that its own limits are off."""
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)
    return math_verify


def equal_by_math_verify(a: str, b: str) -> bool:
    """Tell whether two tidy texts in the same unknown notation are equal. Never raises; may take for ever."""
    notation = _unknown_notation(a)
    if not notation or notation != _unknown_notation(b) or _letters(a) != _letters(b):
        return False
    if max(len(a), len(b)) > _MAX_CHARS or _FORBIDDEN.search(a) or _FORBIDDEN.search(b):
        return False
    library = load_math_verify()
    readings = [_parse(library, text) for text in (a, b)]
    return all(readings) and bool(library.verify(*readings, timeout_seconds=None))


def _unknown_notation(text: str) -> frozenset[str]:
    return frozenset(_COMMAND.findall(_KNOWN.sub("", text)))


def _letters(text: str) -> frozenset[str]:
    return frozenset(_LETTER.findall(_COMMAND.sub("", text)))


def _parse(library: Any, text: str) -> list[Any]:
    # The whole text through the LaTeX reader: the plain reader picks a number out of any prose.
    config = [library.LatexExtractionConfig(boxed_match_priority=0)]
    readings = library.parse(f"\\boxed{{{text}}}", extraction_config=config, parsing_timeout=None)
    return [reading for reading in readings if not isinstance(reading, str)]
