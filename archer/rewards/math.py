"""Verification of a final answer against one or several reference answers.

Two stages. `fast_verdict` compares strings and plain numerals exactly, in microseconds and with bounded
work, and says yes or no only when it is certain. What it leaves open needs algebra
(`archer.rewards.symbolic`), which can run for ever and therefore belongs in a worker process.
"""

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from archer.errors import ArcherError
from archer.rewards.boxed import last_boxed
from archer.rewards.numeric import MAX_NUMERAL_CHARS, numbers_agree, parse_number, squash, tidy
from archer.rewards.symbolic import symbolic_verdict
from archer.rewards.types import RewardResult

MAX_ANSWER_CHARS = 2000


def reference_answers(ground_truth: Any) -> tuple[str, ...]:
    """Return the accepted answers as text, from a string, a number or a list of alternatives.

    A ground truth that no answer could ever match (None, empty, not finite, a dictionary) is an
    ArcherError: it would otherwise score every response 0 without a word.
    """
    alternatives = ground_truth if isinstance(ground_truth, list | tuple) else (ground_truth,)
    if not alternatives:
        raise ArcherError("The ground truth is an empty list, so no answer could be right: give the answer.")
    return tuple(_reference_text(alternative) for alternative in alternatives)


def _reference_text(reference: Any) -> str:
    if isinstance(reference, str):
        text = reference.strip()
        if text:
            return last_boxed(text) or text
    elif isinstance(reference, int) and abs(reference) < 10**MAX_NUMERAL_CHARS:
        return str(reference)
    elif isinstance(reference, float) and math.isfinite(reference):
        # 15 digits are what a double surely holds: 0.1 + 0.2 is meant to be 0.3.
        return format(Decimal(format(reference, ".15g")), "f")
    shown = repr(reference) if not isinstance(reference, int) else "an integer of over a thousand digits"
    raise ArcherError(
        f"The ground truth {shown[:200]} ({type(reference).__name__}) cannot be compared with an answer. "
        "Expected a non-empty string, a finite number, or a list of these: correct "
        "reward_model.ground_truth in the data, or give a custom reward function."
    )


def fast_verdict(answer: str | None, references: tuple[str, ...]) -> bool | None:
    """Judge an answer by strings and plain numerals: True, False, or None where only algebra can tell."""
    if answer is None or not answer.strip():
        return False
    verdicts = [_compare(answer, reference) for reference in references]
    if True in verdicts:
        return True
    return None if None in verdicts else False


def _compare(answer: str, reference: str) -> bool | None:
    if answer == reference:
        return True
    if len(answer) > MAX_ANSWER_CHARS or len(reference) > MAX_ANSWER_CHARS:
        return False
    answer, reference = tidy(answer), tidy(reference)
    if squash(answer) == squash(reference):
        return bool(answer)
    answer_number, reference_number = parse_number(answer), parse_number(reference)
    if answer_number is None or reference_number is None:
        return None
    return numbers_agree(answer_number, reference_number)


def verify_answer(answer: str | None, ground_truth: Any) -> bool:
    """Judge an answer in this process and without a time limit: for answers one trusts not to be hostile."""
    references = reference_answers(ground_truth)
    verdict = fast_verdict(answer, references)
    if verdict is not None or answer is None:
        return bool(verdict)
    return symbolic_verdict(tidy(answer), tuple(tidy(reference) for reference in references))


@dataclass(frozen=True)
class MathTask:
    """The algebra that one answer needs, for a worker process."""

    answer: str
    references: tuple[str, ...]

    def run(self) -> RewardResult:
        """Judge the answer; may take for ever."""
        return RewardResult.of_verdict(verify_answer(self.answer, self.references))
