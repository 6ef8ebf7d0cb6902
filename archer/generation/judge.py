"""From sampled tokens to rewards."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archer.errors import ArcherError
from archer.generation.batch import Responses
from archer.rewards import RewardRequest, RewardResult, RewardScorer, overlong_penalty
from archer.rewards.config import OverlongBufferConfig, RewardConfig


@dataclass(frozen=True)
class Judged:
    """Responses with their rewards. Responses of one prompt are consecutive and share a group number."""

    responses: Responses
    groups: Tensor  # [N] int64
    results: tuple[RewardResult, ...]  # N
    penalties: Tensor  # [N] float32: shaping added to the score (overlong), at most 0

    @property
    def correct(self) -> Tensor:
        """[N] bool: the raw verdict, before any shaping."""
        return torch.tensor([result.correct for result in self.results], dtype=torch.bool)

    @property
    def scores(self) -> Tensor:
        """[N] float32: score and shaping."""
        return torch.tensor([result.score for result in self.results], dtype=torch.float32) + self.penalties

    def rows(self, index: list[int]) -> "Judged":
        """Return the chosen rows."""
        return Judged(
            responses=self.responses.rows(index),
            groups=self.groups[index],
            results=tuple(self.results[i] for i in index),
            penalties=self.penalties[index],
        )


class Judge:
    """Decodes responses, has them verified and adds the overlong penalty."""

    def __init__(
        self, scorer: RewardScorer, tokenizer: Any, overlong: OverlongBufferConfig, max_response_length: int
    ) -> None:
        self.scorer = scorer
        self.tokenizer = tokenizer
        self.overlong = overlong
        self.max_response_length = max_response_length

    def judge(self, responses: Responses, groups: Tensor) -> Judged:
        """Verify every response, and penalise the overlong ones where that is switched on."""
        _, results = self.verdicts(responses)
        penalties = torch.zeros(len(responses))
        if self.overlong.enable:
            penalties = torch.tensor([self._penalty(length) for length in responses.lengths.tolist()])
        return Judged(responses, groups, tuple(results), penalties)

    def verdicts(self, responses: Responses) -> tuple[Sequence[str], list[RewardResult]]:
        """Return the text of every response and its raw verdict: what evaluations measure."""
        texts = self.decode(responses)
        requests = [
            RewardRequest(prompt.data_source, text, prompt.ground_truth, prompt.extra_info)
            for prompt, text in zip(responses.prompts, texts, strict=True)
        ]
        return texts, self.scorer.score(requests)

    def decode(self, responses: Responses) -> Sequence[str]:
        """Return the text of every response, special tokens left out."""
        rows = [tokens[mask].tolist() for tokens, mask in zip(responses.tokens, responses.mask, strict=True)]
        return self.tokenizer.batch_decode(rows, skip_special_tokens=True)

    def _penalty(self, length: int) -> float:
        return overlong_penalty(
            length, self.max_response_length, self.overlong.len, self.overlong.penalty_factor
        )


def refuse_unjudged(failures: Sequence[str | None], reward: RewardConfig) -> None:
    """Stop a run none of whose first responses could be judged: it would train on nothing, to its end.

    failures: of every response of the first step, None where it was judged.
    """
    if not failures or not all(failures):
        return
    own = reward.custom_reward_function.path
    whose = f"the reward function in {own}" if own else "the reward"
    todo = f"raise reward.timeout_s={reward.timeout_s:g}" if failures[0] == "timeout" else f"correct {whose}"
    raise ArcherError(
        f"None of the {len(failures)} responses of the first step could be judged, so there is nothing to "
        f"learn from. The first failure: {failures[0]}. Please {todo}, and run the same command again."
    )
