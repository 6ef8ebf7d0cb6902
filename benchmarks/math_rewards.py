r"""How fast math answers are judged: a batch of responses on a few worker processes.

    python benchmarks/math_rewards.py --prompts 64 --n 16 --workers 2

The responses imitate a reasoning model: thousands of characters of working with earlier boxes and numbers in
it, then a boxed answer that is right in some typesetting, wrong, missing, cut off, or unclosed thinking. Two
in a hundred are pathological: towers of powers, deep nesting, endless repetition, hostile code. "First" is
the first batch, which starts the workers; "next" the median of later batches, all different.

`--math-verify N` judges N of the responses with math-verify alone, as one would call it in one process, and
prints both times per response; it needs `pip install math-verify`, which Archer does not use.
"""

import argparse
import random
import time
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from archer.rewards import RewardConfig, RewardRequest, RewardResult, RewardScorer


@dataclass(frozen=True)
class Problem:
    """A reference, right answers in other words, and wrong ones. Each holds {a} and {b} for numbers."""

    reference: str
    right: tuple[str, ...]
    wrong: tuple[str, ...]


INTEGER = Problem("{a}", ("{a}", "x={a}", r"{a}.0", r"\mathbf{{{a}}}", r"{a}\text{{ cm}}"), ("{b}", "-{a}"))
PROBLEMS = (
    *[INTEGER] * 6,  # as in DAPO, GSM8K and AIME, most answers are integers
    Problem(
        r"\frac{{{a}}}{{7}}", (r"\dfrac{{{a}}}{{7}}", "{a}/7"), (r"\frac{{{b}}}{{7}}", r"\frac{{7}}{{{a}}}")
    ),
    Problem(
        r"{a}\sqrt{{3}}", (r"\sqrt{{3}}\cdot {a}", r"\frac{{3 \cdot {a}}}{{\sqrt3}}"), (r"{b}\sqrt3", "{a}")
    ),
    Problem("x^2-{a}", ("-{a}+x^2", r"x\cdot x-{a}"), ("x^2+{a}", "x^2-{b}")),
    Problem("({a},{b})", (r"\left({a}, {b}\right)", "x={a}, y={b}"), ("({b},{a})", "[{a},{b}]")),
    Problem(r"\{{{a},{b}\}}", ("{b},{a}", r"x={a}\text{{ or }}x={b}"), ("{a}", "{a},{b},7")),
    Problem(r"(-\infty,{a}]", (r"x\le {a}", r"x \in (-\infty, {a}]"), ("x<{a}", r"(-\infty,{b}]")),
    Problem(r"\frac{{{a}\pi}}{{6}}", (r"{a}\cdot\frac{{\pi}}{{6}}",), (r"\frac{{{b}\pi}}{{6}}", "3.14")),
    Problem("{a}+{b}i", ("{b}i+{a}",), ("{a}-{b}i", "{b}+{a}i")),
    Problem(
        r"\begin{{pmatrix}}{a}\\{b}\end{{pmatrix}}",
        (r"\begin{{bmatrix}}{a}\\ {b}\end{{bmatrix}}",),
        ("{a},{b}",),
    ),
    Problem(r"{a}\%", (r"\frac{{{a}}}{{100}}", "{a}"), (r"{b}\%",)),
)
PATHOLOGICAL = (
    "9^{9^{9^{9}}}",
    "(" * 300 + "5" + ")" * 300,
    r"\frac{1}{" * 300,
    "5, " * 600,
    r"\int_0^1 e^{x^{99}}\,dx",
    r"\sum_{k=1}^{10^{10}} k!",
    "__import__('os').system('true')",
    "12345" * 300,
)
FILLER = (
    "Let me think about this again. We know that the sum of the first {a} terms is {b}, so ",
    r"substituting $x = \frac{{{a}}}{{{b}}}$ gives $x^2 + {a}x - {b} = 0$. ",
    r"Wait, \boxed{{{b}}} cannot be right, since {a} is not divisible by {b}. ",
    "\n\nHence the number of ways is ${a} \\cdot {b}$. ",
)


