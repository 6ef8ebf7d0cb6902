"""What cannot be traced inside verl, refused before anything starts."""

from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from archer.config.root import TrainConfig
from archer.engines.verl.cpu import ROLLOUT as CPU_ROLLOUT
from archer.errors import ArcherError


def check_traceable(config: TrainConfig, tree: DictConfig) -> None:
    """Raise one ArcherError for all settings of verl's that the wanted traces cannot live with."""
    problems = [*_always(tree)]
    if config.trainer.influence_trace.enable:
        problems += _influence(tree)
    if config.trainer.entropy_trace.enable or config.trainer.influence_trace.enable:
        problems += _entropy(tree)
    if problems:
        raise ArcherError("The configuration has a problem:\n" + "\n".join(f"  {p}" for p in problems))


def _always(tree: DictConfig) -> Iterator[str]:
    strategy = OmegaConf.select(tree, "actor_rollout_ref.actor.strategy")
    if strategy not in ("fsdp", "fsdp2"):
        yield f"actor_rollout_ref.actor.strategy={strategy}: Archer trains with fsdp2 (or fsdp)"
    model = tree.actor_rollout_ref.model
    if tree.actor_rollout_ref.rollout.name == CPU_ROLLOUT and model.lora_rank > 0 and not model.lora.merge:
        yield (
            f"actor_rollout_ref.model.lora_rank={model.lora_rank}: the rollout {CPU_ROLLOUT} takes whole "
            "weights only; set actor_rollout_ref.model.lora.merge=True, too"
        )
    if tree.trainer.device == "cpu" and strategy != "fsdp2":
        yield "actor_rollout_ref.actor.strategy=fsdp does not run on a CPU: leave it at fsdp2"


def _entropy(tree: DictConfig) -> Iterator[str]:
    if OmegaConf.select(tree, "algorithm.rollout_correction.bypass_mode"):
        yield (
            "algorithm.rollout_correction.bypass_mode=True skips the pass that computes entropies, so "
            "nothing can be traced: set it to False, or trainer.entropy_trace.enable and "
            "trainer.influence_trace.enable to False"
        )


def _influence(tree: DictConfig) -> Iterator[str]:
    actor, model = tree.actor_rollout_ref.actor, tree.actor_rollout_ref.model
    instead = "or trainer.influence_trace.enable=False"
    if actor.strategy == "fsdp":
        yield (
            "actor_rollout_ref.actor.strategy=fsdp flattens weights, so influence cannot be traced: "
            f"leave it at fsdp2, {instead}"
        )
    sequence_parallel = max(
        actor.ulysses_sequence_parallel_size, actor.fsdp_config.ulysses_sequence_parallel_size
    )
    if sequence_parallel > 1:
        yield (
            f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={sequence_parallel} spreads the tokens "
            f"of a response over ranks, which influence tracing does not follow: set it to 1, {instead}"
        )
    if model.use_fused_kernels:
        yield (
            "actor_rollout_ref.model.use_fused_kernels=True never forms the log-probs that influence "
            f"tracing watches: set it to False, {instead}"
        )
    if model.tiled_mlp.enabled:
        yield (
            "actor_rollout_ref.model.tiled_mlp.enabled=True runs a layer in pieces and again in the "
            f"backward, which influence tracing does not follow: set it to False, {instead}"
        )
    if actor.fsdp_config.offload_policy:
        yield (
            "actor_rollout_ref.actor.fsdp_config.offload_policy=True keeps weights in CPU memory during "
            "the update, where influence would be scored: use param_offload and optimizer_offload "
            f"instead, {instead}"
        )
