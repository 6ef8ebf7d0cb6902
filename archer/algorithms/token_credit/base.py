"""Token credit: how much of its response's advantage each token is paid.

A mode gives every token a weight; the loss multiplies the token's advantage by it. Aggregation, clipping and
KL are untouched. One file a mode, and a user's own as `path/to/file.py:function`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from archer.errors import ArcherError
from archer.plugins import PluginTable

Side = Literal["rejected", "accepted", "both"]


@dataclass(frozen=True)
class CreditInputs:
    """Tokens of n whole responses, the longest L tokens long, under the policy before the update.

    `scores` and `mistakes` are None unless the mode asks for them.
    """

    log_probs: Tensor  # [n, L] of the sampled tokens
    entropy: Tensor  # [n, L] in nats
    advantages: Tensor  # [n, L]
    mask: Tensor  # [n, L] bool
    accepted: Tensor  # [n] bool: the raw verdict
    judged: Tensor  # [n] bool: the others have no verdict, and keep weight 1
    scores: Tensor | None = None  # [n, L] influence, NaN where there is none
    mistakes: Tensor | None = None  # [n, L] bool: the first wrong token, where the task knows it

    def __post_init__(self) -> None:
        per_token = (self.log_probs, self.entropy, self.advantages, self.mask, self.scores, self.mistakes)
        shapes = {tuple(x.shape) for x in per_token if x is not None}
        rows = {tuple(x.shape) for x in (self.accepted, self.judged)}
        if len(shapes) != 1 or rows != {tuple(self.mask.shape[:1])}:
            raise ValueError(f"expected tensors that are all [n, L], verdicts [n]; got {shapes} and {rows}")

    @property
    def rejected(self) -> Tensor:
        """[n] bool."""
        return self.judged & ~self.accepted

    def of_side(self, side: Side) -> Tensor:
        """[n] bool: the judged responses of a verdict."""
        return {
            "rejected": self.rejected,
            "accepted": self.judged & self.accepted,
            "both": self.judged,
        }[side]

    @property
    def known_scores(self) -> Tensor:
        """[n, L] the scores; 0, which speaks for neither side, where there is none."""
        if self.scores is None:
            raise ArcherError(
                "a mode of token credit that reads scores says which: @reads(Settings, scores=function), as "
                "in examples/my_credit.py"
            )
        return self.scores.nan_to_num(nan=0.0)


CreditMode = Callable[[CreditInputs, Any], Tensor]
"""(inputs, the settings it declares) -> weights [n, L], at least 0. Those outside the mask, and those of
responses that the credit does not act on, are not looked at."""

CREDIT_MODES = PluginTable[CreditMode](
    "algorithm.token_credit.mode", package="archer.algorithms.token_credit"
)
"""All modes by name. What one says of itself:

side      the responses that it is meant for ("rejected" unless it says another)
keep_sum  whether the weights of a response are made to have mean 1 (no, unless it says so)
scores    reads influence: a function of the mode's settings that says which (`scored.ScoreDefinition`)
mistakes  reads the first wrong token of each response, which only the built-in task knows
"""
