r"""How often math answers are judged wrongly, on pairs made from the answers of public data sets.

    python benchmarks/math_pairs.py DATA_FOLDER --per-set 150 --show 20

Equal pairs are an answer of a set and the same answer written otherwise: typeset otherwise, in scientific
notation, with grouped digits, in colour, reordered where order does not matter. Different pairs are an answer
and a near miss (a digit, the sign or a bracket changed, a value added), or the answer of another problem that
is neither the same text nor the same number. A false negative is an equal pair judged wrong, a false positive
a different pair judged right.

Three judges: Archer's reader; the reader, and math-verify where the reader meets an expression that it does
not read; math-verify alone. The last two need `pip install math-verify`, which Archer itself does not use.

DATA_FOLDER holds JSON lines, one file for each set in `SETS`; those that are missing are left out.
"""

import argparse
import json
import logging
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from archer.rewards.math import judge_answer
from archer.rewards.math.algebra import SampledAlgebra
from archer.rewards.math.compare import Verdict
from archer.rewards.math.expression import UnreadableError, read_expression
from archer.rewards.math.numeric import parse_number
from archer.rewards.math.text import squash, tidy

SETS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "math500": lambda row: row["answer"],
    "math_train_rllm": lambda row: row["answer"],
    "olympiadbench": lambda row: row["final_answer"][0] if len(row["final_answer"]) == 1 else None,
    "aime24_rllm": lambda row: row["answer"],
    "aime_insight_replay": lambda row: row["answer"],
    "amc_rllm": lambda row: row["answer"],
    "dapo_math_17k_sample": lambda row: row["reward_model"]["ground_truth"],
    "gsm8k_test": lambda row: row["answer"].rpartition("####")[2],
}
_SUM = re.compile(r"([^-+,=(){}\[\]<>]+)\+([^-+,=(){}\[\]<>]+)")


