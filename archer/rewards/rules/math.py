"""Rules for final answers that are numbers or mathematics."""

from dataclasses import dataclass
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
        return RewardResult.of_verdict(bool(fast_verdict(answer, references)))


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
        return RewardResult.of_verdict(bool(verdict))


@dataclass(frozen=True)
class MathTask:
    """The algebra that one answer needs, for a worker process."""

    answer: str
    references: tuple[str, ...]
    repeatable: ClassVar[bool] = True

    def run(self) -> RewardResult:
        """Judge the answer; may take for ever."""
        return RewardResult.of_verdict(verify_answer(self.answer, self.references))
