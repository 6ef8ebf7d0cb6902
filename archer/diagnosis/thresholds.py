"""Where a figure becomes a finding, each number with its reason."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """Numbers that the rules compare with."""

    baseline: int = 3  # first steps of a run that later ones are compared with: one step is too noisy
    lasting: int = 3  # steps in a row a state must last; a single step may be chance
    entropy_collapse: float = (
        0.35  # of the baseline's entropy; learning alone lowers it, so accuracy counts too
    )
    entropy_explosion: float = 2.5  # times the baseline's entropy; ordinary exploration stays below twice
    accuracy_gain: float = 0.1  # a run that gained this much is learning: its entropy may fall
    solved: float = 0.9  # accuracy at which low entropy and groups all right are what one wants
    mismatch_kl: float = 0.01  # k3 of sampler and training; bfloat16 kernels alone stay below 0.001
    truncated: float = 0.25  # share of responses cut off; a few per cent are usual
    degenerate: float = 0.8  # share of groups without a contrast; half is usual on hard prompts
    unjudged: float = 0.1  # share of responses without a verdict; single timeouts are usual
    doubtful: float = 0.2  # share of accepted responses that do not hold the expected number
    doubtful_least: int = 4  # of them, so that a handful of accepted responses is no evidence
    kl: float = 0.5  # nats to the reference; runs that keep their language stay below
    clipped: float = 0.3  # share of tokens; clip fractions of sound runs are a few per cent
    dead_lr: float = 1e-10  # nothing that is trained in float32 moves below
    dead_gradient: float = 1e-8  # norm
    duplicates: float = 0.5  # share of a step's groups whose prompt another group of the step has
    looping: float = 0.25  # share of responses that end in a loop
    loop_tokens: int = 24  # the shortest loop, at least three rounds; shorter ones occur in tables
