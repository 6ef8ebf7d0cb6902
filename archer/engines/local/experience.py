"""What one step learns from: responses, their verdicts, and what the update is given."""

from dataclasses import dataclass

import torch
from torch import Tensor

from archer.engines.local.batch import Responses
from archer.rewards.types import RewardResult


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


@dataclass(frozen=True)
class Experience:
    """A step's training data. All [N, L] tensors are float32 on the CPU, zero outside the mask.

    `old_log_probs` and `old_entropy` are None where the update is on-policy (one epoch, one mini-batch): its
    own forward pass then is the old policy, and another would compute the same numbers twice.
    """

    judged: Judged
    advantages: Tensor  # [N, L]
    old_log_probs: Tensor | None  # [N, L]
    ref_log_probs: Tensor | None  # [N, L], when a KL loss needs them
    old_entropy: Tensor | None = None  # [N, L], with old_log_probs
    rollout_is_weights: Tensor | None = None  # [N, L], when the rollout's mismatch is corrected

    @property
    def responses(self) -> Responses:
        """The sampled responses."""
        return self.judged.responses
