"""The machine: installed versions, devices and their memory."""

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import psutil
import torch
from omegaconf import OmegaConf

from archer.config.root import TrainConfig
from archer.engines.local.device import set_up
from archer.engines.preflight.demand import Demand, gib, local_demand, verl_demand
from archer.engines.preflight.finding import Finding, note, ok, problem
from archer.engines.preflight.model import ModelFacts
from archer.engines.preflight.wandb_key import wandb_can_start
from archer.engines.verl.settings import rollout_name
from archer.engines.verl.translate import on_cpu, ranks
from archer.engines.verl.versions import ALWAYS, check_versions, installed
from archer.engines.verl.versions import problem as version_problem
from archer.errors import ArcherError

LOCAL = tuple(requirement for requirement in ALWAYS if requirement.package in ("torch", "transformers"))
RAY_RUNS_HERE = Path("/tmp/ray/ray_current_cluster")  # written by `ray start`
TIGHT = 0.9  # an estimate above this share of the memory is worth a note
LEAST_TOKENS = 1024  # micro-batches smaller than that save nothing worth having
SPREAD = (
    "Lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu or "
    "actor_rollout_ref.rollout.gpu_memory_utilization, or take more GPUs (docs/recipes.md)."
)


def check_installed(config: TrainConfig) -> Finding:
    """Compare installed packages with what the engine needs."""
    if config.engine.name == "verl":
        try:
            found = check_versions(rollout_name(config))
        except ArcherError as error:
            return problem("versions", str(error))
        return ok("versions", ", ".join(f"{name} {number}" for name, number in found.items()))
    numbers = {requirement.package: installed(requirement.package) for requirement in LOCAL}
    wrong = [text for r in LOCAL if (text := version_problem(r, numbers[r.package]))]
    if wrong:
        return problem("versions", "engine=local cannot start: " + "; ".join(wrong))
    return ok("versions", ", ".join(f"{name} {number}" for name, number in numbers.items()))


def check_trackers(config: TrainConfig) -> list[Finding]:
    """Look for the packages that `trainer.logger` names, and for a key where one is needed."""
    subject, found = "trainer.logger", []
    for name in config.trainer.logger:
        if name != "console" and find_spec(name) is None:
            text = f"trainer.logger names {name}, but it is not installed."
            found.append(problem(subject, text, f"pip install {name}"))
        elif name == "wandb" and not wandb_can_start():
            text = "trainer.logger names wandb, but there is no key of W&B here."
            found.append(
                problem(subject, text, "Run `wandb login`, set WANDB_API_KEY, or WANDB_MODE=offline.")
            )
    return found


def check_device(config: TrainConfig) -> Finding:
    """Look for the devices that the run computes on."""
    if config.engine.name == "local":
        try:
            compute = set_up(config.engine)
        except ArcherError as error:
            return problem("device", str(error))
        name = torch.cuda.get_device_name() if compute.device.type == "cuda" else "CPU"
        return ok("device", f"{name}, {str(compute.dtype).removeprefix('torch.')}")
    if on_cpu(config):
        count = ranks(config)
        processes = f"{count} process{'' if count == 1 else 'es'}"
        return ok("device", f"{processes} on the CPU, a trial of engine=verl")
    cluster = ray_cluster(config)
    if cluster is not None:
        return note(
            "device", f"the {ranks(config)} GPUs of Ray at {cluster}, counted when the run has joined it"
        )
    found, wanted = torch.cuda.device_count(), config.trainer.n_gpus_per_node
    if config.trainer.nnodes > 1:
        return problem(
            "device",
            f"trainer.nnodes={config.trainer.nnodes}, but no Ray cluster is there to join.",
            "Start one (`ray start`, docs/cluster.md) or set RAY_ADDRESS.",
        )
    if found < wanted:
        there = "sees no CUDA device" if found == 0 else f"sees {found} on this machine"
        return problem(
            "device",
            f"engine=verl with trainer.n_gpus_per_node={wanted} needs {wanted} GPU{'s' * (wanted > 1)}, but "
            f"torch {there}.",
            "Run it where they are, join a cluster (docs/cluster.md), set trainer.n_gpus_per_node, or try "
            "engine=local or engine.device=cpu.",
        )
    return ok("device", f"{wanted} of {found} x {torch.cuda.get_device_name()}")


def ray_cluster(config: TrainConfig) -> str | None:
    """Address of a Ray cluster that the run would join; None where it starts its own."""
    own = OmegaConf.select(OmegaConf.create(config.engine.verl), "ray_kwargs.ray_init.address")
    address = own or os.environ.get("RAY_ADDRESS")
    if address in (None, "auto") and RAY_RUNS_HERE.is_file():
        return RAY_RUNS_HERE.read_text().strip()
    return None if address in ("auto", "local") else address


def check_memory(config: TrainConfig, facts: ModelFacts) -> Finding:
    """Compare the estimate with the memory of the device, where there is one."""
    if config.engine.name == "local":
        on_gpu = config.engine.device != "cpu" and torch.cuda.is_available()
        there, device = room(on_gpu), "cuda" if on_gpu else "cpu"
        demand = local_demand(config, facts, device)
        return compare(demand, there, "this device", what_would_fit(config, facts, device, there))
    if on_cpu(config):
        demand = verl_demand(config, facts, device_bytes=None)
        return compare(demand, room(False) // ranks(config), "each process")
    if ray_cluster(config) is not None or not torch.cuda.is_available():
        return note("memory", f"each GPU needs about {verl_demand(config, facts, None)}")
    total = torch.cuda.mem_get_info()[1]
    return compare(verl_demand(config, facts, total), room(True), "each GPU")


def room(on_gpu: bool) -> int:
    """Bytes that a new process can have: free on the GPU, available in main memory and its container."""
    if on_gpu:
        return torch.cuda.mem_get_info()[0]
    available = psutil.virtual_memory().available
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and limit.read_text().strip() != "max":
        available = min(available, int(limit.read_text()) - int(used.read_text()))
    return available


def what_would_fit(config: TrainConfig, facts: ModelFacts, device: str, there: int) -> str:
    """Halve what is sampled and computed at a time until the local engine fits, and say how it did."""
    options = config.actor_rollout_ref
    rows, tokens = options.rollout.max_num_seqs, options.actor.ppo_max_token_len_per_gpu
    while rows > 1:
        rows, tokens = rows // 2, max(tokens // 2, LEAST_TOKENS)
        rollout = replace(options.rollout, max_num_seqs=rows)
        actor = replace(options.actor, ppo_max_token_len_per_gpu=tokens)
        smaller = replace(config, actor_rollout_ref=replace(options, rollout=rollout, actor=actor))
        demand = local_demand(smaller, facts, device)
        if demand.peak < TIGHT * there:
            return (
                f"With actor_rollout_ref.rollout.max_num_seqs={rows} actor_rollout_ref.actor."
                f"ppo_max_token_len_per_gpu={tokens} it would need {gib(demand.peak)} GiB."
            )
    return "Take a larger device, a smaller model, or more GPUs with engine=verl (docs/recipes.md)."


def compare(demand: Demand, there: int, whose: str, remedy: str = SPREAD) -> Finding:
    """Turn an estimate and the memory there is into a finding."""
    text = f"{whose} has {gib(there)} GiB free and needs about {demand}"
    if demand.peak > there:
        return problem("memory", f"The run does not fit: {text}.", remedy)
    if demand.peak > TIGHT * there:
        return note("memory", f"It is tight: {text}.", remedy)
    return ok("memory", text)
