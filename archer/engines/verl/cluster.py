"""Ray for one run: started or joined, its devices checked, its failures told, always left behind clean."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from archer.config.root import TrainConfig
from archer.engines.verl.checkpoints import VerlRunFolder
from archer.engines.verl.translate import on_cpu, ranks, threads
from archer.errors import ArcherError

CPU_PLATFORM = "archer.engines.verl.cpu.platform"
FORWARDED = ("VERL_", "VLLM_", "TQ_", "NCCL_", "GLOO_", "HF_", "TRANSFORMERS_", "WANDB_")
OF_ONE_MACHINE = ("VLLM_HOST_IP", "VLLM_PORT", "VLLM_HOST_PORT")  # and so not forwarded
RAY_RUNS_HERE = Path("/tmp/ray/ray_current_cluster")  # written by `ray start`


def set_environment(config: TrainConfig) -> None:
    """Set what verl and Ray read when they are imported; what the user has set stays."""
    quiet = {
        "VERL_LOGGING_LEVEL": "ERROR",
        "TQ_LOGGING_LEVEL": "ERROR",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "HYDRA_FULL_ERROR": "1",
    }
    if on_cpu(config):
        quiet |= {"OMP_NUM_THREADS": str(threads(config)), "GLOO_SOCKET_IFNAME": "lo"}
        os.environ["VERL_PLATFORM"] = "cpu"
        os.environ["VERL_USE_EXTERNAL_MODULES"] = CPU_PLATFORM
    for name, value in quiet.items():
        os.environ.setdefault(name, value)


@contextmanager
def cluster(config: TrainConfig, settings: DictConfig) -> Iterator[Path]:
    """Connect to Ray and its queue for the length of a run; gives the folder of the workers' logs."""
    import ray
    import transfer_queue as tq

    options = ray_options(config, settings)
    try:
        ray.init(**options)
    except Exception as error:  # Ray raises what its part that failed raised: of any kind
        raise ArcherError(could_not_start(error, options)) from error
    try:
        found = ray.cluster_resources()
        check_devices(found.get("GPU", 0.0), config)
        check_cpus(found.get("CPU", 0.0), cpus_held(config, settings))
        settings.transfer_queue.enable = True
        tq.init(settings.transfer_queue)
        try:
            yield Path(ray._private.worker._global_node.get_logs_dir_path())
        finally:
            tq.close()
    finally:
        ray.shutdown()


def ray_options(config: TrainConfig, settings: DictConfig) -> dict[str, Any]:
    """Arguments of `ray.init`: the user's `ray_kwargs.ray_init`, verl's environment and Archer's quiet."""
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    chosen: Any = OmegaConf.to_container(settings.ray_kwargs.ray_init, resolve=True)
    environment = get_ppo_ray_runtime_env(settings)
    own = chosen.pop("runtime_env", None) or {}
    variables = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(FORWARDED) and name not in OF_ONE_MACHINE
    }
    given = {name: str(value) for name, value in (own.pop("env_vars", None) or {}).items()}  # NCCL_DEBUG=1
    environment["env_vars"] |= variables | {"TRANSFER_QUEUE_ENABLE": "1"} | given
    environment |= {name: value for name, value in own.items() if value is not None}
    options = {name: value for name, value in chosen.items() if value is not None}
    local = options.get("address") == "local"
    return {
        "runtime_env": environment,
        "log_to_driver": config.engine.worker_logs,
        "logging_level": "warning" if config.engine.worker_logs else "critical",
        **({"include_dashboard": False} if local else {}),
        **(
            {} if to_join(options.get("address")) else {"num_cpus": max(cores(), cpus_held(config, settings))}
        ),
        **options,
    }


def ray_cluster(config: TrainConfig) -> str | None:
    """Address of a Ray cluster that the run would join; None where it starts its own."""
    return to_join(OmegaConf.select(OmegaConf.create(config.engine.verl), "ray_kwargs.ray_init.address"))


def to_join(given: str | None) -> str | None:
    """The same for an address that is given to `ray.init`."""
    address = given or os.environ.get("RAY_ADDRESS")
    if address in (None, "auto") and RAY_RUNS_HERE.is_file():
        return RAY_RUNS_HERE.read_text().strip()
    return None if address in ("auto", "local") else address


def cores() -> int:
    """CPUs of this machine, as Ray counts them."""
    from ray._private.utils import get_num_cpus

    return int(get_num_cpus(override_docker_cpu_warning=True))


def cpus_held(config: TrainConfig, settings: DictConfig) -> int:
    """CPUs that verl's processes take in Ray's books, whatever they use: with fewer a run waits for ever.

    Those of every device's bundle, of the queue's storage and of its controller, and one that each of the
    others needs for a moment, to be placed.
    """
    from verl.single_controller.ray import ResourcePoolManager

    storage = settings.transfer_queue.backend.SimpleStorage.num_data_storage_units
    return int(ranks(config) * ResourcePoolManager.max_colocate_count + storage + 1 + 1)