def rewritings(text: str) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the same answer written otherwise."""
    if re.fullmatch(r"-?(?:[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+)", text):
        number = int(text.replace(",", ""))
        yield "decimal", f"{number}.0"
        if abs(number) > 999:
            yield "grouped", f"{number:,}"
            yield "grouped", f"{number:,}".replace(",", "{,}")
        mantissa, exponent = f"{abs(number)}", len(f"{abs(number)}") - 1
        if exponent > 1:
            sign, digits = "-" if number < 0 else "", f"{mantissa[0]}.{mantissa[1:]}"
            for form in (r"{} \times 10^{{{}}}", r"{}\cdot10^{{{}}}", "{}e{}", "{} x 10^{}", "{}E+{:02d}"):
                yield "scientific", sign + form.format(digits, exponent)
        yield "unit", rf"\text{{{number} ways}}"
        yield "choice", rf"\textbf{{(C)}}\ {number}"
    if re.fullmatch(r"-?\\frac\{[0-9]+\}\{[0-9]+\}", text):
        yield "fraction", re.sub(r"\\frac\{([0-9]+)\}\{([0-9]+)\}", r"\1/\2", text)
        yield "fraction", re.sub(r"\\frac\{([0-9]+)\}\{([0-9]+)\}", r"{\1 \\over \2}", text)
    if re.fullmatch(r"[^=<>]+", text) and not re.search(
        r"\\text|\\cup|\\in\b|,|[A-Za-z]{3}(?<!frac)(?<!sqrt)", text
    ):
        yield "equation", f"k = {text}"
    if re.search(r"\\sqrt|\\pi|(?<![a-z\\])[a-z](?![a-z])", text) and not re.search(
        r"[,=<>|]|\\(?!frac|sqrt|pi|cdot)|[A-Za-z]{5}", text
    ):
        yield "algebra", rf"\frac{{3({text})}}{{3}}"
        yield "algebra", rf"7 - (7 - ({text}))"
    total = _SUM.fullmatch(text)
    if total:
        yield "order", f"{total[2]}+{total[1]}"
    if re.fullmatch(r"[^()\[\]{}]+(?:, [^()\[\]{}]+)+", text) and "=" not in text:
        yield "order", ", ".join(reversed(text.split(", ")))
        yield "order", rf"\{{{text}\}}"
    if re.fullmatch(r"[\[(][^\[\](),]+,[^\[\](),]+\)", text) and "infty" in text:
        yield "interval", text[:-1].replace("(", "]") + "["
    if r"\cup" in text and text.count(r"\cup") == 1:
        yield "order", r" \cup ".join(reversed(text.split(r"\cup")))
    if "pmatrix" in text:
        yield "matrix", text.replace("pmatrix", "bmatrix")
    if re.search(r"\\sqrt\{[0-9]+\}", text):
        yield "root", re.sub(r"\\sqrt\{([0-9]+)\}", r"(\1)^{1/2}", text, count=1)
    if "sqrt" in text or "frac" in text:
        yield "typeset", text.replace(r"\frac", r"\dfrac").replace(r"\sqrt{", r"\sqrt {")
    if "(" in text and r"\left" not in text and not re.search(r"[\[\]]", text):
        yield "typeset", text.replace("(", r"\left(").replace(")", r"\right)")
    yield "typeset", rf"\displaystyle {text}."
    yield "typeset", re.sub(r"(?<=[0-9a-z}])([-+=])(?=[0-9a-z\\])", r" \1 ", text)
    yield "colour", rf"\color{{blue}}{{{text}}}"
    if re.fullmatch(r"\\text\{[^{}]*\}", text):
        yield "text", text[6:-1]
    if r"^\circ" in text:
        yield "unit", text.replace(r"^\circ", "°")


def near_misses(text: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield names and texts of answers that differ a little."""
    digits = [
        match for match in re.finditer(r"[0-9]", text) if not re.search(r"_\{?$", text[: match.start()])
    ]
    if digits:
        digit = rng.choice(digits)
        other = rng.choice([value for value in "123456789" if value != digit[0]])
        yield "digit", text[: digit.start()] + other + text[digit.end() :]
    if re.fullmatch(r"[0-9]+|\\frac\{[0-9]+\}\{[0-9]+\}|[0-9]*\\sqrt\{[0-9]+\}", text) and text != "0":
        yield "sign", f"-{text}"
        yield "added", f"{text}, 98765"
        yield "factor", rf"{text}\pi"
        yield "power of ten", rf"{text} \times 10^{{2}}" if text.isdigit() else f"{text}+1"
    if re.fullmatch(r"\([^()]+,[^()]+\)", text):
        yield "bracket", f"[{text[1:-1]}]"
        yield "bracket", f"{text[:-1]}["


@dataclass
class Score:
    """What one judge got wrong, and how long it took."""

    wrong: dict[bool, list[str]] = field(default_factory=lambda: {True: [], False: []})  # by whether equal
    seconds: float = 0.0
    asked: int = 0


class Noticing(SampledAlgebra):
    """The reader's algebra, which notices when an expression cannot be read."""

    unread = False

    def same(self, a: str, b: str) -> Verdict:
        """Tell whether two expressions are equal."""
        self._notice(a, b)
        return super().same(a, b)

    def answers(self, answer: str, reference: str) -> Verdict:
        """Tell whether they are equal and worked out."""
        self._notice(answer, reference)
        return super().answers(answer, reference)

    def equivalent(self, a: tuple[str, str], b: tuple[str, str]) -> Verdict:
        """Tell whether two equations are multiples."""
        self._notice(*a, *b)
        return super().equivalent(a, b)

    def _notice(self, *texts: str) -> None:
        for text in texts:
            try:
                read_expression(text)
            except UnreadableError:
                self.unread = True


def by_reader(answer: str, reference: str, score: Score) -> bool:
    """Judge as Archer does."""
    return bool(judge_answer(answer, (reference,), SampledAlgebra()))


def by_both(answer: str, reference: str, score: Score) -> bool:
    """Judge as Archer does, and ask math-verify where an expression was not read."""
    algebra = Noticing()
    right = bool(judge_answer(answer, (reference,), algebra))
    if right or not algebra.unread:
        return right
    score.asked += 1
    return by_math_verify(answer, reference, score)


