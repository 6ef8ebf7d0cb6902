"""Answers to a question with choices: a letter (`C`, `(C).`, `Option C`), perhaps with its value."""

import re

from archer.rewards.math.text import squash

_SAID = r"(?:the\s+)?(?:correct\s+)?(?:option|choice|answer)(?:\s+is)?"
_WORD = re.compile(
    rf"""(?:\\text\s*\{{\s*{_SAID}\s*:?\s*\}}\s*                        # \text{{Option }} (A)
        |(?P<text>\\text\s*\{{\s*)?{_SAID}(?:\s*:\s*|\s+|(?=\()))       # \text{{Option (A)}}
        (?=(?:\\text\s*\{{\s*)?\(?(?-i:[A-J])(?![A-Za-z0-9_^=+*/(-]))""",
    re.VERBOSE | re.IGNORECASE,
)
_LABEL = re.compile(
    r"""(?:\\text\s*\{\s*\(?(?P<text>[A-J])[).:]+\s*\}\s*   # \textbf{(B)} 142
        |\{?\((?P<bracket>[A-J])\)\}?(?:[:.]?\s+|(?=[0-9]))  # (B) 142, (B)142
        |(?P<bare>[A-J])[.):]\s+)                          # B. 142
        (?=[^\s=+*/^,;_!<>&|)\]}-]|-[0-9\\])""",
    re.VERBOSE,
)
_LABELS = re.compile(r"\(?(?<![A-Za-z])[A-J](?:\)|[.:] )")
_SEVERAL = re.compile(r"\(?[A-J]\)?(?:(?:\s*[,;]\s*(?:and\s+)?|\s+and\s+)\(?[A-J]\)?)+\.?")
_LETTER_ALONE = re.compile(r"\(?(?:\\text\{)?\(?([A-J])\)?\.?\}?\)?\.?")


def without_word(text: str) -> str:
    """Return a tidy text without the word before the letter of a choice: `Option (A)` as `(A)`."""
    return _WORD.sub(lambda match: match["text"] or "", text, count=1) if _WORD.match(text) else text


def split_choice(text: str) -> tuple[str, str]:
    r"""Split `\textbf{(B)}\ 142` into the letter of a choice and its value; without both, it is all value."""
    label = _LABEL.match(text)
    if label is None or len(_LABELS.findall(text)) > 1:
        return "", text
    return (label["text"] or label["bracket"] or label["bare"]), text[label.end() :].strip()


def letter_alone(text: str) -> str | None:
    """Return the letter of a text that is the letter of a choice and nothing else."""
    letter = _LETTER_ALONE.fullmatch(squash(text))
    return letter and letter[1]


def chosen_letters(text: str) -> frozenset[str] | None:
    r"""Return the letters of several choices: `A, C`, `(A) and (C)`, `\text{A, C}`; else None."""
    plain = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text).strip()
    return frozenset(re.findall("[A-J]", plain)) if _SEVERAL.fullmatch(plain) else None


def run_together(text: str) -> frozenset[str] | None:
    """Return the letters of `ACD`, each other than the one before."""
    letters = re.fullmatch(r"(?:\\text\s*\{\s*)?\(?([A-J]{2,10})\)?(?:\s*\})?", text)
    return frozenset(letters[1]) if letters and len(set(letters[1])) == len(letters[1]) else None