def could_not_start(error: Exception, options: dict[str, Any]) -> str:
    """What keeps Ray from starting or being joined, and what to try."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    address = options.get("address") or os.environ.get("RAY_ADDRESS")
    joined = address not in (None, "local", "auto")
    what = f"Ray at {address} could not be joined" if joined else "Ray could not be started"
    remedy = (
        f"Look whether it runs there (`ray status --address {address}`), or unset RAY_ADDRESS and "
        "ray_kwargs.ray_init.address to start a Ray for this run."
        if joined
        else "Look at what you gave as ray_kwargs.ray_init.*, and for room on the disk and in /dev/shm; "
        "`ray stop` ends one that was left behind."
    )
    return f"{what}: {type(error).__name__}: {lines[0] if lines else 'no reason given'}\n{remedy}"


def check_devices(found: float, config: TrainConfig) -> None:
    """Refuse a cluster that is smaller than the run."""
    wanted = ranks(config)
    if found < wanted:
        raise ArcherError(
            f"trainer.nnodes={config.trainer.nnodes} times trainer.n_gpus_per_node="
            f"{config.trainer.n_gpus_per_node} are {wanted} GPUs, but Ray has {found:g}. Start Ray on more "
            "machines (docs/cluster.md), lower the two, or try engine.device=cpu."
        )


def check_cpus(found: float, wanted: int) -> None:
    """Refuse a Ray in which verl's processes would never be placed."""
    if found < wanted:
        raise ArcherError(
            f"verl's processes take {wanted} CPUs of Ray's, which has {found:g}: the run would wait for "
            f"ever. Ray only counts with the number: set ray_kwargs.ray_init.num_cpus={wanted}, or, where a "
            f"Ray is joined, `ray start --num-cpus={wanted}`; or set "
            "transfer_queue.backend.SimpleStorage.num_data_storage_units=1."
        )


TIMEOUT = "VERL_PG_TIMEOUT_SECONDS"


def process_group_timeout() -> int | None:
    """Seconds that a collective may take, from VERL_PG_TIMEOUT_SECONDS; None: torch's own limit."""
    text = os.environ.get(TIMEOUT)
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ArcherError(f"{TIMEOUT}={text}: expected a whole number of seconds, at least 1")
    return int(text)


def join_process_group() -> None:
    """Join it; a second call changes nothing."""
    from verl.utils.device import get_device_name
    from verl.utils.distributed import initialize_global_process_group_ray

    backend = "gloo" if get_device_name() == "cpu" else None
    initialize_global_process_group_ray(timeout_second=process_group_timeout(), backend=backend)


@contextmanager
def as_archer_error(remedy: Callable[[], str]) -> Iterator[None]:
    """Turn an error of Ray's into an ArcherError: what happened, then what is safe and how to resume."""
    import ray.exceptions

    try:
        yield
    except ray.exceptions.RayError as error:
        cause = own_error(error)
        raise ArcherError(cause or f"{what_happened(error)}\n{remedy()}") from error
    except ConnectionError as error:
        raise ArcherError(f"Ray could not be reached: {error}\n{remedy()}") from error


def own_error(error: BaseException) -> str | None:
    """The message of an ArcherError that a worker raised."""
    cause = getattr(error, "cause", None)
    return str(cause) if isinstance(cause, ArcherError) else None


def what_happened(error: BaseException) -> str:
    """The failure in a sentence: a dead process, or the last line of a worker's traceback."""
    import ray.exceptions

    text = str(error)
    if isinstance(error, ray.exceptions.ActorDiedError | ray.exceptions.WorkerCrashedError):
        name = re.search(r"class_name: (\S+)", text)
        node = re.search(r"ip: (\S+)", text)
        exit_type = re.search(r"Worker exit type: (\S+)", text)
        where = f" on {node[1]}" if node else ""
        kind = f" ({exit_type[1]})" if exit_type else ""
        return (
            f"A worker process died{where}: {name[1] if name else 'unknown'}{kind}. Often it ran out of "
            "memory; its last lines are in Ray's logs."
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"A worker failed: {lines[-1] if lines else type(error).__name__}"


def how_to_resume(folder: VerlRunFolder, logs: Path | None) -> str:
    """What the same command will do, and where the workers' logs are."""
    newest = folder.checkpoints.latest()
    again = (
        f"The same command resumes from step {newest.step}."
        if newest is not None
        else "There is no checkpoint yet: the same command starts over."
    )
    where = "" if logs is None else f" Ray's logs: {logs}"
    return f"The traces and checkpoints in {folder.path} are whole. {again}{where}"
