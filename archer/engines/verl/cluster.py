"""Ray for one run: started or joined, checked for its devices, and always left behind clean."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from archer.config.root import TrainConfig
from archer.engines.verl.translate import on_cpu, ranks, threads
from archer.errors import ArcherError

CPU_PLATFORM = "archer.engines.verl.cpu.platform"
FORWARDED = ("VERL_", "TQ_", "NCCL_", "GLOO_", "HF_", "TRANSFORMERS_", "WANDB_")


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

    ray.init(**ray_options(config, settings))
    try:
        check_devices(ray.cluster_resources().get("GPU", 0.0), config)
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
    variables = {name: value for name, value in os.environ.items() if name.startswith(FORWARDED)}
    environment["env_vars"] |= variables | {"TRANSFER_QUEUE_ENABLE": "1"} | (own.pop("env_vars", None) or {})
    environment |= {name: value for name, value in own.items() if value is not None}
    options = {name: value for name, value in chosen.items() if value is not None}
    local = options.get("address") == "local"
    return {
        "runtime_env": environment,
        "log_to_driver": config.engine.worker_logs,
        "logging_level": "warning" if config.engine.worker_logs else "critical",
        **({"include_dashboard": False} if local else {}),
        **options,
    }


def check_devices(found: float, config: TrainConfig) -> None:
    """Refuse a cluster that is smaller than the run."""
    wanted = ranks(config)
    if found < wanted:
        raise ArcherError(
            f"trainer.nnodes={config.trainer.nnodes} times trainer.n_gpus_per_node="
            f"{config.trainer.n_gpus_per_node} are {wanted} GPUs, but Ray has {found:g}. Start Ray on more "
            "machines (docs/cluster.md), lower the two, or try engine.device=cpu."
        )
