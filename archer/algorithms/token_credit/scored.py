"""The scores that some modes read: how the influence of a token's gradient ∇log π(y_t) is defined.

    contrast   mean over accepted r of infl(r, t) - mean over rejected r of infl(r, t)
    accepted   mean over accepted r of infl(r, t)

with the token's own response left out. infl(r, t) = <G_r, g_t> (identity), or <G_r, H^-1 g_t> with the
damping 0.1 trace(H) / R (inverse), R the responses of the group.
"""

from dataclasses import dataclass
from typing import Literal

from archer.settings import Section, knob

Anchors = Literal["contrast", "accepted"]
HessianMode = Literal["inverse", "identity"]


@dataclass(frozen=True)
class ScoreDefinition:
    """Which influence a mode wants; a table entry's `scores` makes it from the mode's settings."""

    of: Literal["head", "modules"]  # the head in closed form, or modules by a backward of their own
    hessian_mode: HessianMode = "inverse"
    anchors: Anchors = "contrast"
    projection_dim: int = 64
    module_name_filter: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProjectionSettings(Section):
    """How the gradients that are compared are compressed."""

    projection_dim: int = knob(
        64,
        "inputs and output gradients longer than this are projected to this length; 0: none are",
        at_least=0,
    )


@dataclass(frozen=True)
class ScoreSettings(ProjectionSettings):
    """How the influence is defined."""

    hessian_mode: HessianMode = knob(
        "inverse", "gradients are compared after whitening (inverse), or as they are (identity)"
    )
