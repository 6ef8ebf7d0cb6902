"""LoRA adapters of verl's checkpoints, in the format and the place that the local engine's have.

    checkpoints/global_step_20/lora_adapter/    what PEFT, `archer eval` and `archer export-model` load

verl itself saves adapters among its shards only, and a whole model under PEFT's names, which nothing loads.
"""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from verl.utils.device import get_device_id

from archer.generation.adapter_files import write_adapter
from archer.generation.lora import ADAPTER
from archer.generation.model import ADAPTER_FOLDER


def save_adapter(module: nn.Module, base: str, actor_folder: Path) -> None:
    """Write the adapter of a sharded model beside verl's own files; every rank has to take part."""
    tensors = whole_adapter(module)
    if dist.get_rank() == 0:
        config: Any = module.peft_config
        write_adapter(actor_folder.parent / ADAPTER_FOLDER, base, config[ADAPTER], tensors)
    dist.barrier()


@torch.no_grad()
def whole_adapter(module: nn.Module) -> dict[str, Tensor]:
    """What is trained, under the names that PEFT's files have."""
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    return {name.replace(f".{ADAPTER}.", "."): whole(parameter) for name, parameter in trained.items()}


def whole(parameter: Tensor) -> Tensor:
    """A parameter put together from the ranks' parts."""
    if not isinstance(parameter, DTensor):
        return parameter
    on_device: Any = parameter.to(get_device_id())  # ranks exchange nothing that was offloaded to the host
    return on_device.full_tensor()
