"""What Archer adds to another trainer."""

from dataclasses import dataclass, field
from pathlib import Path

from archer.algorithms.token_credit.config import TokenCreditConfig, token_credit_config
from archer.influence import InfluenceConfig

READING = InfluenceConfig(
    enable=True,
    output_function="log_prob",
    exclude_self_response=True,
    contrastive_agg="mean",
    reg_rule="kernel_trace",
)
"""Influence for reading: a positive score pulls towards the accepted responses, and away from the rejected."""


@dataclass(frozen=True)
class Tracing:
    """What is traced of a trainer that samples and judges responses, and what credit its tokens are paid.

    Attributes:
        output_dir: the folder that `archer view` is given; None: the trainer's own `args.output_dir`.
        entropy_trace: write every response token of every step to `entropy_trace/`.
        write_every: every how many steps.
        influence: write the groups with both verdicts to `influence_trace/`, scored in this way; None: do not.
        credit: what each token is paid of its response's advantage, as `algorithm.token_credit`.
        accepted_by: the reward function whose value says what is right, by its name. Needed where there are
            several; shaped rewards say nothing about it.
        accepted_above: a response is accepted where that value is above this.
        truth_column: the column of the dataset that has the right answer, for the trace; None: `ground_truth`,
            `answer` or `solution`, whichever there is.
        seed: of the permuted control of token credit.
    """

    output_dir: str | Path | None = None
    entropy_trace: bool = True
    write_every: int = 1
    influence: InfluenceConfig | None = READING
    credit: TokenCreditConfig = field(default_factory=token_credit_config)
    accepted_by: str | None = None
    accepted_above: float = 0.0
    truth_column: str | None = None
    seed: int = 0
