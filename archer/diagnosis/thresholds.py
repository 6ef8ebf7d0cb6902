"""Where a figure becomes a finding, each number with its reason.

The figures called healthy are those of ten runs of the embedded default (`benchmarks/diagnose_planted.py`)
and of a run of a 0.5 B model on GSM8K.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """Numbers that the rules compare with."""

    baseline: int = 3  # first steps of a run that later ones are compared with: one step is too noisy
    lasting: int = 3  # steps in a row a state must last; a single step may be chance
    back: int = 5  # steps between the last ones and those they are compared with, for a sudden change
    entropy_collapse: float = 0.35  # of the entropy before; healthy runs keep 0.49 over five steps
    entropy_explosion: float = 2.5  # times the entropy before; healthy runs stay below 1.7
    accuracy_gain: float = 0.1  # a run that gained this much is learning: its entropy may move
    solved: float = 0.9  # accuracy at which low entropy and groups all right are what one wants
    mismatch_kl: float = 0.01  # k3 of sampler and training; healthy: 0.0002 in bfloat16, 1e-12 in float32
    mismatch_probs: float = 0.03  # mean |difference| of probabilities, where no k3 is known
    truncated: float = 0.25  # share of responses cut off; healthy: at most 0.09
    longer: float = 1.2  # times the length before, to be called growth
    truncated_rise: float = 0.12  # of the share, where responses grow longer too
    degenerate: float = 0.8  # share of groups without a contrast; healthy and unsolved: at most 0.73
    unjudged: float = 0.1  # share of responses without a verdict; single timeouts are usual
    outage: float = 0.5  # share at which one step is enough
    doubtful: float = 0.2  # share of accepted responses that do not hold the expected number
    doubtful_least: int = 4  # of them, so that a handful of accepted responses is no evidence
    kl: float = 0.5  # nats a token to the reference; runs that keep their language stay below
    update_kl: float = 0.1  # nats a token between the policy that sampled and the updated one
    clipped: float = 0.2  # share of tokens; clip fractions of healthy runs are a few per cent
    dead_lr: float = 1e-10  # nothing that is trained in float32 moves below
    dead_gradient: float = 1e-8  # norm
    duplicates: float = 0.25  # share of a step's groups whose prompt another group of the step has
    looping: float = 0.2  # share of responses that end in a loop; healthy: at most 0.02
    loop_tokens: int = 24  # the shortest loop, at least three rounds; shorter ones occur in tables
