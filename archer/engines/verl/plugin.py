"""What verl loads in every process that builds a model (`actor_rollout_ref.model.external_lib`).

The (device, vendor) key of an engine beats verl's own device-only key, so stock verl is extended without a
patch.
"""

from typing import Any

from verl.utils.device import get_device_name, get_vendor
from verl.workers.engine import EngineRegistry
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplicaRegistry

import archer.engines.verl.prompts  # noqa: F401  (registers itself)
from archer.engines.verl.traced_update import TracedUpdate
from archer.engines.verl.translate import CPU_ROLLOUT as ROLLOUT


def register_engines() -> None:
    """Put `TracedUpdate` in front of verl's language-model engine for this machine's device."""
    device = get_device_name()
    if device == "cpu":
        import archer.engines.verl.cpu.engines  # noqa: F401
    backends = ["fsdp2"] if device == "cpu" else ["fsdp", "fsdp2"]
    base = EngineRegistry.get_engine_cls("language_model", backends[0])
    engine = type("ArcherEngine", (TracedUpdate, base), {})
    EngineRegistry.register("language_model", backends, device=device, vendor=get_vendor())(engine)


def register_rollout() -> None:
    """Make the rollout for trials known by its name; it is imported where it is chosen."""

    def replica() -> Any:
        from archer.engines.verl.cpu.rollout import Replica

        return Replica

    RolloutReplicaRegistry.register(ROLLOUT, replica)
    # verl has no function that registers the training worker's side
    _ROLLOUT_REGISTRY[(ROLLOUT, "async")] = "archer.engines.verl.cpu.rollout.Adapter"


register_engines()
register_rollout()