def make_batch(prompts: int, n: int, seed: int) -> list[RewardRequest]:
    """Return `n` responses to each of `prompts` problems."""
    rng = random.Random(seed)
    requests = []
    for _ in range(prompts):
        problem = rng.choice(PROBLEMS)
        numbers = {"a": rng.randint(2, 999), "b": rng.randint(1000, 9999)}
        reference = problem.reference.format(**numbers)
        requests += [RewardRequest("math", make_response(rng, problem, numbers), reference) for _ in range(n)]
    return requests


def make_response(rng: random.Random, problem: Problem, numbers: dict[str, int]) -> str:
    """Return a response that ends in one of the ways in which responses end."""
    length = int(rng.lognormvariate(8.5, 0.7))  # characters: about 5,000, at times 30,000
    sentences, size = [], 0
    while size < length:
        sentences.append(rng.choice(FILLER).format(a=rng.randint(1, 99), b=rng.randint(1, 99)))
        size += len(sentences[-1])
    working, chance = "".join(sentences), rng.random()
    if chance < 0.45:
        answer = rng.choice(problem.right).format(**numbers)
    elif chance < 0.85:
        answer = rng.choice(problem.wrong).format(**numbers | {"b": numbers["b"] + rng.randint(1, 9)})
    elif chance < 0.98:
        return rng.choice((working, "<think>" + working, working + r"so \boxed{\frac{1"))
    else:
        answer = rng.choice(PATHOLOGICAL)
    return rf"<think>{working}</think>Therefore the answer is $\boxed{{{answer}}}$."


def judge(scorer: RewardScorer, batch: list[RewardRequest]) -> tuple[float, list[RewardResult]]:
    """Return the seconds a batch takes, and its results."""
    start = time.perf_counter()
    results = scorer.score(batch)
    return time.perf_counter() - start, results


def seconds_with_math_verify(batch: list[RewardRequest], count: int) -> float:
    """Return the seconds per response of math-verify, in this process and with its own time limits."""
    import logging

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    start = time.perf_counter()
    for request in batch[:count]:
        verify(parse(f"${request.ground_truth}$"), parse(request.response))
    return (time.perf_counter() - start) / count


def main() -> None:
    """Judge batches and print the times."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--n", type=int, default=16, help="responses to each prompt")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=5, help="batches after the first")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds an answer may take")
    parser.add_argument("--math-verify", type=int, default=0, metavar="N", help="compare on N responses")
    options = parser.parse_args()
    batches = [make_batch(options.prompts, options.n, seed) for seed in range(options.batches + 1)]
    with RewardScorer(RewardConfig(num_workers=options.workers, timeout_s=options.timeout)) as scorer:
        times, results = zip(*(judge(scorer, batch) for batch in batches), strict=True)
        counters = scorer.counters
    size, later = len(batches[0]), median(times[1:])
    characters = sum(len(request.response) for request in batches[0]) / size
    table = Table("batch", "seconds", "responses per second")
    for name, seconds in (("first", times[0]), ("next", later)):
        table.add_row(name, f"{seconds:.2f}", f"{size / seconds:,.0f}")
    console = Console()
    console.print(f"{size} responses of {characters:,.0f} characters on average, {options.workers} workers")
    console.print(table)
    right = sum(result.correct for result in results[0])
    console.print(
        f"{right} of the first batch right; in all {counters.timeouts} timeouts, {counters.crashes} crashes"
    )
    if options.math_verify:
        theirs = seconds_with_math_verify(batches[1], options.math_verify)
        console.print(
            f"math-verify alone, one process: {1000 * theirs:.1f} ms a response; "
            f"here: {1000 * later / size:.2f} ms on {options.workers} workers"
        )


if __name__ == "__main__":
    main()
