"""What becomes of every setting that only verl has: passed on and effective, or refused with a reason.

One table, read from the top; the first pattern that fits decides. Settings that Archer has itself, and old
names of them (`archer.config.names`), are translated before. `tests/engines/verl/test_verl_keys.py` walks
verl's whole tree: a setting that no pattern fits fails there, and is refused in a run.

A refused setting may be given with verl's default, which asks for nothing. `*` does not stop at a dot.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal

Kind = Literal["passed", "refused"]

REWARD = "responses are judged by Archer: set reward.custom_reward_function.path for a reward of your own"
FOLLOWS = "follows from a setting of Archer's: set {} instead"


@dataclass(frozen=True)
class KeyRule:
    """What happens to the settings that fit a pattern, and why.

    One that is `chosen` by Archer is not the user's, even at verl's default.
    """

    kind: Kind
    patterns: tuple[str, ...]
    reason: str
    chosen: bool = False


def under(sections: str, names: str) -> list[str]:
    """Patterns of all `names` in all `sections`, both separated by spaces."""
    return [f"{section}.{name}" for section in sections.split() for name in names.split()]


def _refused(reason: str, *patterns: str) -> KeyRule:
    return KeyRule("refused", patterns, reason)


def _chosen(reason: str, *patterns: str) -> KeyRule:
    return KeyRule("refused", patterns, reason, chosen=True)


def _passed(reason: str, *patterns: str) -> KeyRule:
    return KeyRule("passed", patterns, reason)


def _follows(instead: str, *patterns: str) -> KeyRule:
    return _refused(FOLLOWS.format(instead), *patterns)


ACTOR, REF, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
MICRO_BATCHES = (
    "use_dynamic_bsz micro_batch_size_per_gpu max_token_len_per_gpu infer_micro_batch_size_per_gpu "
    "infer_max_token_len_per_gpu"
)
FILLED_IN = (
    "architectures generation_config hf_config load_tokenizer local_hf_config_path local_path "
    "local_tokenizer_path model_type processor tokenizer target_parameters"
)

RULES = (
    # --- everywhere ---
    _refused("verl's classes of settings are not exchanged: leave it out", "*._target_"),
    _refused(
        "Archer's run loop does not start verl's profilers: leave it out; timing_s/* in metrics.jsonl is the "
        "time of every part of a step",
        "global_profiler.*",
        "*.profiler.*",
    ),
    # --- the run ---
    _follows("engine=verl (training is by FSDP2)", "model_engine"),
    _chosen(FOLLOWS.format("engine.device"), "trainer.device"),
    _refused("Archer extends verl's V1 trainer and no other: leave it out", "trainer.use_v1"),
    _refused(
        "Archer's trainer is the synchronous one, with a buffer and a sampler of its own: leave it out",
        "trainer.v1.*",
        "skip.*",
    ),
    _refused(
        "Archer's run loop writes no such files: trainer.entropy_trace.enable=True keeps all responses with "
        "their tokens",
        "trainer.rollout_data_dir",
    ),
    _refused(
        "Archer always orders a batch by whole groups and like lengths: leave it out", "trainer.balance_batch"
    ),
    _refused(
        "Archer's run loop does not watch for the end of a rented machine: send SIGTERM instead, upon which "
        "it saves and ends",
        "trainer.esi_redundant_time",
    ),
    _refused(
        "verl's FSDP checkpoints do not go to HDFS: set trainer.default_local_dir to a shared folder",
        "trainer.default_hdfs_dir",
    ),
    _refused(
        "checkpoints are kept and removed whole: set trainer.max_actor_ckpt_to_keep instead",
        "trainer.del_local_ckpt_after_load",
        "trainer.max_critic_ckpt_to_keep",
    ),
    _refused("verl's V1 trainer does not read it: leave it out", "trainer.ray_wait_register_center_timeout"),
    _passed(
        "read by verl's trainer, which Archer extends",
        "trainer.critic_warmup",
        "trainer.checkpoint_callback_class",
    ),
    _passed("verl's validation writes its generations there", "trainer.validation_data_dir"),
    _refused(
        "Archer does not save Ray's timeline: run `ray timeline` beside it", "ray_kwargs.timeline_json_file"
    ),
    _passed("arguments of ray.init", "ray_kwargs.ray_init.*"),
    _chosen("verl's V1 trainer needs the queue: leave it out", "transfer_queue.enable"),
    _passed("the queue between verl's processes", "transfer_queue.*"),
    # --- data: Archer reads prompts itself ---
    _chosen(
        "Archer reads prompts itself, the same for both engines: set data.train_files", "data.custom_cls.*"
    ),
    _follows(f"{MODEL}.tokenizer_path", "data.tokenizer"),
    _follows(f"{MODEL}.trust_remote_code", "data.trust_remote_code"),
    _refused(
        "Archer's rollout is a single turn without tools: leave it out",
        "data.tool_config_path",
        "data.function_tool_path",
        f"{ROLLOUT}.multi_turn.*",
        f"{ROLLOUT}.agent.agent_loop_config_path",
        f"{ROLLOUT}.agent.default_agent_loop",
    ),
    _refused(
        "Archer trains on text: leave it out",
        "data.image_*",
        "data.video_key",
        "data.audio_key",
        "data.mm_processor_kwargs*",
        "data.return_multi_modal_inputs",
        f"{ACTOR}.freeze_vision_tower",
        f"{ROLLOUT}.limit_images",
    ),
    _refused(
        "Archer reads prompts into memory itself and in one process: leave it out",
        "data.use_shm",
        "data.return_*",
        "data.filter_overlong_prompts_workers",
    ),
    _passed("verl draws prompts by this", "data.dataloader_num_workers", "data.validation_shuffle"),
    # --- rewards: Archer judges ---
    _refused(REWARD, "reward_model.reward_manager", "reward_model.reward_loop_*"),
    _refused(
        "Archer asks no reward model: call your judge in a function, reward.custom_reward_function.path",
        "reward.reward_model.*",
        "reward_model.*",
    ),
    _refused(
        "programs run in Archer's own sandbox: see reward.code.*",
        "reward.sandbox_fusion.*",
        "sandbox_fusion.*",
    ),
    _chosen(REWARD, "reward.reward_manager.*"),
    _refused(REWARD, "custom_reward_function.*"),
    # --- algorithms: advantages and losses are Archer's ---
    _refused(
        "Archer's group filter reads it not: set algorithm.filter_groups.max_num_gen_batches",
        "algorithm.filter_groups.*",
    ),
    _refused(
        "verl's V1 trainer does not read it: leave it out", "algorithm.use_pf_ppo", "algorithm.pf_ppo.*"
    ),
    _refused(
        f"the loss is Archer's: choose one with {ACTOR}.policy_loss.loss_mode",
        "algorithm.rollout_correction.loss_type",
        f"{ACTOR}.policy_loss.*",
    ),
    _passed("read by verl's rollout correction", "algorithm.rollout_correction.*"),
    _passed("of gae, which is verl's", "algorithm.lam"),
    _follows("algorithm.adv_estimator", "algorithm.gdpo_*"),
    _refused("a teacher's log-probs are no part of Archer's loss: leave it out", "distillation.*"),
    # --- actor, reference and critic ---
    _follows(f"{ROLLOUT}.n", *under(f"{ACTOR} {REF} critic", "rollout_n")),
    _follows(f"{ACTOR}.grad_clip", f"{ACTOR}.optim.clip_grad", f"{ACTOR}.optim.grad_clip"),
    _follows("trainer.total_training_steps", "*.optim.total_training_steps"),
    _follows(f"{MODEL}.use_fused_kernels", f"{ACTOR}.use_fused_kernels"),
    _follows(f"{MODEL}.use_remove_padding", f"{ACTOR}.use_remove_padding"),
    _follows(f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.ppo_micro_batch_size"),
    _follows("log_prob_micro_batch_size_per_gpu", "actor_rollout_ref.*.log_prob_micro_batch_size"),
    _follows("critic.ppo_micro_batch_size_per_gpu", "critic.ppo_micro_batch_size"),
    _refused(
        "the critic infers in the micro-batches that it trains in: set critic.ppo_max_token_len_per_gpu, or "
        "critic.use_dynamic_bsz=False and critic.ppo_micro_batch_size_per_gpu",
        "critic.forward_*",
        "critic.ppo_infer_*",
    ),
    _follows("critic.ppo_max_token_len_per_gpu and its siblings", *under("critic.fsdp", MICRO_BATCHES)),
    _follows("ppo_max_token_len_per_gpu and its siblings", "*.fsdp_config.*micro_batch_size_per_gpu"),
    _follows("ppo_max_token_len_per_gpu and its siblings", "*.fsdp_config.*max_token_len_per_gpu"),
    _follows(f"{ACTOR}.use_dynamic_bsz", "*.fsdp_config.use_dynamic_bsz"),
    _follows(f"{ROLLOUT}.log_prob_max_token_len_per_gpu", f"{ACTOR}.ppo_infer_*"),
    _follows(f"{MODEL}.use_remove_padding", "*.fsdp_config.use_remove_padding", f"{REF}.use_remove_padding"),
    _follows(f"{MODEL}.use_fused_kernels", "*.fsdp_config.use_fused_kernels", f"{REF}.use_fused_kernels"),
    _follows("critic.model.use_remove_padding", "critic.fsdp.use_remove_padding"),
    _follows("critic.model.use_fused_kernels", "critic.fsdp.use_fused_kernels"),
    _follows("algorithm.rollout_correction.bypass_mode", f"{ACTOR}.use_rollout_log_probs"),
    _refused("verl's FSDP engine does not read it: leave it out", f"{ACTOR}.use_prefix_grouper"),
    _refused("verl's V1 trainer does not read it: leave it out", f"{ACTOR}.calculate_sum_pi_squared"),
    _follows(f"{ACTOR}.fsdp_config.qat", f"{ACTOR}.qat.*", f"{ROLLOUT}.qat*"),
    _refused("of another training engine than FSDP2: leave it out", "*.turbo_config.*"),
    _refused("decided by verl for each role: leave it out", "*.forward_only"),
    _refused(
        "a checkpoint counts once it is complete, so it is written at once: leave it out",
        "*.checkpoint.async_save",
    ),
    _chosen(
        "the critic starts from actor_rollout_ref.model.path",
        "critic.model.path",
        "critic.model.tokenizer_path",
    ),
    _chosen(f"both models load the modules of {MODEL}.external_lib: set that", "critic.model.external_lib"),
    _passed("imported in every process, beside Archer's own", f"{MODEL}.external_lib"),
    _passed("read by verl's FSDP engine", f"{ACTOR}.optim.*", "critic.optim.*", "critic.fsdp.*"),
    _passed("read by verl's FSDP engine", *under(f"{ACTOR} {REF}", "fsdp_config.*")),
    _passed("what a checkpoint holds", "*.checkpoint.*"),
    _passed(
        "read by verl's workers",
        *under(f"{ACTOR} {REF} critic", "strategy"),
        *under(f"{ACTOR} {REF}", "ulysses_sequence_parallel_size pad_to_length"),
        *under(f"{ACTOR} {REF}", "entropy_from_logits_* entropy_checkpointing"),
        *under(ACTOR, "calculate_entropy"),
        f"{REF}.log_prob_*",
    ),
    _follows("algorithm.adv_estimator=gae", "critic.enable"),
    _passed(
        "of the critic, which gae trains",
        *under("critic", "ppo_* use_dynamic_bsz shuffle data_loader_seed"),
        *under("critic", "cliprange_value loss_*"),
    ),
    _refused(f"the reference trains nothing: set it under {ACTOR}, or leave it out", f"{REF}.*"),
    # --- model ---
    _refused("verl fills it in itself: leave it out", *under(f"{MODEL} critic.model", FILLED_IN)),
    _refused("verl fills it in itself: leave it out", "*.engine", "*.model_config", "*.global_batch_info"),
    _passed("adapters are merged before the rollout is given weights", "*.model.lora.merge"),
    _refused(f"of Megatron's adapters: set {MODEL}.lora_rank and its siblings", "*.model.lora.*"),
    _refused(
        "the heads of multi-token prediction are not trained: leave it out",
        "*.model.mtp.*",
        f"{ROLLOUT}.mtp*",
    ),
    _passed(
        "read where verl builds a model",
        *under(f"{MODEL} critic.model", "hf_config_path use_shm enable_* use_remove_padding use_liger"),
        *under(f"{MODEL} critic.model", "use_fused_kernels fused_kernel_options.* tiled_mlp.*"),
        *under("critic.model", "trust_remote_code custom_chat_template override_config* lora_* *_modules"),
    ),
    # --- rollout ---
    _refused("verl has asynchronous rollout servers only: leave it out", f"{ROLLOUT}.mode"),
    _refused(
        "training and rollout share their devices: leave it out",
        f"{ROLLOUT}.nnodes",
        f"{ROLLOUT}.standalone_gpu_memory_utilization",
        "actor_rollout_ref.hybrid_engine",
    ),
    _follows("trainer.n_gpus_per_node", f"{ROLLOUT}.n_gpus_per_node"),
    _follows("data.max_prompt_length", f"{ROLLOUT}.prompt_length"),
    _follows("data.max_response_length", f"{ROLLOUT}.response_length"),
    _refused(
        "verl's rollout servers do not read it: set temperature, top_p and top_k, or leave it out",
        f"{ROLLOUT}.do_sample",
        f"{ROLLOUT}.over_sample_rate",
        f"{ROLLOUT}.repetition_penalty",
        f"{ROLLOUT}.multi_stage_wake_up",
        *under(ROLLOUT, "checkpoint_manager_class custom layer_name_map server sglang_engine_mode"),
        f"{ROLLOUT}.agent.agent_loop_manager_class",
        f"{ROLLOUT}.agent.custom_async_server.*",
    ),
    _refused(
        "weights go straight from the trainer to the rollout: leave it out",
        f"{ROLLOUT}.checkpoint_engine.backend",
    ),
    _refused("verl's workers do not read it: set VERL_PG_TIMEOUT_SECONDS", "actor_rollout_ref.nccl_timeout"),
    _passed("where and how long agents run", f"{ROLLOUT}.agent.num_workers"),
    _passed(
        "read by the rollout server and the workers beside it",
        *under(ROLLOUT, "full_determinism dtype ignore_eos"),
        *under(ROLLOUT, "cudagraph_capture_sizes *_parallel_size max_num_batched_tokens"),
        *under(ROLLOUT, "max_model_len enable_* logprobs_mode scheduling_policy load_format layered_summon"),
        *under(ROLLOUT, "log_prob_* disable_log_stats engine_kwargs.* router_config_path"),
        *under(ROLLOUT, "calculate_log_probs checkpoint_engine.* trace.* skip_tokenizer_init prometheus.*"),
        *under(ROLLOUT, "moe_load_balance_metrics_interval quantization* disaggregation.*"),
    ),
)


@lru_cache(maxsize=2048)
def rule_of(key: str) -> KeyRule | None:
    """The rule for a setting of verl's that Archer does not have itself; None where the table has a hole."""
    return next((rule for rule in RULES if any(fnmatchcase(key, pattern) for pattern in rule.patterns)), None)


def unused_patterns(keys: list[str]) -> Iterator[str]:
    """Patterns that decide over none of the keys."""
    for rule in RULES:
        for pattern in rule.patterns:
            if not any(fnmatchcase(key, pattern) and rule_of(key) is rule for key in keys):
                yield pattern
