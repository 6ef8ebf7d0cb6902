"""Settings of verl's that cannot go together, with each other or with what Archer traces."""

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec

from omegaconf import DictConfig, OmegaConf

from archer.config.parse import configuration_error, flat
from archer.config.root import TrainConfig
from archer.engines.verl.translate import CPU_ROLLOUT, external_libraries, ranks
from archer.training.credit import TokenCredit

HEAD = "lm_head"


def check_combinations(config: TrainConfig, tree: DictConfig) -> None:
    """Raise one ArcherError for all settings of verl's that the wanted traces cannot live with."""
    problems = [*_always(config, tree)]
    if config.trainer.influence_trace.enable:
        problems += _influence(config, tree)
    if config.algorithm.token_credit.mode != "none":
        problems += _credit(config, tree)
    if config.trainer.entropy_trace.enable or config.trainer.influence_trace.enable:
        problems += _entropy(tree)
    if problems:
        raise configuration_error(problems)


def _always(config: TrainConfig, tree: DictConfig) -> Iterator[str]:
    shared, devices = config.sequence_parallel_size, ranks(config)
    if devices % shared:
        yield (
            f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={shared}: {devices} devices "
            "(trainer.nnodes times trainer.n_gpus_per_node) cannot be divided by it"
        )
    if shared > 1 and not tree.actor_rollout_ref.model.use_remove_padding:
        yield (
            f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={shared} needs packed batches: install "
            "flash-attn, or set actor_rollout_ref.model.use_remove_padding=True"
        )
    for name in external_libraries(config):
        if not _can_be_imported(name):
            yield (
                f"actor_rollout_ref.model.external_lib={name}: there is no such module; put the folder that "
                "holds it on PYTHONPATH"
            )
    yield from _contradictions(config, tree)
    yield from _optimizers(tree)
    strategy = OmegaConf.select(tree, "actor_rollout_ref.actor.strategy")
    if strategy not in ("fsdp", "fsdp2"):
        yield f"actor_rollout_ref.actor.strategy={strategy}: Archer trains with fsdp2 (or fsdp)"
    model = tree.actor_rollout_ref.model
    if tree.actor_rollout_ref.rollout.name == CPU_ROLLOUT and model.lora_rank > 0 and not model.lora.merge:
        yield (
            f"actor_rollout_ref.model.lora_rank={model.lora_rank}: the rollout {CPU_ROLLOUT} takes whole "
            "weights only; leave actor_rollout_ref.model.lora.merge at True"
        )
    if tree.trainer.device == "cpu" and strategy != "fsdp2":
        yield "actor_rollout_ref.actor.strategy=fsdp does not run on a CPU: leave it at fsdp2"


def _contradictions(config: TrainConfig, tree: DictConfig) -> Iterator[str]:
    """Settings of verl's of which one makes the other impossible."""
    rollout, correction = tree.actor_rollout_ref.rollout, tree.algorithm.rollout_correction
    dynamic = tree.actor_rollout_ref.actor.use_dynamic_bsz
    if rollout.log_prob_use_dynamic_bsz != dynamic:
        yield (
            f"actor_rollout_ref.rollout.log_prob_use_dynamic_bsz={rollout.log_prob_use_dynamic_bsz}: verl "
            f"wants it to be actor_rollout_ref.actor.use_dynamic_bsz, which is {dynamic}: leave it out"
        )
    if not rollout.calculate_log_probs and (correction.rollout_is or correction.rollout_rs):
        yield (
            "actor_rollout_ref.rollout.calculate_log_probs=False leaves nothing for "
            "algorithm.rollout_correction to correct by: leave it out"
        )
    if flat(config.engine.verl).get("critic.enable") is False and tree.critic.enable:
        yield (
            f"critic.enable=False: algorithm.adv_estimator={config.algorithm.adv_estimator} needs a critic: "
            "leave it out, or choose another estimator"
        )
    shared = rollout.tensor_model_parallel_size * rollout.data_parallel_size
    if ranks(config) % (shared * rollout.pipeline_model_parallel_size):
        yield (
            f"actor_rollout_ref.rollout.tensor_model_parallel_size={rollout.tensor_model_parallel_size}: "
            f"{ranks(config)} devices (trainer.nnodes times trainer.n_gpus_per_node) cannot be divided by "
            "what one rollout server takes (tensor_model_ times data_ times pipeline_model_parallel_size)"
        )
    for role in ("actor_rollout_ref.actor", "critic"):
        contents = OmegaConf.select(tree, f"{role}.checkpoint")
        saved, loaded = list(contents.save_contents), list(contents.load_contents)
        missing = [part for part in loaded if part not in saved]
        if "model" not in loaded:
            yield (
                f"{role}.checkpoint.load_contents={loaded}: without model a resumed run would begin with the "
                "first weights again; add it"
            )
        elif missing:
            yield (
                f"{role}.checkpoint.save_contents={saved} lacks {', '.join(missing)}, which "
                f"{role}.checkpoint.load_contents={loaded} wants of it when the run resumes: make them agree"
            )


