"""What an evaluation reports, from its samples alone."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from archer.data.builtin import DATA_SOURCE
from archer.generation.judge import failures_of

MAX_SHOWN_TRUTH = 2000  # characters; test suites of code problems are not repeated for every response
ALL = "all"
EXACT = f"val-core/{DATA_SOURCE}/exact"  # metric of exact accuracy, which only the built-in task has


@dataclass(frozen=True)
class Sample:
    """A response to a prompt of the dataset. Everything an evaluation reports follows from these."""

    prompt_index: int  # place in the dataset
    sample: int  # 0 ... n-1
    data_source: str
    prompt: str
    ground_truth: Any  # None where it is too long to repeat
    response: str
    answer: str | None  # what is compared with the ground truth; None: none given, or judged by a function
    correct: bool
    score: float
    tokens: int
    finished: bool  # ended by itself, not by the length limit
    failure: str | None  # why there is no judgement: "timeout", "crash: ..."
    majority: float | None  # of the prompt (the same in its n samples); None: answers cannot be compared

    def to_line(self) -> str:
        """The sample as one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"

    @classmethod
    def from_line(cls, line: str | bytes) -> "Sample":
        """The sample of a line written by `to_line`."""
        return cls(**json.loads(line))


def shown_truth(ground_truth: Any) -> Any:
    """The ground truth as it goes into a sample: itself, or None where it is long."""
    return ground_truth if len(json.dumps(ground_truth, default=str)) <= MAX_SHOWN_TRUTH else None


def pass_at_k(n: int, c: int, k: int) -> float:
    """The probability that k of the n responses, drawn without replacement, hold at least one right one.

    pass@k = 1 - C(n - c, k) / C(n, k), the unbiased estimator of the probability that k fresh responses hold
    a right one (arXiv 2107.03374). Computed as 1 - prod_{i = n-c+1 .. n} (1 - k / i), which stays in range.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, not n={n}, c={c}, k={k}")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def pass_ks(n: int) -> tuple[int, ...]:
    """The k that are reported for n responses: 1, 2, 4, ... and n."""
    powers = [2**i for i in range(n.bit_length()) if 2**i < n]
    return (*powers, n)


def mean(values: Sequence[float]) -> float:
    """The mean of at least one value."""
    return sum(values) / len(values)


def standard_error(values: Sequence[float]) -> float | None:
    """The standard error of the mean of independent values, s / sqrt(N); None for a single value."""
    if len(values) < 2:
        return None
    middle = mean(values)
    variance = sum((value - middle) ** 2 for value in values) / (len(values) - 1)
    return math.sqrt(variance / len(values))


@dataclass(frozen=True)
class Figures:
    """The figures of one data source, or of all together. Every prompt counts the same.

    Responses without a verdict are left out: of accuracy, and of what is made of it. A prompt without any
    verdict has none of these, and one with fewer than k verdicts has no pass@k.
    """

    prompts: int
    n: int
    avg: float | None  # avg@n: the share of right responses; None: not one was judged
    stderr: float | None  # of avg, over prompts
    pass_at: dict[int, float]  # k -> pass@k, where some prompt has k verdicts
    majority: float | None  # None where a function judges, so that answers cannot be compared
    score: float | None  # mean raw reward
    tokens: float  # mean response length
    truncated: float  # share of responses cut off by the length limit
    failures: int  # responses that could not be judged
    first_failure: str | None  # why the first of them could not


@dataclass(frozen=True)
class Summary:
    """All data sources together and each by itself."""

    overall: Figures
    sources: dict[str, Figures]
    exact: float | None = None  # exact accuracy on the built-in task; None: it was not measured

    @property
    def accuracy(self) -> float:
        """avg@n over all prompts. An evaluation without a single verdict is refused before it comes here."""
        assert self.overall.avg is not None
        return self.overall.avg

    def metrics(self) -> dict[str, float]:
        """The figures of every source under verl's names."""
        found: dict[str, float] = {}
        for source, figures in self.sources.items():
            n = figures.n
            if figures.avg is not None:
                found[f"val-core/{source}/acc/mean@{n}"] = figures.avg
            for k, value in figures.pass_at.items():
                if k == n:
                    found[f"val-core/{source}/acc/pass@{n}"] = value
                elif k > 1:
                    found[f"val-aux/{source}/acc/pass@{k}"] = value
            if figures.majority is not None and n > 1:
                found[f"val-core/{source}/acc/maj@{n}/mean"] = figures.majority
            found[f"val-aux/{source}/response_length/mean"] = figures.tokens
            found[f"val-aux/{source}/response_length/clip_ratio"] = figures.truncated
            found[f"val-aux/{source}/unjudged"] = float(figures.failures)
        return found if self.exact is None else found | {EXACT: self.exact}


def summarise(samples: Iterable[Sample], exact: float | None = None) -> Summary:
    """Return the figures of at least one prompt's samples; every prompt must have as many.

    exact: exact accuracy of the model that gave them, where it was measured
    """
    groups: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.prompt_index].append(sample)
    sources: dict[str, list[list[Sample]]] = defaultdict(list)
    for group in groups.values():
        sources[group[0].data_source].append(group)
    return Summary(
        overall=_figures(list(groups.values())),
        sources={source: _figures(prompts) for source, prompts in sources.items()},
        exact=exact,
    )


def _figures(prompts: Sequence[Sequence[Sample]]) -> Figures:
    n = len(prompts[0])
    if any(len(prompt) != n for prompt in prompts):
        raise ValueError("every prompt must have the same number of samples")
    judged = [[sample for sample in prompt if sample.failure is None] for prompt in prompts]
    counts = [(len(some), sum(sample.correct for sample in some)) for some in judged if some]
    shares = [c / m for m, c in counts]
    votes = [some[0].majority for some in judged if some]
    passed = {k: [pass_at_k(m, c, k) for m, c in counts if m >= k] for k in pass_ks(n)}
    scores = [sample.score for some in judged for sample in some]
    everything = [sample for prompt in prompts for sample in prompt]
    failures = failures_of(everything)
    return Figures(
        prompts=len(prompts),
        n=n,
        avg=mean(shares) if shares else None,
        stderr=standard_error(shares),
        pass_at={k: mean(values) for k, values in passed.items() if values},
        majority=None if None in votes or not votes else mean([vote for vote in votes if vote is not None]),
        score=mean(scores) if scores else None,
        tokens=mean([float(sample.tokens) for sample in everything]),
        truncated=mean([float(not sample.finished) for sample in everything]),
        failures=len(failures),
        first_failure=failures[0] if failures else None,
    )
