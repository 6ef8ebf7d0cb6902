"""Rules for final answers that are numbers or mathematics."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from archer.rewards.extract import extract_answer
from archer.rewards.math import fast_verdict, reference_answers, verify_answer
from archer.rewards.math.evaluate import load_mpmath
from archer.rewards.rules import RULES, RewardRequest, RewardResult, Rule, Task


@RULES.register("numeric", sources=("arithmetic",))
class NumericRule(Rule):
    """Equal as strings or as numbers; no algebra, hence no worker process."""

    has_answers = True

    def check(self, ground_truth: Any) -> None:
        """Refuse a ground truth that no answer could match."""
        reference_answers(ground_truth)

    def judge(self, request: RewardRequest) -> RewardResult | Task:
        """Compare the final answer with the accepted ones."""
        references = reference_answers(request.ground_truth)
        return self._compare(self.answer(request.response), references)

    def answer(self, response: str) -> str | None:
        """Return what is boxed or marked as the answer, or else, where that is allowed, the last number."""
        return extract_answer(response, self.config.last_number_fallback)

    def same(self, answer: str, other: str) -> RewardResult | Task:
        """Compare two final answers as an answer is compared with a reference."""
        return self._compare(answer, (other,))

    def _compare(self, answer: str | None, references: tuple[str, ...]) -> RewardResult | Task:
        return explained(bool(fast_verdict(answer, references)), answer, references)


_SOURCES = (
    "openai/gsm8k gsm8k math math500 math_dapo* DAPO* open-r1/DAPO* BytedTsinghua-SIA/DAPO* lighteval/MATH* "
    "DigitalLearningGmbH/MATH* HuggingFaceH4/MATH* HuggingFaceH4/aime* aime* amc* minerva* olympiad* numina* "
    "mawps* deepscaler*"
)


@RULES.register("math", sources=_SOURCES.split())
class MathRule(NumericRule):
    """Equal as strings, as numbers, or by algebra."""

    preparation = (load_mpmath,)

    def _compare(self, answer: str | None, references: tuple[str, ...]) -> RewardResult | Task:
        verdict = fast_verdict(answer, references)
        if verdict is None and answer is not None:
            return MathTask(answer, references)
        return explained(bool(verdict), answer, references)


@dataclass(frozen=True)
class MathTask:
    """The algebra that one answer needs, for a worker process."""

    answer: str
    references: tuple[str, ...]
    repeatable: ClassVar[bool] = True

    def run(self) -> RewardResult:
        """Judge the answer; may take for ever."""
        return explained(verify_answer(self.answer, self.references), self.answer, self.references)


MAX_QUOTED = 60  # characters of an answer in a reason
NO_ANSWER = r"no answer found: no \boxed{} and no phrase that marks one"


def explained(correct: bool, answer: str | None, references: tuple[str, ...]) -> RewardResult:
    """Return 1 for right and 0 for wrong, with the answer that was found and what it was compared with."""
    expected = " or ".join(_quoted(reference) for reference in references)
    if answer is None:
        reason = NO_ANSWER
    elif correct and answer in references:
        reason = f"found {_quoted(answer)}, as expected"
    elif correct:
        reason = f"found {_quoted(answer)}, the same as {expected}"
    else:
        reason = f"expected {expected}, found {_quoted(answer)}"
    return replace(RewardResult.of_verdict(correct), extracted=answer, reason=reason)


def _quoted(answer: str) -> str:
    line = " ".join(answer.split())
    return line if len(line) <= MAX_QUOTED else f"{line[: MAX_QUOTED - 1]}…"