def _optimizers(tree: DictConfig) -> Iterator[str]:
    """Optimizers that do not exist: verl imports them by name, in its workers."""
    for role in ("actor_rollout_ref.actor", "critic"):
        optim = OmegaConf.select(tree, f"{role}.optim")
        if (optim.optimizer_impl, optim.optimizer) == ("torch.optim", "AdamW"):
            continue
        if not _can_be_imported(optim.optimizer_impl):
            yield f"{role}.optim.optimizer_impl={optim.optimizer_impl}: there is no such module"
        elif not hasattr(import_module(optim.optimizer_impl), optim.optimizer):
            yield f"{role}.optim.optimizer={optim.optimizer}: {optim.optimizer_impl} has no such optimizer"


def _can_be_imported(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _entropy(tree: DictConfig) -> Iterator[str]:
    if OmegaConf.select(tree, "algorithm.rollout_correction.bypass_mode"):
        yield (
            "algorithm.rollout_correction.bypass_mode=True skips the pass that computes entropies, so "
            "nothing can be traced: set it to False, or trainer.entropy_trace.enable and "
            "trainer.influence_trace.enable to False"
        )


def _credit(config: TrainConfig, tree: DictConfig) -> Iterator[str]:
    chosen = config.algorithm.token_credit
    credit = TokenCredit(chosen, seed=0)
    which = f"algorithm.token_credit.mode={chosen.mode}"
    if OmegaConf.select(tree, "algorithm.rollout_correction.bypass_mode"):
        yield (
            f"{which} reads the policy's log-probs and entropies, which "
            "algorithm.rollout_correction.bypass_mode=True does not compute: set it to False"
        )
    if credit.scores is None:
        return
    instead = "or choose a mode that reads no influence (spare_confident, entropy_top, neg_log_prob)"
    if credit.scores.anchors != "contrast":
        yield "algorithm.token_credit.anchors=accepted needs engine=local: leave it at contrast"
    if config.sequence_parallel_size > 1:
        yield (
            f"{which} compares responses, whose tokens "
            f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={config.sequence_parallel_size} spreads "
            f"over ranks: set it to 1, {instead}"
        )
    if tree.actor_rollout_ref.model.use_fused_kernels and credit.scores.of == "head":
        yield (
            f"{which} reads the head's logits, which actor_rollout_ref.model.use_fused_kernels=True never "
            f"makes: set it to False, {instead}"
        )
    if tree.actor_rollout_ref.actor.strategy == "fsdp":
        yield (
            f"{which} reads modules, whose weights actor_rollout_ref.actor.strategy=fsdp flattens: leave it "
            f"at fsdp2, {instead}"
        )


def _influence(config: TrainConfig, tree: DictConfig) -> Iterator[str]:
    actor, model = tree.actor_rollout_ref.actor, tree.actor_rollout_ref.model
    instead = "or trainer.influence_trace.enable=False"
    if actor.strategy == "fsdp":
        yield (
            "actor_rollout_ref.actor.strategy=fsdp flattens weights, so influence cannot be traced: "
            f"leave it at fsdp2, {instead}"
        )
    sequence_parallel = config.sequence_parallel_size
    if sequence_parallel > 1:
        yield (
            f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={sequence_parallel} spreads the tokens "
            f"of a response over ranks, which influence tracing does not follow: set it to 1, {instead}"
        )
    entries = config.trainer.influence_trace.module_name_filter
    if model.use_fused_kernels and (not entries or any(entry in HEAD for entry in entries)):
        yield (
            "actor_rollout_ref.model.use_fused_kernels=True multiplies by the head's weights outside of "
            f"their module, so that {HEAD} cannot be traced: take it out of "
            f"trainer.influence_trace.module_name_filter, set use_fused_kernels to False, {instead}"
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
