"""A CPU seen through verl's device abstraction: `VERL_PLATFORM=cpu`.

verl loads this module in every process (`VERL_USE_EXTERNAL_MODULES`), in the middle of its own start-up, so
it imports nothing of verl but the abstraction.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


class CpuDeviceModule(ModuleType):
    """What `torch.cuda` is elsewhere. `torch.cpu` has no memory functions; here they count nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def __eq__(self, other: object) -> bool:
        return other is self or other is torch.cpu  # verl asks whether the module is torch.cpu

    __hash__ = ModuleType.__hash__

    def is_available(self) -> bool:
        """No memory to watch over."""
        return False

    def device_count(self) -> int:
        """One CPU."""
        return 1

    def current_device(self) -> int:
        """The only one."""
        return 0

    def get_device_name(self, *_: Any) -> str:
        """Its name."""
        return "CPU"

    def mem_get_info(self, *_: Any) -> tuple[int, int]:
        """Free and total device memory: none."""
        return 0, 0

    def get_rng_state(self, *_: Any) -> torch.Tensor:
        """The CPU generator's state."""
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, *_: Any) -> None:
        """Set the CPU generator's state."""
        torch.set_rng_state(state)

    def _nothing(self, *_: Any) -> None:
        return None

    def _zero(self, *_: Any) -> int:
        return 0

    set_device = synchronize = empty_cache = ipc_collect = reset_peak_memory_stats = _nothing
    memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = _zero


DEVICE_MODULE = CpuDeviceModule("archer_verl_cpu_device")


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """Answers verl's questions about the device with those of a CPU and of gloo."""

    @property
    def device_name(self) -> str:
        """As torch names it."""
        return "cpu"

    @property
    def vendor_name(self) -> str:
        """The second part of the key that engines are registered under."""
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        """Stands for torch.cuda."""
        return DEVICE_MODULE

    def is_available(self) -> bool:
        """A CPU always is."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Never chosen by detection, only by name."""
        return False

    def current_device(self) -> str:
        """What tensors are moved to."""
        return "cpu"

    def device_count(self) -> int:
        """One a process."""
        return 1

    def manual_seed(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        """There is none."""
        return None, None

    def communication_backend_name(self) -> str:
        """Of the process group."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Ray sets it for the GPUs it pretends to have."""
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        """verl counts GPUs only, so a CPU trial starts Ray with as many as it has ranks."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """None."""
        return []

    def is_ipc_supported(self) -> bool:
        """No device memory to share."""
        return False

    def cudart(self) -> None:
        """None."""
        return

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """No profiler."""
        yield

    def set_device(self, device_index: int) -> None:
        """Nothing to choose."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Nothing to wait for."""

    def set_allocator_settings(self, settings: str) -> None:
        """Nothing to set."""

    def empty_cache(self) -> None:
        """No cache."""

    def profiler_start(self) -> None:
        """No profiler."""

    def profiler_stop(self) -> None:
        """No profiler."""
