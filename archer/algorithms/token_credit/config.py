"""`algorithm.token_credit`: the mode, whom it acts on, how strongly and until when."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from archer.algorithms.token_credit.base import CREDIT_MODES
from archer.errors import ArcherError
from archer.plugins import extended
from archer.settings import Section, SettingError, knob


@dataclass(frozen=True)
class TokenCreditConfig(Section):
    """How much of its response's advantage each token is paid. Modes declare the settings they alone read."""

    tables: ClassVar[tuple[Any, ...]] = (CREDIT_MODES,)

    mode: str = knob(
        "none", "what weighs tokens; none: all alike; see docs/algorithms.md", table=CREDIT_MODES
    )
    responses: Literal["auto", "rejected", "accepted", "both"] = knob(
        "auto", "whose tokens are weighed; auto: as the mode is meant", needs="mode!=none"
    )
    strength: float = knob(
        1.0,
        "how far weights go from 1 towards the mode's: 1 + strength (w - 1)",
        at_least=0,
        at_most=1,
        needs="mode!=none",
    )
    keep_sum: bool | None = knob(
        None,
        "scale the weights of a response to mean 1, so that it is paid as much as before; default: as the "
        "mode is meant",
        needs="mode!=none",
    )
    min_weight: float = knob(0.0, "smallest weight", at_least=0, needs="mode!=none")
    max_weight: float = knob(8.0, "largest weight", at_least=0, needs="mode!=none")
    anneal_steps: int = knob(
        0,
        "strength falls linearly from step 1 on, to none after so many steps; 0: it stays",
        at_least=0,
        needs="mode!=none",
    )
    permute: bool = knob(
        False,
        "the control: shuffle the weights within each response, separately among sure and unsure tokens",
        needs="mode!=none",
    )
    permute_entropy: float = knob(
        0.05,
        "entropy above which a token counts as unsure there",
        at_least=0,
        unit="nats",
        needs="mode!=none; permute",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_weight > self.max_weight:
            raise SettingError([("min_weight", self.min_weight, f"at most max_weight={self.max_weight}")])


def token_credit_config(mode: str = "none", **settings: Any) -> TokenCreditConfig:
    """Return the section with the settings of every mode and of one's own, those given changed."""
    section = extended(TokenCreditConfig, [CREDIT_MODES.find(mode).settings])
    unknown = sorted(settings.keys() - {setting.name for setting in fields(section)})
    if unknown:
        raise ArcherError(f"algorithm.token_credit.{unknown[0]}: there is no such setting")
    return section(mode=mode, **settings)
