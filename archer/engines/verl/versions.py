"""What the engines need to be installed, found out before anything is started.

Versions that have not been tried are refused. What the engine extends of verl is looked for by name, so that
another inside is told in a line and not by a worker, minutes later.
"""

import io
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from packaging.version import Version

from archer.errors import ArcherError, install_hint

INSTALL = install_hint("verl")
WITH_VLLM = install_hint("gpu")


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
    Requirement("transformers", "5.9", "5.11", INSTALL),
    Requirement("verl", "0.9.1", "0.9.2", INSTALL),  # as in pyproject.toml
    Requirement("ray", "2.41", None, INSTALL),
    Requirement("tensordict", "0.8", None, INSTALL),
    Requirement("TransferQueue", "0.1.10", None, INSTALL),
)
LOCAL = (
    Requirement("torch", "2.11", None, install_hint("dev"), "engine=local"),
    Requirement("transformers", "5.9", None, install_hint("dev"), "engine=local"),
)
"""What engine=local needs: verl's upper bounds are not its own."""
IF_THERE = (
    Requirement("trl", "0", "1.0", "pip install 'trl<1', or pip uninstall trl, which Archer does not need"),
)
"""Packages that verl imports wherever they are installed."""
ROLLOUTS = {
    "vllm": Requirement("vllm", "0.11", None, WITH_VLLM, "actor_rollout_ref.rollout.name=vllm"),
    "sglang": Requirement(
        "sglang", "0.5", None, 'pip install "sglang[srt]"', "actor_rollout_ref.rollout.name=sglang"
    ),
}


def check_versions(rollout: str) -> dict[str, str]:
    """Return package -> installed version; one ArcherError names everything that is missing or unfit."""
    wanted = [*ALWAYS, *([ROLLOUTS[rollout]] if rollout in ROLLOUTS else [])]
    if rollout == "vllm":  # vLLM has a torch of its own: one command installs versions that go together
        wanted = [replace(requirement, install=WITH_VLLM) for requirement in wanted]
    found = {requirement.package: installed(requirement.package) for requirement in wanted}
    for requirement in IF_THERE:
        if (number := installed(requirement.package)) is not None:
            wanted.append(requirement)
            found[requirement.package] = number
    problems = [text for requirement in wanted if (text := problem(requirement, found[requirement.package]))]
    problems += ray_programs_problem()
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


RAY_PROGRAMS = ("core/src/ray/gcs/gcs_server", "core/src/ray/raylet/raylet")


def ray_programs_problem() -> list[str]:
    """What keeps Ray's own programs from being run, and what to do; Ray itself tells of a lost connection.

    A wheel that was unpacked or copied by a tool that keeps no modes leaves them not executable.
    """
    spec = find_spec("ray")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent
    programs = [] if folder is None else [folder / name for name in RAY_PROGRAMS if (folder / name).is_file()]
    stuck = [program for program in programs if not os.access(program, os.X_OK)]
    if not stuck:
        return []
    named = " ".join(map(str, stuck))
    if all(program.stat().st_mode & stat.S_IXUSR for program in stuck):
        where = f"{folder} lies on a file system that allows no programs (mounted noexec)"
        return [f"Ray cannot run {named}: {where}. Install Ray into another folder."]
    return [f"Ray cannot run {named}: not executable. Run: chmod +x {named}"]


INTERNALS = {
    "verl.trainer.ppo.v1": ("AgentLoopManagerTQ.create", "PPOTrainerSync", "register_trainer"),
    "verl.trainer.ppo.v1.trainer_base": (
        "PPOTrainer.init",
        "PPOTrainer.step",
        "PPOTrainer._balance_batch",
        "PPOTrainer._build_replay_buffer",
        "PPOTrainer._compute_metrics",
        "PPOTrainer._get_required_batch_multiple",
        "PPOTrainer._init_resource_pool_mgr",
        "PPOTrainer._maybe_log_val_generations",
        "PPOTrainer._save_checkpoint",
        "PPOTrainer._step_once",
        "PPOTrainer._update_actor",
        "PPOTrainer._val_metrics_update",
        "PPOTrainer._validate",
    ),
    "verl.trainer.ppo.padding_utils": ("upsample_batch_to_divisible_size",),
    "verl.workers.engine": ("EngineRegistry.get_engine_cls", "EngineRegistry.register"),
    "verl.workers.engine.fsdp.transformer_impl": (
        "FSDPEngine.forward_backward_batch",
        "FSDPEngine.optimizer_step",
        "FSDPEngine._build_module",
        "FSDPEngine._get_packed_pad_size",
        "FSDPEngine._gradient_sync_context",
        "FSDPEngineWithLMHead.forward_step",
        "FSDPEngineWithLMHead.prepare_model_outputs",
        "FSDPEngineWithValueHead",
        "logprobs_from_logits",
    ),
    "verl.workers.engine_workers": ("ActorRolloutRefWorker.init_model", "TrainingWorker.set_loss_fn"),
    "verl.workers.rollout.base": ("_ROLLOUT_REGISTRY",),
    "verl.workers.rollout.replica": ("RolloutReplicaRegistry.register",),
    "verl.experimental.agent_loop.agent_loop": ("AgentLoopBase", "AgentLoopOutput", "register"),
    "verl.experimental.reward_loop.reward_manager.base": ("RewardManagerBase.run_single",),
    "verl.utils.torch_functional": (
        "FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE|FLASH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE",
    ),
}
"""What the engine extends, replaces or calls inside verl: module -> names in it; `|` separates spellings."""


def check_internals(number: str) -> None:
    """Raise an ArcherError of one line where verl's inside is not what the engine expects."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # verl tells of every other training engine that is not installed
        missing = list(missing_internals(INTERNALS))
    if missing:
        requirement = next(requirement for requirement in ALWAYS if requirement.package == "verl")
        raise ArcherError(
            f"verl {number} is not what engine=verl was made for (>= {requirement.least}, < "
            f"{requirement.below}): it has no {', '.join(missing)}. {requirement.install}"
        )


def missing_internals(expected: dict[str, tuple[str, ...]]) -> Iterator[str]:
    """Full names that are not there; a module that cannot be imported is named with the reason."""
    for module, names in expected.items():
        try:
            loaded = import_module(module)
        except ImportError as error:
            yield f"{module} ({error})"
            continue
        for spellings in names:
            if not any(_has(loaded, name) for name in spellings.split("|")):
                yield f"{module}.{spellings.replace('|', ' or ')}"


def _has(module: object, name: str) -> bool:
    node = module
    for part in name.split("."):
        if not hasattr(node, part):
            return False
        node = getattr(node, part)
    return True
