"""`actor_rollout_ref.actor.*`: the policy update, which both engines run."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from archer.algorithms.kl import KL_ESTIMATORS
from archer.algorithms.policy_losses.base import POLICY_LOSSES
from archer.generation.config import ModelConfig, RolloutConfig
from archer.plugins import extended
from archer.settings import Section, knob, section

DEFAULT_TOKENS = 16384  # of a micro-batch, where nothing is known of the memory


@dataclass(frozen=True)
class OptimConfig(Section):
    """AdamW and its schedule."""

    lr: float = knob(1e-6, "peak learning rate", at_least=0)
    weight_decay: float = knob(0.01, "decoupled weight decay", at_least=0)
    betas: tuple[float, ...] = knob((0.9, 0.999), "AdamW's two moment decay rates", at_least=0, below=1)
    lr_warmup_steps: int = knob(-1, "linear warm-up steps; -1: use lr_warmup_steps_ratio")
    lr_warmup_steps_ratio: float = knob(
        0.0, "linear warm-up as a share of all steps", at_least=0, at_most=1, needs="lr_warmup_steps<=0"
    )
    lr_scheduler_type: Literal["constant", "cosine"] = knob("constant", "schedule after the warm-up")
    min_lr_ratio: float = knob(
        0.0,
        "final learning rate of the cosine schedule, as a share of lr",
        at_least=0,
        at_most=1,
        needs="lr_scheduler_type=cosine",
    )
    num_cycles: float = knob(
        0.5,
        "cosine periods over the run; 0.5 ends at the minimum",
        at_least=0,
        needs="lr_scheduler_type=cosine",
    )


@dataclass(frozen=True)
class LossChoice(Section):
    """Which policy loss."""

    loss_mode: str = knob(
        "vanilla",
        "policy loss; `vanilla` is PPO-clip with clip-higher and dual clip; see docs/algorithms.md",
        table=POLICY_LOSSES,
    )


@dataclass(frozen=True)
class ActorConfig(Section):
    """The policy update. Losses declare the settings that they alone read."""

    tables: ClassVar[tuple[Any, ...]] = (POLICY_LOSSES,)

    ppo_mini_batch_size: int = knob(64, "prompts per optimizer step", above=0)
    ppo_epochs: int = knob(1, "passes over each step's responses", above=0)
    ppo_max_token_len_per_gpu: int | None = knob(
        None,
        "token budget of a micro-batch, padding included; default: engine=local on cuda as many as fit the "
        f"free memory, otherwise {DEFAULT_TOKENS}",
        above=0,
        unit="tokens",
    )
    use_dynamic_bsz: bool = knob(True, "size micro-batches by tokens; False: by ppo_micro_batch_size_per_gpu")
    ppo_micro_batch_size_per_gpu: int | None = knob(
        None, "responses per micro-batch", above=0, needs="use_dynamic_bsz=False"
    )
    shuffle: bool = knob(False, "shuffle prompt groups between mini-batches of an epoch")
    data_loader_seed: int = knob(42, "seed of that shuffling", needs="shuffle")
    token_entropy_quantile: float = knob(
        0.8,
        "tokens of a response above this quantile of its entropies are reasoning tokens, others knowledge",
        at_least=0,
        at_most=1,
    )
    loss_agg_mode: Literal[
        "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
    ] = knob("token-mean", "how token losses become one number, over the whole mini-batch")
    loss_scale_factor: int | None = knob(
        None,
        "divisor of seq-mean-token-sum-norm; default: data.max_response_length",
        above=0,
        needs="loss_agg_mode=seq-mean-token-sum-norm",
        idle="refuse",
    )
    policy_loss: LossChoice = section(LossChoice)
    entropy_coeff: float = knob(0.0, "weight of the entropy bonus")
    use_kl_loss: bool = knob(False, "add the KL to the reference model to the loss")
    kl_loss_coef: float = knob(
        0.001, "its weight; with dual_token, its weight at knowledge tokens", at_least=0, needs="use_kl_loss"
    )
    kl_loss_type: str = knob("low_var_kl", "its estimator", table=KL_ESTIMATORS, needs="use_kl_loss")
    grad_clip: float = knob(1.0, "largest gradient norm", above=0)
    optim: OptimConfig = section(OptimConfig)


def actor_config(**settings: Any) -> ActorConfig:
    """Return the section with the settings of every loss, those given changed."""
    return extended(ActorConfig)(**settings)


@dataclass(frozen=True)
class ActorRolloutRefConfig(Section):
    """Actor, rollout and reference model."""

    model: ModelConfig = section(ModelConfig)
    actor: ActorConfig = section(actor_config)
    rollout: RolloutConfig = section(RolloutConfig)
