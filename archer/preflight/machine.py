"""The machine: installed versions, trackers, devices and their memory, the disk."""

import os
import shutil
from collections.abc import Mapping
from configparser import ConfigParser
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import torch

from archer.config.root import TrainConfig
from archer.engines.verl.cluster import ray_cluster
from archer.engines.verl.translate import on_cpu, ranks, rollout_name
from archer.engines.verl.versions import LOCAL, ROLLOUTS, check_versions, installed
from archer.engines.verl.versions import problem as version_problem
from archer.errors import ArcherError
from archer.generation.device import set_up
from archer.preflight.memory import Demand, gib, local_demand, verl_demand
from archer.preflight.model import AdapterShape, ModelFacts, ModelShape
from archer.preflight.report import Finding, note, ok, problem
from archer.training.portions import token_budget

TIGHT = 0.9  # an estimate above this share of the memory is worth a note
SPREAD = (
    "Lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu or "
    "actor_rollout_ref.rollout.gpu_memory_utilization, or take more GPUs (docs/recipes.md)."
)


def check_installed(config: TrainConfig) -> Finding:
    """Compare installed packages with what the engine needs."""
    wanted = [*LOCAL, *([ROLLOUTS["vllm"]] if config.actor_rollout_ref.rollout.name == "vllm" else [])]
    numbers: Mapping[str, str | None] = {r.package: installed(r.package) for r in wanted}
    if config.engine.name == "verl":
        try:
            numbers = check_versions(rollout_name(config))
        except ArcherError as error:
            return problem("versions", str(error))
    elif wrong := [text for r in wanted if (text := version_problem(r, numbers[r.package]))]:
        return problem("versions", "engine=local cannot start: " + "; ".join(wrong))
    return ok("versions", ", ".join(f"{name} {number}" for name, number in numbers.items()))


def check_trackers(config: TrainConfig) -> list[Finding]:
    """Look for the packages that `trainer.logger` names, and for a key where one is needed."""
    found = []
    for name in config.trainer.logger:
        lack, remedy = "", ""
        if name != "console" and find_spec(name) is None:
            lack, remedy = "it is not installed", f"pip install {name}"
        elif name == "wandb" and not wandb_can_start():
            lack = "there is no key of W&B here"
            remedy = "Run `wandb login`, set WANDB_API_KEY, or WANDB_MODE=offline."
        if lack:
            found.append(problem("trainer.logger", f"trainer.logger names {name}, but {lack}.", remedy))
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
        processes = f"{ranks(config)} process{'' if ranks(config) == 1 else 'es'}"
        return ok("device", f"{processes} on the CPU, a trial of engine=verl")
    if (cluster := ray_cluster(config)) is not None:
        text = f"the {ranks(config)} GPUs of Ray at {cluster}, counted when the run has joined it"
        return note("device", text)
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


def check_memory(config: TrainConfig, facts: ModelFacts) -> Finding:
    """Compare the estimate with the memory of the device, where there is one."""
    if config.engine.name == "local":
        on_gpu = config.engine.device != "cpu" and torch.cuda.is_available()
        there, device = room(on_gpu), "cuda" if on_gpu else "cpu"
        total = torch.cuda.mem_get_info()[1] if on_gpu else None
        demand = local_demand(config, facts, device, total)
        return compare(demand, there, "this device", what_would_fit(config, facts, device, there, total))
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


def what_would_fit(
    config: TrainConfig, facts: ModelFacts, device: str, there: int, total: int | None = None
) -> str:
    """Halve what is sampled and computed at a time until the local engine fits, and say how it did."""
    options = config.actor_rollout_ref
    rows, tokens = options.rollout.max_num_seqs, token_budget(options.actor)
    while rows > 1:
        rows, tokens = rows // 2, max(tokens // 2, 1024)  # smaller micro-batches save nothing worth having
        rollout = replace(options.rollout, max_num_seqs=rows)
        actor = replace(options.actor, ppo_max_token_len_per_gpu=tokens)
        smaller = replace(config, actor_rollout_ref=replace(options, rollout=rollout, actor=actor))
        demand = local_demand(smaller, facts, device, total)
        if demand.peak < TIGHT * there:
            return (
                f"With actor_rollout_ref.rollout.max_num_seqs={rows} actor_rollout_ref.actor."
                f"ppo_max_token_len_per_gpu={tokens} it would need {gib(demand.peak)} GiB."
            )
    fewer = "" if facts.adapters is not None else " LoRA (actor_rollout_ref.model.lora_rank=32),"
    return f"Take a larger device, a smaller model,{fewer} or more GPUs with engine=verl (docs/recipes.md)."


