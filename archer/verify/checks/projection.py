"""Projected scores against exact ones as the projection grows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from transformers import PreTrainedModel

from archer.influence import InfluenceConfig
from archer.verify.captured import Scores, capture_update
from archer.verify.result import CheckResult, Figure, reported
from archer.verify.sample import Sample
from archer.verify.statistics import spearman

FACTORS = (32, 16, 8, 4, 2)
# Without caps, so that k really is d // factor.
CONFIG = InfluenceConfig(
    enable=True,
    output_function="log_prob",
    exclude_self_response=True,
    max_proj_vector_sum=0,
    max_hessian_dim=0,
)
MODES: dict[str, dict[str, Any]] = {
    "inverse": {},
    "inverse, reg_rule=kernel_trace": {"reg_rule": "kernel_trace"},
    "identity": {"hessian_mode": "identity"},
}


def check_projection(model: PreTrainedModel, sample: Sample) -> CheckResult:
    """Spearman correlation of token scores with those of projection=none, the mean over groups."""
    exact = capture_update(model, sample, replace(CONFIG, projection="none"))
    projected = [
        capture_update(model, sample, replace(CONFIG, projection_dim_factor=factor)) for factor in FACTORS
    ]
    figures = []
    for what, knobs in MODES.items():
        expected = exact.scores(sample.groups, **knobs)
        line = [
            _agreement(captured.scores(sample.groups, **knobs), expected, sample) for captured in projected
        ]
        rising = all(a <= b for a, b in pairwise(line))
        figures.append(Figure(f"{what} ({'monotone' if rising else 'not monotone'})", tuple(line)))
    return reported(
        "projection fidelity",
        "How much of the ranking of tokens a projection keeps: Spearman correlation with exact scores, by "
        "projection_dim_factor.",
        "With the default reg_rule lambda shrinks as D grows, so inverse mode compares differently damped "
        "scores; kernel_trace keeps the damping. Each size is one draw, so chance may break the order.",
        tuple(f"1/{factor}" for factor in FACTORS),
        figures,
    )


def _agreement(found: Scores, expected: Scores, sample: Sample) -> float:
    within = [
        spearman(torch.cat([found[row] for row in rows]), torch.cat([expected[row] for row in rows]))
        for rows in (group.rows for group in sample.groups)
    ]
    return sum(within) / len(within)
