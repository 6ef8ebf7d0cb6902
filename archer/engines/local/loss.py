"""What a step learns from, and the part of it that the loss of a micro-batch is given."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from archer.algorithms.aggregation import LossTotals
from archer.algorithms.policy_losses.base import LossInputs
from archer.algorithms.token_classes import reasoning_tokens
from archer.config.actor import ActorConfig
from archer.engines.local.credit import StepCredit
from archer.generation.batch import MicroBatch, Responses
from archer.generation.judge import Judged
from archer.generation.policy import TokenStats
from archer.influence.factors import send
from archer.training.metrics import TokenSums
from archer.training.token_loss import TokenLoss


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

    @cached_property
    def loss_mask(self) -> Tensor:
        """[N, L] bool: the response tokens that are learnt from."""
        return self.judged.loss_mask


class MicroBatchLoss:
    """Computes a micro-batch's share of the loss of its mini-batch."""

    def __init__(self, config: ActorConfig, horizon: int) -> None:
        self.config = config
        self._loss = TokenLoss(config, horizon)

    def __call__(
        self,
        experience: Experience,
        batch: MicroBatch,
        stats: TokenStats,
        totals: LossTotals,
        sums: TokenSums,
        terms: dict[str, Tensor],
        credit: StepCredit | None = None,
    ) -> Tensor:
        """Return policy loss + KL - entropy bonus; adds their values to `terms`, token values to `sums`."""
        reference = experience.ref_log_probs
        return self._loss(
            self._inputs(experience, batch, stats, credit),
            stats.entropy,
            None if reference is None else take(reference, batch),
            totals,
            sums,
            terms,
        )

    def _inputs(
        self, experience: Experience, batch: MicroBatch, stats: TokenStats, credit: StepCredit | None
    ) -> LossInputs:
        """Gather what the policy loss is given. Without old log-probs this pass is the old policy."""
        old, entropy = stats.log_probs.detach(), stats.entropy.detach()
        if experience.old_log_probs is not None:
            old = take(experience.old_log_probs, batch)
        if experience.old_entropy is not None:
            entropy = take(experience.old_entropy, batch)
        weights = experience.rollout_is_weights
        mask, advantages = take(experience.loss_mask, batch), take(experience.advantages, batch)
        if credit is not None:
            advantages = advantages * credit.of_batch(batch, stats, advantages)
        return LossInputs(
            log_probs=stats.log_probs,
            old_log_probs=old,
            advantages=advantages,
            mask=mask,
            reasoning=reasoning_tokens(entropy, mask, self.config.token_entropy_quantile),
            rollout_is_weights=None if weights is None else take(weights, batch),
        )


def take(values: Tensor, batch: MicroBatch) -> Tensor:
    """Return the micro-batch's rows of an [N, L] tensor, cut to its longest response."""
    return send(values[batch.rows, : batch.mask.shape[1]], batch.mask.device)
