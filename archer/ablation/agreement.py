"""How alike the cases of a grid order the tokens of the same rollouts."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from archer.ablation.rollouts import ScoredStep, SharedTokens, shared_tokens
from archer.ablation.statistics import centred_ranks, rank_correlations


@dataclass(frozen=True)
class Agreement:
    """Spearman's rank correlation of the influence that two cases gave the same tokens."""

    one: str
    other: str
    steps: int
    """Steps whose rollouts are the same, token for token."""
    different_steps: int
    """Steps that both wrote, but over different tokens: not compared."""
    tokens: int
    per_step: float | None
    """Over all tokens of a step; the mean over steps. None where nothing could be compared."""
    per_step_range: tuple[float, float] | None
    """Smallest and largest of the steps."""
    per_prompt: float | None
    """Over the tokens of one prompt's responses; the mean over the prompts of all steps."""
    prompts: int


class _Sums:
    """What is gathered of one pair of cases, step after step."""

    def __init__(self) -> None:
        self.different, self.tokens = 0, 0
        self.steps: list[float] = []
        self.prompts = np.empty(0)

    def result(self, one: str, other: str) -> Agreement:
        return Agreement(
            one=one,
            other=other,
            steps=len(self.steps),
            different_steps=self.different,
            tokens=self.tokens,
            per_step=float(np.mean(self.steps)) if self.steps else None,
            per_step_range=(min(self.steps), max(self.steps)) if self.steps else None,
            per_prompt=float(self.prompts.mean()) if self.prompts.size else None,
            prompts=int(self.prompts.size),
        )


class _Ranks:
    """Ranks within one step; a case is sorted once for all pairs over the same tokens."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes, bool], NDArray[np.float64]] = {}

    def correlations(
        self, names: tuple[str, str], shared: SharedTokens, by_prompt: bool
    ) -> NDArray[np.float64]:
        """Spearman's correlation over all tokens, [1], or of each prompt, [prompts]."""
        group = shared.group if by_prompt else np.zeros_like(shared.group)
        for name, scores in zip(names, shared.scores, strict=True):
            key = (name, shared.selection, by_prompt)
            if key not in self._known:
                self._known[key] = centred_ranks(scores, group)
        one, other = (self._known[name, shared.selection, by_prompt] for name in names)
        return rank_correlations(one, other, group)


def agreements(cases: Mapping[str, Mapping[int, ScoredStep]]) -> list[Agreement]:
    """Compare every pair of cases (name -> step -> scores) on the steps that both hold."""
    sums = {pair: _Sums() for pair in combinations(cases, 2)}
    for step in sorted({step for steps in cases.values() for step in steps}):
        present = {name: steps[step] for name, steps in cases.items() if step in steps}
        ranks = _Ranks()
        for pair in combinations(present, 2):
            gathered = sums[pair]
            shared = shared_tokens(present[pair[0]], present[pair[1]])
            if shared is None:
                gathered.different += 1
                continue
            gathered.tokens += len(shared.group)
            gathered.steps += ranks.correlations(pair, shared, by_prompt=False).tolist()
            of_prompts = ranks.correlations(pair, shared, by_prompt=True)
            gathered.prompts = np.concatenate([gathered.prompts, of_prompts])
    return [gathered.result(*pair) for pair, gathered in sums.items()]
