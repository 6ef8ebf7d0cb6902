"""What the engine needs to be installed, found out before anything is started."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

from archer.errors import ArcherError
from archer.install import install_hint

INSTALL = install_hint("verl")


@dataclass(frozen=True)
class Requirement:
    """A package, the versions that are known to work, and where to get them."""

    package: str
    least: str
    below: str | None
    install: str
    needed_for: str = "engine=verl"


ALWAYS = (
    Requirement("torch", "2.11", None, INSTALL),
    Requirement("transformers", "5.10", "5.11", INSTALL),
    Requirement("verl", "0.9.1", "0.10", INSTALL),
    Requirement("ray", "2.41", None, INSTALL),
    Requirement("tensordict", "0.8", None, INSTALL),
    Requirement("TransferQueue", "0.1.10", None, INSTALL),
)
ROLLOUTS = {
    "vllm": Requirement("vllm", "0.11", None, "pip install vllm", "actor_rollout_ref.rollout.name=vllm"),
    "sglang": Requirement(
        "sglang", "0.5", None, 'pip install "sglang[srt]"', "actor_rollout_ref.rollout.name=sglang"
    ),
}


def check_versions(rollout: str) -> dict[str, str]:
    """Return package -> installed version; one ArcherError names everything that is missing or unfit."""
    wanted = [*ALWAYS, *([ROLLOUTS[rollout]] if rollout in ROLLOUTS else [])]
    found = {requirement.package: installed(requirement.package) for requirement in wanted}
    problems = [text for requirement in wanted if (text := problem(requirement, found[requirement.package]))]
    if problems:
        there = ", ".join(f"{name} {number}" for name, number in found.items() if number) or "none of them"
        raise ArcherError(
            "engine=verl cannot start:\n"
            + "\n".join(f"  {text}" for text in problems)
            + f"\nFound: {there}. A trial without GPU, engine.device=cpu, needs no rollout engine."
        )
    return {name: number for name, number in found.items() if number is not None}


def problem(requirement: Requirement, found: str | None) -> str | None:
    """What is wrong with the installed version, and what to do; None when it is fit."""
    below = f", < {requirement.below}" if requirement.below else ""
    wanted = f"{requirement.package} >= {requirement.least}{below}"
    if found is None:
        return f"{wanted} is missing, which {requirement.needed_for} needs: {requirement.install}"
    fits = Version(found) >= Version(requirement.least)
    if requirement.below is not None:
        fits = fits and Version(found) < Version(requirement.below)
    return None if fits else f"{requirement.package} is {found}, expected {wanted}: {requirement.install}"


def installed(package: str) -> str | None:
    """The installed version of a package, without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
