"""The loss of a micro-batch, the same for both engines: policy loss, KL to the reference, entropy bonus."""

from torch import Tensor

from archer.algorithms.aggregation import LossTotals, aggregate
from archer.algorithms.kl import kl_estimator
from archer.algorithms.policy_losses.base import POLICY_LOSSES, LossInputs, bound_loss
from archer.algorithms.policy_losses.measures import loss_measures
from archer.algorithms.token_classes import class_masks
from archer.config.actor import ActorConfig
from archer.training.metrics import TokenSums


class TokenLoss:
    """Computes a micro-batch's share of the loss of its mini-batch, and what is measured about it."""

    def __init__(self, config: ActorConfig, horizon: int) -> None:
        self.config = config
        self.horizon = horizon
        self._kl = kl_estimator(config.kl_loss_type)
        mode = config.policy_loss.loss_mode
        self._policy_loss = bound_loss(mode, config)
        plugin = POLICY_LOSSES.find(mode)
        self._settings = plugin.settings_from(config)
        self._kl_coefficient = plugin.facts.get("kl_coefficient")

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
        for name, measure in loss_measures(inputs, outputs).items():
            sums.add(name, measure.values, measure.over)
        sums.add("entropy", entropy, mask)
        for name, tokens in classes.items():
            sums.add(f"entropy_{name}", entropy, tokens)
        if config.use_kl_loss:
            assert ref_log_probs is not None
            kl = self._kl(inputs.log_probs, ref_log_probs)
            term("kl_loss", kl)
            loss = loss + total(self._coefficient(inputs.reasoning, kl) * kl)
            for name, tokens in classes.items():
                sums.add(f"kl_{name}", kl, tokens)
        if config.entropy_coeff != 0:
            loss = loss - config.entropy_coeff * term("entropy_loss", entropy)
        return loss

    def _coefficient(self, reasoning: Tensor, kl: Tensor) -> Tensor | float:
        """The weight of the KL in the loss: `kl_loss_coef`, unless the policy loss has one for each token."""
        if self._kl_coefficient is None:
            return self.config.kl_loss_coef
        return self._kl_coefficient(self._settings, self.config.kl_loss_coef, reasoning, kl)
