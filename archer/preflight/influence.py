"""What influence would be read from in a run, and how its scores would read."""

from archer.config.root import TrainConfig
from archer.errors import ArcherError
from archer.influence.cautions import cautions
from archer.influence.coverage import coverage
from archer.influence.modules import traced_modules
from archer.preflight.model import ModelFacts
from archer.preflight.report import Finding, note, ok, problem
from archer.sign import meaning_of_sign

SUBJECT = "influence"


def check_influence(config: TrainConfig, facts: ModelFacts) -> list[Finding]:
    """Say how much of the model is traced and what is not, what a sign means, and what to be careful of."""
    options = config.trainer.influence_trace
    if not options.enable:
        return []
    try:
        modules = traced_modules(facts.skeleton, options)
    except ArcherError as error:
        return [problem(SUBJECT, str(error))]
    share, left_out, *warning = coverage(facts.skeleton, modules).lines()
    return [
        ok(SUBJECT, f"{share}; {left_out}"),
        *(note(SUBJECT, text) for text in warning),
        ok(f"{SUBJECT} sign", meaning_of_sign(options.output_function)),
        *(note(SUBJECT, text) for text in cautions(options, config.actor_rollout_ref.rollout.n)),
    ]
