"""What an evaluation reports, from its samples alone."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from archer.evaluation.estimators import mean, pass_at_k, pass_ks, standard_error
from archer.evaluation.samples import Sample

ALL = "all"


@dataclass(frozen=True)
class Figures:
    """The figures of one data source, or of all together. Every prompt counts the same."""

    prompts: int
    n: int
    avg: float  # avg@n: the share of right responses
    stderr: float | None  # of avg, over prompts
    pass_at: dict[int, float]  # k -> pass@k
    majority: float | None  # None where a function judges, so that answers cannot be compared
    score: float  # mean raw reward
    tokens: float  # mean response length
    truncated: float  # share of responses cut off by the length limit
    failures: int  # responses that could not be judged


@dataclass(frozen=True)
class Summary:
    """All data sources together and each by itself."""

    overall: Figures
    sources: dict[str, Figures]

    def metrics(self) -> dict[str, float]:
        """The figures of every source under verl's names."""
        found: dict[str, float] = {}
        for source, figures in self.sources.items():
            n = figures.n
            found[f"val-core/{source}/acc/mean@{n}"] = figures.avg
            found[f"val-core/{source}/acc/pass@{n}"] = figures.pass_at[n]
            for k, value in figures.pass_at.items():
                if 1 < k < n:
                    found[f"val-aux/{source}/acc/pass@{k}"] = value
            if figures.majority is not None and n > 1:
                found[f"val-core/{source}/acc/maj@{n}/mean"] = figures.majority
            found[f"val-aux/{source}/response_length/mean"] = figures.tokens
            found[f"val-aux/{source}/response_length/clip_ratio"] = figures.truncated
        return found


def summarise(samples: Iterable[Sample]) -> Summary:
    """Return the figures of at least one prompt's samples; every prompt must have as many."""
    groups: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.prompt_index].append(sample)
    sources: dict[str, list[list[Sample]]] = defaultdict(list)
    for group in groups.values():
        sources[group[0].data_source].append(group)
    return Summary(
        overall=_figures(list(groups.values())),
        sources={source: _figures(prompts) for source, prompts in sources.items()},
    )


def _figures(prompts: Sequence[Sequence[Sample]]) -> Figures:
    n = len(prompts[0])
    if any(len(prompt) != n for prompt in prompts):
        raise ValueError("every prompt must have the same number of samples")
    right = [sum(sample.correct for sample in prompt) for prompt in prompts]
    shares = [c / n for c in right]
    votes = [prompt[0].majority for prompt in prompts]
    everything = [sample for prompt in prompts for sample in prompt]
    return Figures(
        prompts=len(prompts),
        n=n,
        avg=mean(shares),
        stderr=standard_error(shares),
        pass_at={k: mean([pass_at_k(n, c, k) for c in right]) for k in pass_ks(n)},
        majority=None if None in votes else mean([vote for vote in votes if vote is not None]),
        score=mean([sample.score for sample in everything]),
        tokens=mean([float(sample.tokens) for sample in everything]),
        truncated=mean([float(not sample.finished) for sample in everything]),
        failures=sum(sample.failure is not None for sample in everything),
    )