def compare(demand: Demand, there: int, whose: str, remedy: str = SPREAD) -> Finding:
    """Turn an estimate and the memory there is into a finding."""
    text = f"{whose} has {gib(there)} GiB free and needs about {demand}"
    if demand.peak > there:
        return problem("memory", f"The run does not fit: {text}.", remedy)
    if demand.peak > TIGHT * there:
        return note("memory", f"It is tight: {text}.", remedy)
    return ok("memory", text)


def wandb_can_start() -> bool:
    """Return whether there is a key, in the environment or in netrc, or none is needed."""
    # What `wandb offline` and `wandb login --host` leave: settings of the user, then of this folder.
    user = Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser()
    here = Path(os.environ.get("WANDB_DIR") or ".") / "wandb"
    parser = ConfigParser(interpolation=None, default_section="default")
    parser.read([user / "settings", here / "settings"])
    settings = parser.defaults()
    mode = os.environ.get("WANDB_MODE") or settings.get("mode")
    if mode in ("offline", "disabled", "dryrun"):
        return True
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    server = os.environ.get("WANDB_BASE_URL") or settings.get("base_url") or "https://api.wandb.ai"
    named = os.environ.get("NETRC")
    files = [Path(named)] if named else [Path("~/.netrc"), Path("~/_netrc")]
    for file in files:
        with suppress(OSError, NetrcParseError):  # a file that cannot be read holds no key
            if urlsplit(server).hostname in netrc(file.expanduser()).hosts:
                return True
    return False


def checkpoint_bytes(shape: ModelShape, engine: str, adapters: AdapterShape | None = None) -> int:
    """One checkpoint: weights and AdamW's moments, 12 P; verl's holds the whole model once more, 2 P.

    With LoRA those of the adapters; verl's holds the frozen weights, too.
    """
    if adapters is not None:
        return 12 * adapters.trained + (0 if engine == "local" else 4 * shape.parameters)
    return (12 if engine == "local" else 14) * shape.parameters


def kept_checkpoints(config: TrainConfig, steps: int) -> int:
    """The most checkpoints that lie there at a time: those kept and the one being written."""
    every = config.trainer.save_freq
    made = -(-steps // every) if every > 0 else 1
    keep = config.trainer.max_actor_ckpt_to_keep
    return made if keep is None else min(made, keep + 1)


def trace_bytes(config: TrainConfig, steps: int) -> int:
    """Both traces over the run, every response as long as it may get: tokens x bytes x compressed share."""
    responses = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
    tokens = responses * config.data.max_response_length
    total = 0.0
    entropy, influence = config.trainer.entropy_trace, config.trainer.influence_trace
    alone = not entropy.enable or influence.self_contained
    for trace, number_bytes, share in (  # of a token; by benchmarks/trace_writer.py --off-policy --full
        (entropy, 16, 0.47),
        (influence, *((24, 0.48) if alone else (9, 0.44))),
    ):
        total += trace.enable * (steps // trace.write_every * tokens * number_bytes * share)
    return int(total)


def existing(path: Path) -> Path:
    """The nearest folder that is there already."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def check_disk(config: TrainConfig, facts: ModelFacts, steps: int) -> Finding:
    """Compare what the run writes, checkpoints and traces, with the room there is."""
    free = shutil.disk_usage(existing(config.run_dir)).free
    count = kept_checkpoints(config, steps)
    one = checkpoint_bytes(facts.shape, config.engine.name, facts.adapters)
    traces = trace_bytes(config, steps)
    text = (
        f"{count} checkpoint{'' if count == 1 else 's'} of {gib(one)} GiB, "
        f"traces of at most {gib(traces)} GiB in {steps:,} steps; {gib(free)} GiB free"
    )
    if count * one > free:
        text = f"Checkpoints do not fit on the disk: {text}."
        settings = "trainer.max_actor_ckpt_to_keep, a larger trainer.save_freq, or trainer.default_local_dir"
        return problem("disk", text, f"Set {settings}.")
    if count * one + traces > free:
        remedy = "Raise trainer.entropy_trace.write_every and trainer.influence_trace.write_every."
        return note("disk", f"It may get full: {text}.", remedy)
    return ok("disk", text)
