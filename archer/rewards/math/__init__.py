"""Judging a final answer against one or several reference answers, as a mathematician would.

notation.py    the spellings of numbers, text, fractions and intervals, respelt as one
text.py        what may be stripped or respelt without changing an answer; brackets
numeric.py     plain numerals as exact rationals
choice.py      the letter of a choice, and its value
quantity.py    a value with a percent sign, a unit, a currency, a base, a modulus
mixed_units.py `1 hour 30 minutes`;  clock.py: times of the day
forms.py       what an answer may be: list, set, tuple, interval, union, matrix, equation, inequality
structure.py   reads an answer into one of these;  line.py: sets on the real line, points taken out
naming.py      values that go by names, and their order
compare.py     when two structures, or two values, are the same answer
expression.py  reads an expression into a tree;  evaluate.py: its value at a point
algebra.py     equality of expressions, by their values at many points

There are two stages. `fast_verdict` compares structures, strings and plain numerals exactly, in microseconds
and with bounded work, and says yes or no only when it is certain. What it leaves open needs algebra, which
belongs in a worker process: `verify_answer`.
"""

import math
import re
from decimal import Decimal
from functools import lru_cache
from typing import Any

from archer.errors import ArcherError
from archer.rewards.extract import boxed_answer
from archer.rewards.math.algebra import SampledAlgebra
from archer.rewards.math.choice import chosen_letters, letter_alone, run_together, split_choice, without_word
from archer.rewards.math.compare import Algebra, any_of, compare, words
from archer.rewards.math.forms import Collection
from archer.rewards.math.mixed_units import in_one_unit
from archer.rewards.math.numeric import MAX_NUMERAL_CHARS
from archer.rewards.math.structure import read
from archer.rewards.math.text import squash, tidy

MAX_ANSWER_CHARS = 2000
_read = lru_cache(maxsize=4096)(read)
_LISTED = re.compile(r"\s*,\s*(?:and\s+)?|\s+and\s+|;")
_TEXT = re.compile(r"\\text\s*\{[^{}\\]*[A-Za-z]{2}[^{}\\]*\}")


def reference_answers(ground_truth: Any) -> tuple[str, ...]:
    """Return the accepted answers as text, from a string, a number or a list of alternatives.

    A list within the list is one alternative, all of whose members are required. A ground truth that no
    answer could ever match (None, empty, not finite, a dictionary) is an ArcherError: it would otherwise
    score every response 0 without a word.
    """
    alternatives = ground_truth if _is_list(ground_truth) else (ground_truth,)
    if not alternatives:
        raise ArcherError("The ground truth is an empty list, so no answer could be right: give the answer.")
    return tuple(_reference_text(alternative) for alternative in alternatives)


def _reference_text(reference: Any) -> str:
    if isinstance(reference, str):
        text = reference.strip()
        if text:
            return boxed_answer(text) or text
    elif isinstance(reference, int) and abs(reference) < 10**MAX_NUMERAL_CHARS:
        return str(reference)
    elif isinstance(reference, float) and math.isfinite(reference):
        # 15 digits are what a double surely holds: 0.1 + 0.2 is meant to be 0.3.
        return format(Decimal(format(reference, ".15g")), "f")
    elif _is_list(reference) and reference and not any(map(_is_list, reference)):
        return "; ".join(map(_reference_text, reference))
    shown = repr(reference) if not isinstance(reference, int) else "an integer of over a thousand digits"
    raise ArcherError(
        f"The ground truth {shown[:200]} ({type(reference).__name__}) cannot be compared with an answer. "
        "Expected a non-empty string, a finite number, or a list of these: correct "
        "reward_model.ground_truth in the data, or give a custom reward function."
    )


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def fast_verdict(answer: str | None, references: tuple[str, ...]) -> bool | None:
    """Judge an answer without algebra: True, False, or None where only algebra can tell."""
    return judge_answer(answer, references, Algebra())


def verify_answer(answer: str | None, ground_truth: Any) -> bool:
    """Judge an answer in this process and without a time limit: for answers that are not hostile."""
    return bool(judge_answer(answer, reference_answers(ground_truth), SampledAlgebra()))


def judge_answer(answer: str | None, references: tuple[str, ...], algebra: Algebra) -> bool | None:
    """Judge an answer with an algebra at hand: True, False, or None where that one cannot tell."""
    if answer is None or not answer.strip():
        return False
    return any_of(_judge(answer, reference, algebra) for reference in references)


def _judge(answer: str, reference: str, algebra: Algebra) -> bool | None:
    if answer == reference:
        return True
    if len(answer) > MAX_ANSWER_CHARS or len(reference) > MAX_ANSWER_CHARS:
        return False
    text, reference_text = (in_one_unit(without_word(tidy(each))) for each in (answer, reference))
    spelling, reference_spelling = squash(text), squash(reference_text)
    if spelling == reference_spelling != "":
        return True
    choice, reference_choice = split_choice(text), split_choice(reference_text)
    if choice[0] or reference_choice[0]:
        return _judge_choice(choice, reference_choice, algebra)
    letter, reference_letter = letter_alone(text), letter_alone(reference_text)
    if letter and reference_letter:
        return letter == reference_letter
    letters, reference_letters = chosen_letters(text), chosen_letters(reference_text)
    if letters or reference_letters:
        return (letters or run_together(text)) == (reference_letters or run_together(reference_text))
    if _TEXT.fullmatch(reference_spelling):
        if _judge_words(spelling, reference_spelling):
            return True
        return _read(text) == _read(reference_text) == Collection((), braces=True)  # in other words: nothing
    return compare(_read(text), _read(reference_text), algebra)


def _judge_words(answer: str, reference: str) -> bool:
    """Judge words, or a list of words in any order."""
    found, wanted = (
        [words(item) for item in _LISTED.split(re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)) if item.strip()]
        for text in (answer, reference)
    )
    return words(answer) == words(reference) != "" or (len(wanted) > 1 and sorted(found) == sorted(wanted))


def _judge_choice(answer: tuple[str, str], reference: tuple[str, str], algebra: Algebra) -> bool | None:
    """Judge a letter with a value: by both where both are given, else by the one that is."""
    letters = [letter_alone(value) for _, value in (answer, reference)]
    if answer[0] and reference[0]:
        return answer[0] == reference[0] and _judge(answer[1], reference[1], algebra)
    if answer[0]:
        return answer[0] == letters[1] if letters[1] else _judge(answer[1], reference[1], algebra)
    return reference[0] == letters[0] if letters[0] else _judge(answer[1], reference[1], algebra)
