"""Settings that change nothing, because another one switches off what they belong to.

They are not refused: configurations are shared with verl, where such values lie around. A run says of each
that the user gave, and that is not at its default, why it has no effect.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from archer.config.algorithm import FilterGroupsConfig, KlCtrlConfig
from archer.config.model import ValKwargs
from archer.config.parse import key_names
from archer.config.reward import CodeRewardConfig, OverlongBufferConfig
from archer.config.root import TrainConfig
from archer.config.rules import value_of
from archer.config.trainer import EntropyTraceConfig
from archer.influence.config import InfluenceConfig

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
INFLUENCE = "trainer.influence_trace"
OVERLONG = "reward.reward_kwargs.overlong_buffer_cfg"

TELLS_NOTHING_ALONE = ("enable", "len", "name", "path", "type")


@dataclass(frozen=True)
class Dependence:
    """Knobs that act only where another setting has certain values."""

    knobs: tuple[str, ...]  # full names, or patterns of them
    on: str  # the setting that decides
    acts: Callable[[Any], bool]  # of its value


def idle_notes(config: TrainConfig, given: Collection[str]) -> list[str]:
    """Return one sentence for each of the `given` settings (full names) that changes nothing in this run."""
    default = TrainConfig()
    notes = []
    for name in sorted({_knob(name) for name in given}):
        is_own = name in KNOBS  # what verl's own settings are by default is known to verl
        if is_own and value_of(config, name) == value_of(default, name):
            continue
        reason = next(_reasons(config, name), None)
        if reason is not None:
            notes.append(f"{name}={_shown(_value(config, name))} has no effect: {reason}")
    return notes


def _reasons(config: TrainConfig, name: str) -> Iterator[str]:
    for row in DEPENDENCES:
        if any(fnmatchcase(name, knob) for knob in row.knobs):
            decides = value_of(config, row.on)
            if not row.acts(decides):
                yield f"{_beside(row.on, name)} is {_shown(decides)}"


def _knob(name: str) -> str:
    """The knob that a name belongs to: itself, or the one that holds a dictionary with it."""
    return next((knob for knob in KNOBS if name.startswith(f"{knob}.")), name)


def _value(config: TrainConfig, name: str) -> Any:
    if name in KNOBS:
        return value_of(config, name)
    node: Any = config.engine.verl
    for part in name.split("."):
        node = node[part]
    return node


def _beside(key: str, name: str) -> str:
    """How a key is called where `name` has just been said: without their section, if that is clear."""
    short = key.removeprefix(name.rpartition(".")[0] + ".")
    return key if short in TELLS_NOTHING_ALONE else short


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, tuple | list):
        if not value:
            return "empty"
        return "[" + ",".join(map(str, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_shown(inner)}" for key, inner in value.items()) + "}"
    return str(value)


def _below(section: str, cls: type, but: tuple[str, ...] = ("enable",)) -> tuple[str, ...]:
    return tuple(f"{section}.{field.name}" for field in fields(cls) if field.name not in but)


def _one_of(*values: object) -> Callable[[Any], bool]:
    return lambda value: value in values


def _not(*values: object) -> Callable[[Any], bool]:
    return lambda value: value not in values


KNOBS = frozenset(key_names(TrainConfig))
DEPENDENCES = (
    # the loss
    Dependence((f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type"), f"{ACTOR}.use_kl_loss", bool),
    Dependence((f"{ACTOR}.clip_ratio_c",), f"{ACTOR}.policy_loss.loss_mode", _not("gspo", "cispo")),
    Dependence(
        (
            *(f"{ACTOR}.{name}" for name in ("tau_pos", "tau_neg")),
            *(f"{ACTOR}.policy_loss.clip_cov_{name}" for name in ("ratio", "lb", "ub")),
            *(f"{ACTOR}.policy_loss.{name}" for name in ("kl_cov_ratio", "ppo_kl_coef", "dro_beta")),
        ),
        f"{ACTOR}.policy_loss.loss_mode",
        lambda _: False,  # verl's settings of losses that Archer does not have
    ),
    # the update
    Dependence((f"{ACTOR}.ppo_micro_batch_size_per_gpu",), f"{ACTOR}.use_dynamic_bsz", _one_of(False)),
    Dependence((f"{ACTOR}.data_loader_seed",), f"{ACTOR}.shuffle", bool),
    Dependence(
        (f"{ACTOR}.optim.min_lr_ratio", f"{ACTOR}.optim.num_cycles"),
        f"{ACTOR}.optim.lr_scheduler_type",
        _one_of("cosine"),
    ),
    Dependence(
        (f"{ACTOR}.optim.lr_warmup_steps_ratio",), f"{ACTOR}.optim.lr_warmup_steps", lambda steps: steps <= 0
    ),
    # rewards and advantages
    Dependence(
        ("algorithm.kl_penalty", *_below("algorithm.kl_ctrl", KlCtrlConfig)),
        "algorithm.use_kl_in_reward",
        bool,
    ),
    Dependence(
        ("algorithm.kl_ctrl.horizon", "algorithm.kl_ctrl.target_kl"),
        "algorithm.kl_ctrl.type",
        _one_of("adaptive"),
    ),
    Dependence(("algorithm.gamma",), "algorithm.adv_estimator", _one_of("reinforce_plus_plus", "gae")),
    Dependence(
        ("algorithm.lam", "critic.[!e]*", "trainer.max_critic_ckpt_to_keep"),  # all of critic but its enable
        "algorithm.adv_estimator",
        _one_of("gae"),
    ),
    Dependence(
        ("algorithm.rollout_correction.rollout_is_threshold",),
        "algorithm.rollout_correction.rollout_is",
        _not(None),
    ),
    Dependence(
        ("data.gen_batch_size", *_below("algorithm.filter_groups", FilterGroupsConfig)),
        "algorithm.filter_groups.enable",
        bool,
    ),
    Dependence(_below(OVERLONG, OverlongBufferConfig), f"{OVERLONG}.enable", bool),
    Dependence((f"{OVERLONG}.enable", f"{OVERLONG}.penalty_factor"), f"{OVERLONG}.len", bool),
    Dependence(
        ("reward.custom_reward_function.name", "reward.custom_kwargs"),
        "reward.custom_reward_function.path",
        bool,
    ),
    Dependence(
        ("reward.last_number_fallback", *_below("reward.code", CodeRewardConfig)),
        "reward.custom_reward_function.path",
        _one_of(None),
    ),
    # data and validation
    Dependence(("data.seed",), "data.shuffle", bool),
    Dependence(
        (
            "data.val_max_samples",
            "data.val_batch_size",
            "trainer.test_freq",
            *_below(f"{ROLLOUT}.val_kwargs", ValKwargs),
        ),
        "data.val_files",
        bool,
    ),
    Dependence(
        tuple(f"{ROLLOUT}.val_kwargs.{name}" for name in ("temperature", "top_p", "top_k")),
        f"{ROLLOUT}.val_kwargs.do_sample",
        bool,
    ),
    # traces
    Dependence(_below("trainer.entropy_trace", EntropyTraceConfig), "trainer.entropy_trace.enable", bool),
    Dependence(
        # without a trace, too, skip_optimizer_step leaves the weights as they are
        _below(INFLUENCE, InfluenceConfig, but=("enable", "skip_optimizer_step")),
        f"{INFLUENCE}.enable",
        bool,
    ),
    Dependence(
        tuple(f"{INFLUENCE}.{name}" for name in ("hessian_source", "reg_lambda", "reg_rule", "solver")),
        f"{INFLUENCE}.hessian_mode",
        _one_of("inverse"),
    ),
    Dependence(
        tuple(
            f"{INFLUENCE}.{n}" for n in ("projection_dim_factor", "max_proj_vector_sum", "max_hessian_dim")
        ),
        f"{INFLUENCE}.projection",
        _not("none"),
    ),
    Dependence(
        (f"{INFLUENCE}.proportionality_tolerance",), f"{INFLUENCE}.output_function", _not("training_loss")
    ),
    Dependence((f"{INFLUENCE}.force_gpu_compute",), f"{INFLUENCE}.grad_offload_to_cpu", bool),
    Dependence((f"{INFLUENCE}.grad_offload_to_cpu",), "engine.device", _not("cpu")),
    # the run
    Dependence(("trainer.total_epochs",), "trainer.total_training_steps", _one_of(None)),
    Dependence(("engine.worker_logs",), "engine.name", _one_of("verl")),
    Dependence(("engine.compile_decoding",), "engine.name", _one_of("local")),
    Dependence(("engine.compile_decoding",), "engine.device", _not("cpu")),
)
"""What acts where. Of several rows for a knob the first that silences it is named."""
