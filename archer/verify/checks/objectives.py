"""Every objective by rescaling against a second backward."""

from __future__ import annotations

from dataclasses import replace

from transformers import PreTrainedModel

from archer.influence import InfluenceConfig
from archer.influence.config import OutputFunction
from archer.verify.captured import capture_update, joined
from archer.verify.result import CheckResult, Figure, at_least, at_most, exact
from archer.verify.sample import Sample
from archer.verify.statistics import relative_error

CONFIG = InfluenceConfig(enable=True, projection_dim_factor=8)
OBJECTIVES: tuple[OutputFunction, ...] = ("log_prob", "log_prob_advantage", "log_prob_reward")


def check_objectives(model: PreTrainedModel, sample: Sample) -> CheckResult:
    """The on-policy GRPO loss weights all tokens of a response alike, so each objective is a rescaling of it.

    A tolerance of 0 forbids that and forces the objective's own backward. The counters say that both ways
    were really taken.
    """
    figures: list[Figure] = []
    rescaled, second = 0.0, 0.0
    for objective in OBJECTIVES:
        config = replace(CONFIG, output_function=objective)
        cheap = capture_update(model, sample, config)
        dear = capture_update(model, sample, replace(config, proportionality_tolerance=0.0))
        error = relative_error(joined(cheap.scores(sample.groups)), joined(dear.scores(sample.groups)))
        figures.append(at_most(f"{objective}: relative error", error, 1e-9))
        rescaled += cheap.counters["influence_trace/debug_rescaled_micro_batches"]
        second += dear.counters["influence_trace/debug_second_backwards"]
    figures.append(at_least("objectives that were rescaled", rescaled, len(OBJECTIVES)))
    figures.append(at_least("objectives that ran a second backward", second, len(OBJECTIVES)))
    return exact(
        "rescaling against a second backward",
        "Other objectives come out of the real backward at no cost and unchanged.",
        figures,
    )
