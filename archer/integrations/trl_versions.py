"""Whether the installed TRL is one that the adapter fits: it overrides five methods, four of them private."""

import inspect
import logging
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from packaging.version import Version

from archer.errors import ArcherError

FIRST, LAST = "1.0.0", "1.16.0"
"""The first and the last TRL that the adapter has been run with: 1.0.0, 1.4.0, 1.8.0, 1.12.0, 1.14.0, 1.16.0.
(1.15.0 alone computes no log-probs on a CPU.)"""

EXPECTED = {
    "training_step": ("model", "inputs"),
    "_calculate_rewards": ("inputs", "prompts", "completions", "completion_ids_list"),
    "_generate_and_score_completions": ("inputs",),
    "_get_per_token_logps_and_entropies": (
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "batch_size",
        "compute_entropy",
    ),
    "_compute_loss": ("model", "inputs"),
}
"""The methods of GRPOTrainer that are overridden, with the arguments that they must take."""

_logger = logging.getLogger(__name__)


def installed_trl() -> str:
    """TRL's version; an error where there is none."""
    try:
        return version("trl")
    except PackageNotFoundError as error:
        raise ArcherError(f"TRL is not installed: pip install 'trl>={FIRST},<={LAST}'") from error


def misfit(why: str) -> ArcherError:
    """The one line that says which TRL is needed."""
    return ArcherError(f"archer.integrations.trl needs trl>={FIRST},<={LAST}; trl {installed_trl()} {why}")


def check_trl(trainer: type[Any]) -> None:
    """Refuse a TRL whose trainer works in another way than the adapter knows; warn of one never tried."""
    there = Version(installed_trl())
    if there < Version(FIRST):
        raise misfit("is older")
    for name, wanted in EXPECTED.items():
        method = next((vars(base)[name] for base in trainer.__mro__ if _is_trls(base, name)), None)
        if method is None:
            raise misfit(f"has no GRPOTrainer.{name}")
        taken = inspect.signature(method).parameters
        takes_any = any(argument.kind is inspect.Parameter.VAR_KEYWORD for argument in taken.values())
        missing = [] if takes_any else [argument for argument in wanted if argument not in taken]
        if missing:
            raise misfit(f"has a GRPOTrainer.{name} without {missing[0]}")
    if there > Version(LAST):
        _logger.warning("trl %s is newer than the last that Archer was tested with (%s)", there, LAST)


def _is_trls(base: type[Any], name: str) -> bool:
    return base.__module__.startswith("trl.") and name in vars(base)
