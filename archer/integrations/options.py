"""What Archer adds to another trainer."""

from dataclasses import dataclass, field
from pathlib import Path

from archer.algorithms.token_credit.config import TokenCreditConfig, token_credit_config
from archer.influence import InfluenceConfig

READING = InfluenceConfig.of_preset("signed", enable=True)
"""Influence for reading: a positive score pulls towards the accepted responses, away from the rejected."""


@dataclass(frozen=True)
class Tracing:
    """What is traced of a trainer that samples and judges responses, and what credit its tokens are paid.

    Attributes:
        output_dir: the folder that `archer view` is given; None: the trainer's own `args.output_dir`.
        entropy_trace: write every response token of every step to `entropy_trace/`.
        write_every: every how many steps; `influence` has a `write_every` of its own, and is captured in the
            steps that it writes.
        influence: how the groups with both verdicts are scored for `influence_trace/`; None: not at all.
        credit: what each token is paid of its response's advantage, as `algorithm.token_credit`.
        accepted_by: the name of the reward function whose value says what is right. Needed where there are
            several; shaped rewards say nothing about it.
        accepted_above: a response is accepted where that value is above this.
        truth_column: the column of the dataset that has the right answer, for the trace; None:
            `ground_truth`, `answer` or `solution`, whichever there is.
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

    def __post_init__(self) -> None:
        if self.output_dir is not None:  # another process may have another working folder
            object.__setattr__(self, "output_dir", Path(self.output_dir).absolute())
