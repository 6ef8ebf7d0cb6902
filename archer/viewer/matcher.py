"""Regular expressions of a user, in a process of their own that reads questions and writes answers.

An expression can take for ever, or all memory, on the wrong text. So the viewer runs none itself, and ends
this process when it takes too long. It needs the standard library only and starts fast. A question is a line
of JSON {pattern, ignore_case, texts, most}, the answer {found: [[start, end, ...], ...]} or {error}. Matches
without a character are left out.
"""

import json
import re
import sys
from typing import Any

MAX_MEMORY = 2 * 2**30
MAX_SECONDS = 600  # of processor time: an orphan ends by itself


def spans(pattern: re.Pattern[str], text: str, most: int) -> list[int]:
    """Start and end of every match one after the other, at most `most` matches."""
    edges: list[int] = []
    for match in pattern.finditer(text):
        if match.end() > match.start():
            edges += match.span()
            if len(edges) >= 2 * most:
                break
    return edges


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Find one expression in some texts."""
    try:
        pattern = re.compile(question["pattern"], re.IGNORECASE if question["ignore_case"] else 0)
        return {"found": [spans(pattern, text, question["most"]) for text in question["texts"]]}
    except re.error as error:
        return {"error": f"This is not a regular expression: {error}."}
    except (RecursionError, OverflowError, MemoryError):
        return {"error": "This expression is too large; make it shorter."}


def main() -> None:
    """Answer until the questions end."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
    except (ImportError, ValueError, OSError):  # not every system has limits; the viewer's clock still holds
        pass
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
