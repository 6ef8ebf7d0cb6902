"""The loss of a micro-batch, the same for both engines: policy loss, KL to the reference, entropy bonus."""

from torch import Tensor

from archer.algorithms.aggregation import LossTotals, aggregate
from archer.algorithms.kl import kl_estimator
from archer.algorithms.policy_losses import LossInputs, class_masks, loss_marks, policy_loss
from archer.config.model import ActorConfig
from archer.engines.local.sums import TokenSums
from archer.engines.loss_settings import loss_settings, weighted_kl


class TokenLoss:
    """Computes a micro-batch's share of the loss of its mini-batch, and what is measured about it."""

    def __init__(self, config: ActorConfig, horizon: int) -> None:
        self.config = config
        self.horizon = horizon
        self._kl = kl_estimator(config.kl_loss_type)
        self._policy_loss = policy_loss(loss_settings(config))

    def __call__(
        self,
        inputs: LossInputs,
        entropy: Tensor,  # [n, L] of the policy that is trained
        ref_log_probs: Tensor | None,  # [n, L], where a KL loss needs them
        totals: LossTotals,
        sums: TokenSums,
        terms: dict[str, Tensor],
    ) -> Tensor:
        """Return policy loss + KL - entropy bonus; adds their values to `terms`, token values to `sums`."""
        config, mask = self.config, inputs.mask
        assert inputs.reasoning is not None
        classes = class_masks(inputs.reasoning, mask)

        def total(per_token: Tensor) -> Tensor:
            return aggregate(per_token, mask, config.loss_agg_mode, totals, self.horizon)

        def term(name: str, per_token: Tensor) -> Tensor:
            value = total(per_token)
            terms[name] = terms[name] + value.detach() if name in terms else value.detach()
            return value

        outputs = self._policy_loss(inputs)
        loss = term("pg_loss", outputs.per_token)
        for name, mark in loss_marks(inputs, outputs).items():
            sums.add(name, mark.values, mark.over)
        sums.add("entropy", entropy, mask)
        for name, tokens in classes.items():
            sums.add(f"entropy_{name}", entropy, tokens)
        if config.use_kl_loss:
            assert ref_log_probs is not None
            kl = self._kl(inputs.log_probs, ref_log_probs)
            term("kl_loss", kl)
            loss = loss + total(weighted_kl(config, kl, inputs.reasoning))
            for name, tokens in classes.items():
                sums.add(f"kl_{name}", kl, tokens)
        if config.entropy_coeff != 0:
            loss = loss - config.entropy_coeff * term("entropy_loss", entropy)
        return loss
