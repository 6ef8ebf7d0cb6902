"""Token credit of a run, whatever the engine: from what is known of a step's tokens to their weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archer.algorithms.token_credit.base import CREDIT_MODES, CreditInputs, Side
from archer.algorithms.token_credit.config import TokenCreditConfig
from archer.algorithms.token_credit.scored import ScoreDefinition
from archer.algorithms.token_credit.shaping import permuted, shaped, strength_at
from archer.errors import ArcherError
from archer.generation.sampling import stream
from archer.influence import Group, InfluenceConfig
from archer.influence.head import HeadSketch, head_scores
from archer.plugins import is_reference
from archer.training.metrics import TokenSums

PREFIX = "token_credit/"


@dataclass(frozen=True)
class Credit:
    """What credit gave each token of some responses."""

    weights: Tensor  # [n, L] factors of the advantages, zero outside the mask
    scores: Tensor | None = None  # [n, L] influence that they were made from, NaN where there was none


class TokenCredit:
    """The chosen mode with its settings."""

    def __init__(self, config: TokenCreditConfig, seed: int) -> None:
        self.config = config
        self._seed = seed
        self._plugin = CREDIT_MODES.find(config.mode)
        self._settings = self._plugin.settings_from(config)
        facts = self._plugin.facts
        meant: Side = facts.get("side", "rejected")
        self.side: Side = meant if config.responses == "auto" else config.responses
        self.keep_sum: bool = facts.get("keep_sum", False) if config.keep_sum is None else config.keep_sum
        defined = facts.get("scores")
        self.scores: ScoreDefinition | None = None if defined is None else defined(self._settings)
        self.needs_mistakes: bool = facts.get("mistakes", False)

    @property
    def active(self) -> bool:
        """Whether tokens are weighed at all."""
        return self.config.mode != "none"

    def describe(self) -> str:
        """What is weighed and what that costs, to print at a run's start; empty without a mode."""
        if not self.active:
            return ""
        whose = {"both": "all"}.get(self.side, self.side)
        lines = [f"token credit: {self.config.mode} weighs the tokens of {whose} responses"]
        if self.scores is not None and self.scores.of == "head":
            lines.append("by the influence of the output head, in closed form: no backward is needed")
        elif self.scores is not None:
            lines.append(
                "by the influence of linear modules, which takes a forward and a backward of its own over "
                "the groups with both verdicts: up to as long again as the update"
            )
        if self.config.permute:
            lines.append("shuffled within each response: the control")
        if self.config.anneal_steps:
            lines.append(f"fading out after {self.config.anneal_steps} steps")
        return ", ".join(lines)

    def acts_at(self, step: int) -> bool:
        """Whether tokens are weighed in a step: not once the strength has fallen to none."""
        return self.active and self.strength(step) > 0

    def strength(self, step: int) -> float:
        """How far weights go from 1 towards the mode's in a step."""
        return strength_at(step, self.config.strength, self.config.anneal_steps)

    def weigh(self, inputs: CreditInputs, step: int, rows: Sequence[int]) -> Credit:
        """Return the weights of some responses; `rows` are their numbers in the step, which name streams."""
        raw = self._plugin.function(inputs, self._settings)
        acts = inputs.of_side(self.side)
        if is_reference(self.config.mode):
            self._check_own(raw, inputs.mask, acts)
        weights = shaped(
            raw.detach().to(inputs.advantages),
            inputs.mask,
            acts,
            self.strength(step),
            self.keep_sum,
            self.config.min_weight,
            self.config.max_weight,
        )
        if self.config.permute:
            cpu = torch.device("cpu")
            streams = [stream(cpu, self._seed, "token-credit", step, row) for row in rows]
            weights = permuted(weights, inputs.entropy, inputs.mask, self.config.permute_entropy, streams)
        return Credit(weights, inputs.scores)

    def _check_own(self, raw: Any, mask: Tensor, acts: Tensor) -> None:
        """Refuse what a user's own mode must not return."""
        key = f"algorithm.token_credit.mode={self.config.mode} returned"
        if not isinstance(raw, Tensor):
            raise ArcherError(f"{key} {type(raw).__name__}; expected a tensor of weights, one for each token")
        if raw.shape != mask.shape:
            raise ArcherError(
                f"{key} weights of shape {list(raw.shape)}; expected one for each token, {list(mask.shape)}"
            )
        used = raw.to(mask.device)[mask & acts[:, None]]
        wrong = used[~(used.isfinite() & (used >= 0))]
        if len(wrong):
            raise ArcherError(
                f"{key} {len(wrong)} weights of {len(used)} that are negative or not finite, the first of "
                f"them {wrong[0].item()}; expected finite weights, at least 0 (clamp them if that is meant)"
            )

    def sketch(self, head: torch.nn.Module) -> HeadSketch:
        """The projections of the head's gradients, for a mode that reads its influence."""
        assert self.scores is not None
        if not isinstance(head, torch.nn.Linear):
            raise ArcherError(
                f"algorithm.token_credit.mode={self.config.mode} reads the influence of the output head, "
                f"which is no plain linear layer here but {type(head).__name__}: leave adapters off the "
                "head, or choose another mode, influence for example"
            )
        vocabulary, hidden = head.weight.shape
        return HeadSketch.of(hidden, vocabulary, self.scores.projection_dim)

    def head_scores(self, u: Tensor, v: Tensor, mask: Tensor, groups: Sequence[Group]) -> Tensor:
        """Influence [n, L] from the head's factors [n, L, k]; groups name rows within the n."""
        assert self.scores is not None
        return head_scores(u, v, mask, groups, self.scores.hessian_mode, self.scores.anchors)

    def tracer_config(self) -> InfluenceConfig:
        """How a tracer of any modules scores for a mode that reads their influence."""
        assert self.scores is not None
        dim = self.scores.projection_dim
        return InfluenceConfig(
            enable=True,
            hessian_mode=self.scores.hessian_mode,
            output_function="training_loss",  # the loss of its pass is -sum_t log π(y_t)
            contrastive_agg="mean",
            exclude_self_response=True,
            reg_rule="kernel_trace",
            module_name_filter=self.scores.module_name_filter,
            projection="rademacher" if dim else "none",
            projection_dim_factor=1,
            max_proj_vector_sum=2 * dim,
            max_hessian_dim=dim * dim,
        )


