r"""What a response says in the end: its final answer, or its program.

An answer is a `\boxed{...}`, a phrase that marks it, perhaps the last number; a program is the last fenced
block of Python. Every scan is linear in the length of the response, so no text can make extraction slow.
"""

import re
import textwrap
from collections import deque
from collections.abc import Iterator

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

_GAP = r"(?:[\s$]|\\[()\[\],; ]|\\q?quad(?![A-Za-z])|&|\\\\)*"
_NAMED = r"(?P<name>\\?[A-Za-z]+(?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9]{1,4}\}))?)\s*&?=\s*&?\s*"
_BETWEEN_BOXES = re.compile(
    rf"{_GAP}(?P<separator>[,;]?\s*(?:(?:and|or)(?![A-Za-z])|\\text\{{\s*,?\s*(?:and|or)\s*\}})|[,;])?{_GAP}(?:{_NAMED})?"
)
_NAME_BEFORE_BOX = re.compile(rf"(?<![A-Za-z\\0-9+*/^_-]){_NAMED}$")
_MAX_BETWEEN, _MAX_BOXES, _MAX_NAME = 60, 50, 24
_MODAL = (
    r"(?:would|will|should|must|has[ ]to|turns[ ]out[ ]to)(?:[ ](?:then|thus|therefore|simply|just))?[ ]be"
)
_MARK = re.compile(
    rf"""^[ \t]*\#{{4}}(?!\#|[ \t]*(?:the[ ]|final[ ])*answer)      # GSM8K's mark
        |<answer>
        |(?P<heading>^[ \t*_#]*(?:the[ ]|my[ ])?(?:final[ ]|correct[ ])?answer[ \t*_:]*$)
        |\b(?:answer|(?:correct|right)[ ](?:option|choice))(?:\s+(?:to|of|for)\s[^.:=\n]{{0,80}}?)?
         [\s*_]{{0,5}}(?::|=|\bis\b)[\s*_]{{0,5}}:?                # the (final) answer (to the question) is
        |\b(?:answer[ ](?:{_MODAL}|equals|was)|answers[ ]are)\b[\s*_]{{0,5}}:?[\s*_]{{0,5}}
         (?=[0-9$\\(\[.-]|[a-z][ ]?=|(?-i:[A-J])[.]?(?:\s|$))            # the answer would be 5
        |(?:\b(?:thus|so|hence|therefore|choose|pick|select)|^)[,:]?[ ](?:the[ ])?answer[ ]
         (?=\(?(?-i:[A-J])\)?[.!]?[ \t*]*$)                       # Thus, answer C.""",
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
_REMARK = re.compile(  # what is said of an answer that was given before
    r"(?:(?:given|expressed|measured|written|stated)[ ])?in[ ][a-z ]{1,30}$"
    r"|(?:correct|verified|confirmed|consistent|reasonable|rounded)\b",
    re.IGNORECASE,
)
_IN_UNITS = re.compile(
    r"(?:(?:given|expressed|measured|written)[ ])?in[ ][A-Za-z /^0-9]{1,30}:[ ]*", re.IGNORECASE
)
_MAX_MARKS = 4
_ADVERB = re.compile(
    r"(?:(?:therefore|thus|hence|then|simply|just|indeed|exactly|equal to|given by|"
    r"(?:the )?(?:option|choice))\b[\s,:]*)+",
    re.IGNORECASE,
)
_CLAUSE = re.compile(
    r"(?:[,;]\s+(?!(?:and|or)\b|(?:sqrt|pi|sin|cos|tan|ln|log)\b)|\s+(?=(?:because|since|which|as|so|where)\b)"
    r"|\s+\((?!(?:and|or|mod|modulo|base|sqrt|pi|sin|cos|tan|ln|log)\b))(?=[a-z]{2,}\b)"
)
_MAX_HEADED_WORDS, _MAX_EXPLAINED = 4, 1000
_DISPLAYS = (("$$", "$$"), ("\\[", "\\]"))
_SENTENCE_END = re.compile(  # after a numeral or a bracket "!" is a factorial
    r"\n|[.?](?=[\s*]|$)|(?:(?<=[$*])|(?<=\\\))|(?<=[a-z]{3}))!(?=[\s*]|$)|</answer>"
)
_EMPHASIS = "*_` \t\n"

_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_FENCE = re.compile(r"[ \t]*(?P<marks>`{3,}+|~{3,}+)[ \t]*(?P<language>[\w+#.-]*)(?P<rest>[^`\n]*)$")
_PYTHON = {"python", "python3", "py", "py3", "python-3"}


def final_part(response: str) -> str:
    """Return the part of a response that may hold its answer: none of it is thinking.

    After a `</think>` only what follows the last one counts (chat templates often open the block in the
    prompt, so the response may hold the closing tag alone). From a `<think>` that is never closed, nothing
    counts.
    """
    close = response.rfind(_THINK_CLOSE)
    part = response if close < 0 else response[close + len(_THINK_CLOSE) :]
    return part.partition(_THINK_OPEN)[0]


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    matches = deque(pattern.finditer(text), maxlen=1)
    return matches[0] if matches else None


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` or `\fbox{...}`, or of a bare `\boxed 3`.

    Braces are matched, and escaped ones (`\{`) are not counted. A last box that is never closed gives None:
    the response was cut off while it wrote its answer, and an earlier box is not what it meant to say.
    """
    box = _last(_BOX, text)
    if box is None or box.end() == len(text):
        return None
    start = box.end()
    if text[start] != "{":
        end = _BARE_BOX_END.search(text, start)
        return text[start : end.start() if end else len(text)].rstrip(".,;") or None
    end_brace = closing_brace(text, start)
    return None if end_brace is None else text[start + 1 : end_brace].strip()


def boxed_answer(text: str) -> str | None:
    r"""Return the last box, or the last few as one list if they answer together.

    They do if nothing but commas, "and" or "or" joins them, or if each gives a value to another name:
    `x = \boxed{2}` and `y = \boxed{3}`, also on lines of their own. Two answers are right where two are asked
    for, and wrong where one is.
    """
    boxes = [(match.start(), match.end()) for match in _BOX.finditer(text)]
    last = last_boxed(text)
    if last is None:
        return None
    contents, names, alternatives, start = [last], [""], False, boxes[-1][0]
    for box_start, content_start in boxes[-2 : -1 - _MAX_BOXES : -1]:
        end = closing_brace(text, content_start) if text[content_start] == "{" else None
        if end is None or not 0 < start - end <= _MAX_BETWEEN:
            break
        between = _BETWEEN_BOXES.fullmatch(text[end + 1 : start])
        before = _NAME_BEFORE_BOX.search(text[max(0, box_start - _MAX_NAME) : box_start])
        name = before["name"] if before else ""
        if between is None or not (between["separator"] or (name and between["name"] not in (None, name))):
            break
        names[-1] = between["name"] or ""
        contents.append(text[content_start + 1 : end].strip())
        names.append(name)
        alternatives, start = alternatives or "or" in (between["separator"] or ""), box_start
    if len(set(names)) == len(names) > 1 and "" not in names:
        contents = [f"{name} = {content}" for name, content in zip(names, contents, strict=True)]
    distinct = list(dict.fromkeys(reversed(contents)))
    return (r" \text{ or } " if alternatives else "; ").join(distinct)


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
    found = _last(_LAST_NUMBER, text)
    return found and found[0]


def marked_answer(text: str) -> str | None:
    """Return what follows the last "answer is", "Answer:", "####", `<answer>` or heading "Final Answer".

    It ends with its sentence, or before a clause that explains it: "18, which is even", "18 because ...".
    Under a heading only a few words are an answer: prose is none.
    """
    answer = None
    for mark in reversed(deque(_MARK.finditer(text), maxlen=_MAX_MARKS)):
        following = _answer_after(mark, text[mark.end() :])
        answer = answer or following
        if following is None or not _REMARK.match(following):
            return following or answer
    return answer


def _answer_after(mark: re.Match[str], text: str) -> str | None:
    text = text.lstrip(_EMPHASIS)
    text = text[_length(_IN_UNITS.match(text)) :]
    for opening, closing in _DISPLAYS:
        end = text.find(closing, len(opening))
        if text.startswith(opening) and end > 0:
            return text[len(opening) : end].strip() or None
    text = text[_length(_ADVERB.match(text)) :].lstrip(_EMPHASIS)
    sentence_end = _SENTENCE_END.search(text)
    answer = text[: sentence_end.start() if sentence_end else len(text)].strip(_EMPHASIS)
    answer = _without_explanation(answer)
    if mark["heading"] and len(answer.split()) > _MAX_HEADED_WORDS and not re.match(r"[0-9$\\(\[-]", answer):
        return None
    return answer or None


def _without_explanation(answer: str) -> str:
    for clause in _CLAUSE.finditer(answer) if len(answer) <= _MAX_EXPLAINED else ():
        value = answer[: clause.start()]
        if value.count("$") % 2 == 0 and re.search(r"[0-9$\\]|^\(?[A-J]\)?$", value):
            return value.strip(_EMPHASIS)
    return answer


def _length(match: re.Match[str] | None) -> int:
    return match.end() if match else 0


def extract_answer(response: str, last_number_fallback: bool) -> str | None:
    """Return the response's final answer, or None if it gives none.

    A box is an answer wherever it stands; a response without one may mark its answer in words. With
    `last_number_fallback` the last number of a response that has neither is taken. A response whose last box
    is cut off gives no answer at all.
    """
    part = final_part(response)
    if _BOX.search(part):
        return boxed_answer(part)
    return marked_answer(part) or (last_number(part) if last_number_fallback else None)


def extract_program(response: str) -> str | None:
    """Return the last Python program of a response, or None if it gives none.

    Thinking does not count: nothing before the last `</think>`, nothing after a `<think>` that stays open.
    A block marked as Python is preferred to one without a mark. When the last block is never closed, the
    response was cut off while it wrote its program, and an earlier one is not what it meant to say.
    """
    blocks = list(_blocks(final_part(response)))
    marked = [text for language, text in blocks if language.lower() in _PYTHON]
    candidates = marked or [text for language, text in blocks if not language]
    if not candidates or not candidates[-1].strip():
        return None
    return textwrap.dedent(candidates[-1])


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield the language and the content of each block; one that is never closed has none."""
    opening: re.Match[str] | None = None
    lines: list[str] = []
    for line in text.split("\n"):
        fence = _FENCE.match(line)
        if opening is None:
            opening, lines = fence, []
        elif fence and _closes(fence, opening):
            yield opening["language"], "\n".join(lines) + "\n"
            opening = None
        else:
            lines.append(line)
    if opening is not None:
        yield opening["language"], ""


def _closes(fence: re.Match[str], opening: re.Match[str]) -> bool:
    return fence["marks"].startswith(opening["marks"]) and not (fence["language"] or fence["rest"].strip())
