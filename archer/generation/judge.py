"""From sampled tokens to rewards."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from archer.errors import ArcherError
from archer.generation.batch import Responses
from archer.rewards import RewardRequest, RewardResult, RewardScorer, overlong_penalty
from archer.rewards.config import OverlongBufferConfig, RewardConfig
from archer.rewards.rules import NO_OPINION


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
        """[N] float32: score and shaping; 0 where there is no judgement."""
        scores = torch.tensor([result.score for result in self.results], dtype=torch.float32) + self.penalties
        return torch.where(self.unjudged, 0, scores)

    @property
    def unjudged(self) -> Tensor:
        """[N] bool: judging failed, so that the response has no reward."""
        return torch.tensor([result.unjudged for result in self.results], dtype=torch.bool)

    @property
    def loss_mask(self) -> Tensor:
        """[N, L] bool: the response tokens that are learnt from; none of a response without a verdict."""
        return self.responses.mask & ~self.unjudged[:, None]

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
        prompts = list({prompt.token_ids: None for prompt in responses.prompts})
        decoded = self.tokenizer.batch_decode([list(ids) for ids in prompts], skip_special_tokens=False)
        read = dict(zip(prompts, decoded, strict=True))
        requests = [
            RewardRequest(
                prompt.data_source,
                text,
                prompt.ground_truth,
                prompt.extra_info,
                prompt=read[prompt.token_ids],
                messages=prompt.messages,
            )
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


class Verdict(Protocol):
    """Whatever says of a response why there is no judgement, if so."""

    @property
    def failure(self) -> str | None:
        """None: it was judged."""
        ...


def failures_of(results: Iterable[Verdict]) -> list[str]:
    """What kept each unjudged response from being judged, in order."""
    return [result.failure for result in results if result.failure is not None]


def refuse_outage(
    failures: Sequence[str], total: int, reward: RewardConfig, where: str, again: str = "run again"
) -> None:
    """Stop where more than `reward.max_failed_share` of the responses could not be judged, or all of them.

    Fewer are left out of what is learnt and measured. More say that the reward itself is broken, and a run
    that went on would learn from whatever the reward still happens to judge. A function that has no opinion
    (None) has not failed: only when nothing at all is judged does that stop a run.

    failures: what kept each unjudged response from being judged
    total:    responses, the judged ones included
    where:    what they belong to, for the message: "step 7"
    again:    what to do once the cause is removed
    """
    broken = [failure for failure in failures if failure != NO_OPINION]
    if len(failures) < max(1, total) and len(broken) / max(1, total) <= reward.max_failed_share:
        return
    failures = broken or failures
    own = [function.path for function in reward.functions()]
    todo = f"correct {f'the reward function in {own[0]}' if own else 'the reward'}"
    if failures[0] == "timeout":
        todo = f"raise reward.timeout_s={reward.timeout_s:g}, or make judging faster"
    raise ArcherError(
        f"{len(failures)} of {total} responses of {where} could not be judged; at most "
        f"reward.max_failed_share={reward.max_failed_share:g} of them may fail. "
        f"The first failure: {failures[0]}. Please {todo}, and {again}."
    )