def by_math_verify(answer: str, reference: str, score: Score) -> bool:
    """Judge by math-verify, called as its documentation says, within its own time limits."""
    from math_verify import parse, verify

    return bool(verify(parse(f"${reference}$"), parse(rf"\boxed{{{answer}}}")))


def make_pairs(folder: Path, per_set: int, seed: int) -> dict[str, list[tuple[str, str, str, bool]]]:
    """Return pairs by set: what was done, answer, reference, whether they are equal."""
    rng, pairs = random.Random(seed), {}
    for name, field_of in SETS.items():
        path = folder / f"{name}.jsonl"
        if not path.is_file():
            continue
        rows = [field_of(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines() if line]
        answers = sorted({_bare(str(row)) for row in rows if row not in (None, "")})
        pairs[name] = []
        for reference in rng.sample(answers, min(per_set, len(answers))):
            same = [(how, text) for how, text in rewritings(reference) if text != reference]
            misses = list(near_misses(reference, rng))
            pairs[name] += [(how, text, reference, True) for how, text in rng.sample(same, min(3, len(same)))]
            pairs[name] += [
                (how, text, reference, False) for how, text in rng.sample(misses, min(2, len(misses)))
            ]
            other = rng.choice(answers)
            if not _may_be_equal(other, reference):
                pairs[name].append(("other problem", other, reference, False))
    return pairs


def _bare(text: str) -> str:
    text = text.strip()
    return text[1:-1].strip() if text.count("$") == 2 and text[0] == text[-1] == "$" else text


def _may_be_equal(a: str, b: str) -> bool:
    numbers = [parse_number(tidy(text).removeprefix(r"\$").removesuffix(r"\%").strip()) for text in (a, b)]
    if numbers[0] and numbers[1]:
        return numbers[0].value == numbers[1].value
    return squash(tidy(a)).lower() == squash(tidy(b)).lower()


def main() -> None:
    """Judge the pairs and print what was judged wrongly."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the sets lie, as JSON lines")
    parser.add_argument("--per-set", type=int, default=150, help="answers taken of each set")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=0, help="pairs judged wrongly to print for each judge")
    parser.add_argument("--reader-only", action="store_true", help="leave math-verify out")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    judges = {"reader": by_reader}
    if not options.reader_only:
        judges |= {"reader, then math-verify": by_both, "math-verify": by_math_verify}
    pairs = make_pairs(options.folder, options.per_set, options.seed)
    everything = [pair for some in pairs.values() for pair in some]
    equal = sum(pair[3] for pair in everything)
    console = Console(width=160, highlight=False, markup=False)
    console.print(f"{equal} equal and {len(everything) - equal} different pairs of {', '.join(pairs)}")
    table = Table("judge", "false negatives", "false positives", "ms per verdict", "math-verify asked")
    for name, judge in judges.items():
        score = Score()
        for how, answer, reference, same in everything:
            start = time.perf_counter()
            verdict = judge(answer, reference, score)
            score.seconds += time.perf_counter() - start
            if verdict is not same:
                score.wrong[same].append(f"{how}: {answer} for {reference}")
        shares = [(len(score.wrong[True]), equal), (len(score.wrong[False]), len(everything) - equal)]
        figures = [f"{count} ({100 * count / max(1, total):.2f} %)" for count, total in shares]
        asked = len(everything) if judge is by_math_verify else score.asked
        table.add_row(name, *figures, f"{1000 * score.seconds / len(everything):.2f}", str(asked))
        for same, word in ((True, "negative"), (False, "positive")):
            kinds = Counter(line.partition(":")[0] for line in score.wrong[same])
            console.print(f"{name}, false {word}s by kind: {dict(kinds.most_common())}")
            for line in score.wrong[same][: options.show]:
                console.print(f"    {line}")
    console.print(table)


if __name__ == "__main__":
    main()
