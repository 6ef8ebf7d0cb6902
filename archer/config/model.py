"""`actor_rollout_ref.*`: the policy, its optimisation and its sampling."""

from dataclasses import dataclass, field
from typing import Any, Literal

from archer.config.knob import knob, section

KlEstimator = Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"]


@dataclass(frozen=True)
class ModelConfig:
    """Which model is trained."""

    path: str = knob("", "local folder or hub id of a causal language model; `builtin:tiny_reasoner`")
    tokenizer_path: str | None = knob(None, "tokenizer folder or hub id; default: the model's own")
    custom_chat_template: str | None = knob(None, "Jinja chat template that replaces the tokenizer's")
    trust_remote_code: bool = knob(False, "run model code that comes with the checkpoint")
    enable_gradient_checkpointing: bool = knob(True, "recompute activations in the backward pass")
    override_config: dict[str, Any] = field(
        default_factory=dict,
        metadata={"help": "fields of the model's configuration to change, e.g. attn_implementation"},
    )


@dataclass(frozen=True)
class OptimConfig:
    """AdamW and its schedule."""

    lr: float = knob(1e-6, "peak learning rate")
    weight_decay: float = knob(0.01, "decoupled weight decay")
    betas: tuple[float, ...] = knob((0.9, 0.999), "AdamW's moment decay rates")
    lr_warmup_steps: int = knob(-1, "linear warm-up steps; -1: use lr_warmup_steps_ratio")
    lr_warmup_steps_ratio: float = knob(0.0, "linear warm-up as a share of all steps")
    lr_scheduler_type: Literal["constant", "cosine"] = knob("constant", "schedule after the warm-up")
    min_lr_ratio: float = knob(0.0, "final learning rate of the cosine schedule, as a share of lr")
    num_cycles: float = knob(0.5, "cosine periods over the run; 0.5 ends at the minimum")


@dataclass(frozen=True)
class PolicyLossConfig:
    """Which policy loss."""

    loss_mode: Literal["vanilla", "gspo", "cispo", "aspo", "dual_token"] = knob(
        "vanilla", "policy loss; `vanilla` is PPO-clip with clip-higher and dual clip; see docs/algorithms.md"
    )


@dataclass(frozen=True)
class ActorConfig:
    """The policy update."""

    ppo_mini_batch_size: int = knob(64, "prompts per optimizer step")
    ppo_epochs: int = knob(1, "passes over each step's responses")
    ppo_max_token_len_per_gpu: int = knob(16384, "token budget of a micro-batch, padding included")
    use_dynamic_bsz: bool = knob(True, "size micro-batches by tokens; False: by ppo_micro_batch_size_per_gpu")
    ppo_micro_batch_size_per_gpu: int | None = knob(None, "responses per micro-batch")
    shuffle: bool = knob(False, "shuffle prompt groups between mini-batches of an epoch")
    data_loader_seed: int = knob(42, "seed of that shuffling")
    clip_ratio: float = knob(0.2, "PPO clip range, both sides")
    clip_ratio_low: float | None = knob(None, "lower clip range; default: clip_ratio; for gspo 3e-4")
    clip_ratio_high: float | None = knob(
        None, "upper clip range (DAPO's clip-higher); default: clip_ratio; for gspo 4e-4"
    )
    clip_ratio_c: float = knob(
        3.0, "dual clip: bound on the weight where the advantage is negative, for aspo at either sign"
    )
    token_entropy_quantile: float = knob(
        0.8,
        "tokens of a response above this quantile of its entropies are reasoning tokens, others knowledge",
    )
    low_entropy_clip_ratio_low: float = knob(0.2, "dual_token: lower clip range of knowledge tokens")
    low_entropy_clip_ratio_high: float = knob(0.2, "dual_token: upper clip range of knowledge tokens")
    high_entropy_clip_ratio_low: float = knob(0.4, "dual_token: lower clip range of reasoning tokens")
    high_entropy_clip_ratio_high: float = knob(0.4, "dual_token: upper clip range of reasoning tokens")
    loss_agg_mode: Literal[
        "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
    ] = knob("token-mean", "how token losses become one number, over the whole mini-batch")
    loss_scale_factor: int | None = knob(
        None, "divisor of seq-mean-token-sum-norm; default: data.max_response_length"
    )
    policy_loss: PolicyLossConfig = section(PolicyLossConfig)
    entropy_coeff: float = knob(0.0, "weight of the entropy bonus")
    use_kl_loss: bool = knob(False, "add the KL to the reference model to the loss")
    kl_loss_coef: float = knob(0.001, "its weight; with dual_token, its weight at knowledge tokens")
    high_entropy_kl_loss_scale_coef: float = knob(0.0, "dual_token: its weight at reasoning tokens")
    kl_loss_type: KlEstimator = knob("low_var_kl", "its estimator")
    grad_clip: float = knob(1.0, "largest gradient norm")
    optim: OptimConfig = section(OptimConfig)


@dataclass(frozen=True)
class ValKwargs:
    """Sampling at validation."""

    n: int = knob(1, "responses per validation prompt")
    do_sample: bool = knob(False, "sample; False: greedy")
    temperature: float = knob(1.0, "sampling temperature at validation")
    top_p: float = knob(1.0, "nucleus sampling at validation")
    top_k: int = knob(-1, "sample from the k likeliest tokens at validation; -1: all")


@dataclass(frozen=True)
class RolloutConfig:
    """Sampling of responses."""

    n: int = knob(8, "responses per prompt (the group size)")
    temperature: float = knob(1.0, "sampling temperature; log-probs and entropy are taken at it")
    top_p: float = knob(1.0, "nucleus sampling")
    top_k: int = knob(-1, "sample from the k likeliest tokens; -1: all")
    seed: int = knob(42, "seed of the sampling")
    max_num_seqs: int = knob(256, "responses decoded at a time")
    log_prob_max_token_len_per_gpu: int | None = knob(
        None, "token budget of a forward-only micro-batch; default: actor.ppo_max_token_len_per_gpu"
    )
    val_kwargs: ValKwargs = section(ValKwargs)


@dataclass(frozen=True)
class ActorRolloutRefConfig:
    """Actor, rollout and reference model."""

    model: ModelConfig = section(ModelConfig)
    actor: ActorConfig = section(ActorConfig)
    rollout: RolloutConfig = section(RolloutConfig)
