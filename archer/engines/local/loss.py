"""The loss of a micro-batch: policy loss, KL to the reference, entropy bonus, and what is measured."""

from torch import Tensor

from archer.algorithms.aggregation import LossTotals, aggregate
from archer.algorithms.kl import kl_estimator
from archer.algorithms.policy_losses import LossInputs, class_masks, loss_marks, policy_loss
from archer.algorithms.token_classes import reasoning_tokens
from archer.config.model import ActorConfig
from archer.engines.local.batch import MicroBatch
from archer.engines.local.experience import Experience
from archer.engines.local.policy import TokenStats
from archer.engines.local.sums import TokenSums
from archer.engines.loss_settings import loss_settings, weighted_kl


class MicroBatchLoss:
    """Computes a micro-batch's share of the loss of its mini-batch."""

    def __init__(self, config: ActorConfig, horizon: int) -> None:
        self.config = config
        self.horizon = horizon
        self._kl = kl_estimator(config.kl_loss_type)
        self._policy_loss = policy_loss(loss_settings(config))

    def __call__(
        self,
        experience: Experience,
        batch: MicroBatch,
        stats: TokenStats,
        totals: LossTotals,
        sums: TokenSums,
        terms: dict[str, float],
    ) -> Tensor:
        """Return policy loss + KL - entropy bonus; adds their values to `terms`, token values to `sums`."""
        config = self.config

        def term(name: str, per_token: Tensor) -> Tensor:
            value = self._aggregate(per_token, batch, totals)
            terms[name] = terms.get(name, 0.0) + float(value.detach())
            return value

        inputs = self._inputs(experience, batch, stats)
        assert inputs.reasoning is not None
        classes = class_masks(inputs.reasoning, batch.mask)
        outputs = self._policy_loss(inputs)
        loss = term("pg_loss", outputs.per_token)
        for name, mark in loss_marks(inputs, outputs).items():
            sums.add(name, mark.values, mark.over)
        sums.add("entropy", stats.entropy, batch.mask)
        for name, tokens in classes.items():
            sums.add(f"entropy_{name}", stats.entropy, tokens)
        if config.use_kl_loss:
            assert experience.ref_log_probs is not None
            kl = self._kl(stats.log_probs, take(experience.ref_log_probs, batch))
            term("kl_loss", kl)
            loss = loss + self._aggregate(weighted_kl(config, kl, inputs.reasoning), batch, totals)
            for name, tokens in classes.items():
                sums.add(f"kl_{name}", kl, tokens)
        if config.entropy_coeff != 0:
            loss = loss - config.entropy_coeff * term("entropy_loss", stats.entropy)
        return loss

    def _inputs(self, experience: Experience, batch: MicroBatch, stats: TokenStats) -> LossInputs:
        """Gather what the policy loss is given. Without old log-probs this pass is the old policy."""
        old, entropy = stats.log_probs.detach(), stats.entropy.detach()
        if experience.old_log_probs is not None:
            old = take(experience.old_log_probs, batch)
        if experience.old_entropy is not None:
            entropy = take(experience.old_entropy, batch)
        weights = experience.rollout_is_weights
        return LossInputs(
            log_probs=stats.log_probs,
            old_log_probs=old,
            advantages=take(experience.advantages, batch),
            mask=batch.mask,
            reasoning=reasoning_tokens(entropy, batch.mask, self.config.token_entropy_quantile),
            rollout_is_weights=None if weights is None else take(weights, batch),
        )

    def _aggregate(self, per_token: Tensor, batch: MicroBatch, totals: LossTotals) -> Tensor:
        return aggregate(per_token, batch.mask, self.config.loss_agg_mode, totals, self.horizon)


def take(values: Tensor, batch: MicroBatch) -> Tensor:
    """Return the micro-batch's rows of an [N, L] tensor, cut to its longest response."""
    return values[batch.rows, : batch.mask.shape[1]].to(batch.mask.device)
