"""Checks of the loss: settings that the chosen algorithm would not use, or that contradict each other."""

from collections.abc import Iterator

from archer.algorithms.threshold import Threshold
from archer.config.model import ActorConfig
from archer.config.root import TrainConfig
from archer.errors import ArcherError

PREFIX = "actor_rollout_ref.actor"
MODE = f"{PREFIX}.policy_loss.loss_mode"
CLASS_BOUNDS = (
    "low_entropy_clip_ratio_low",
    "low_entropy_clip_ratio_high",
    "high_entropy_clip_ratio_low",
    "high_entropy_clip_ratio_high",
)
COMMON_BOUNDS = ("clip_ratio", "clip_ratio_low", "clip_ratio_high")


def loss_rules(config: TrainConfig) -> Iterator[str]:
    """Yield what is wrong with the settings of the loss."""
    yield from _bounds(config.actor_rollout_ref.actor)
    yield from _kl(config.actor_rollout_ref.actor)
    yield from _aggregation(config)
    yield from _rollout_correction(config)


def _bounds(actor: ActorConfig) -> Iterator[str]:
    mode = actor.policy_loss.loss_mode
    if not 0 <= actor.token_entropy_quantile <= 1:
        yield f"{PREFIX}.token_entropy_quantile={actor.token_entropy_quantile}: must be in [0, 1]"
    if mode == "dual_token":
        for name in _changed(actor, COMMON_BOUNDS):
            yield (
                f"{PREFIX}.{name} is not used by {MODE}=dual_token, whose tokens have "
                f"bounds by their kind: set {', '.join(CLASS_BOUNDS)}"
            )
        return
    for name in _changed(actor, CLASS_BOUNDS):
        yield f"{PREFIX}.{name} is used by {MODE}=dual_token only, not by {mode}"
    if mode == "gspo":
        for name in _changed(actor, ("clip_ratio",)):
            yield (
                f"{PREFIX}.{name} is not used by {MODE}=gspo, which bounds the ratio of "
                "whole responses: set clip_ratio_low and clip_ratio_high (3e-4 and 4e-4 if left out)"
            )


def _kl(actor: ActorConfig) -> Iterator[str]:
    if not _changed(actor, ("high_entropy_kl_loss_scale_coef",)):
        return
    mode = actor.policy_loss.loss_mode
    if mode != "dual_token":
        yield (
            f"{PREFIX}.high_entropy_kl_loss_scale_coef is used by {MODE}=dual_token "
            f"only, not by {mode}; the KL of all tokens is weighted by kl_loss_coef"
        )
    elif not actor.use_kl_loss:
        yield f"{PREFIX}.high_entropy_kl_loss_scale_coef needs {PREFIX}.use_kl_loss=True"


def _aggregation(config: TrainConfig) -> Iterator[str]:
    actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
    if actor.loss_scale_factor is not None and actor.loss_agg_mode != "seq-mean-token-sum-norm":
        yield (
            f"{PREFIX}.loss_scale_factor is used by {PREFIX}.loss_agg_mode=seq-mean-token-sum-norm only, not "
            f"by {actor.loss_agg_mode}"
        )
    if not algorithm.norm_adv_by_std_in_grpo and algorithm.adv_estimator not in ("grpo", "dr_grpo"):
        yield (
            "algorithm.norm_adv_by_std_in_grpo=False changes algorithm.adv_estimator=grpo only, not "
            f"{algorithm.adv_estimator}"
        )


def _rollout_correction(config: TrainConfig) -> Iterator[str]:
    options = config.algorithm.rollout_correction
    try:
        Threshold.parse(options.rollout_is_threshold)
    except ArcherError as error:
        yield str(error)
    if options.rollout_is is None and options.rollout_is_batch_normalize:
        yield (
            "algorithm.rollout_correction.rollout_is_batch_normalize=True needs "
            "algorithm.rollout_correction.rollout_is=token or sequence"
        )


def _changed(actor: ActorConfig, names: tuple[str, ...]) -> list[str]:
    """Return those of the settings that are not at their default."""
    default = ActorConfig()
    return [name for name in names if vars(actor)[name] != vars(default)[name]]