def credit_sums(inputs: CreditInputs, weights: Tensor, rows: Tensor, sums: TokenSums) -> None:
    """Add what is measured of some responses; the metric is the mean over all tokens of a step.

    weight_mean, weight_accepted, weight_rejected    of all tokens and by verdict
    spared_share                                     weight below 1, of the tokens that credit acts on
    entropy_spared, entropy_kept                     of those and of the others it acts on
    scored_share                                     with a score, of all tokens

    rows: [n] bool, the responses that credit acts on
    """
    mask = inputs.mask
    sums.add("weight_mean", weights, mask)
    sums.add("weight_accepted", weights, mask & inputs.of_side("accepted")[:, None])
    sums.add("weight_rejected", weights, mask & inputs.rejected[:, None])
    acted, spared = mask & rows[:, None], weights < 1
    sums.add("spared_share", spared.float(), acted)
    sums.add("entropy_spared", inputs.entropy, acted & spared)
    sums.add("entropy_kept", inputs.entropy, acted & ~spared)
    if inputs.scores is not None:
        sums.add("scored_share", inputs.scores.isfinite().float(), mask)


def credit_metrics(sums: TokenSums, strength: float) -> dict[str, float]:
    """The metrics of a step in which credit acted."""
    means = {f"{PREFIX}{name}": value for name, value in sums.means().items()}
    return means | {f"{PREFIX}strength": strength}
