"""Every knob of `trainer.influence_trace`, with its meaning, its default and its check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from archer.errors import ArcherError

PREFIX = "trainer.influence_trace"

HessianMode = Literal["inverse", "identity"]
HessianSource = Literal["response", "token"]
OutputFunction = Literal["training_loss", "log_prob_advantage", "log_prob_reward", "log_prob"]
Scope = Literal["per_prompt", "all_selected"]
Aggregation = Literal["sum", "mean"]
Normalization = Literal["none", "token_norm"]
ProjectionKind = Literal["rademacher", "none"]
RegRule = Literal["hessian_trace", "kernel_trace"]
Solver = Literal["auto", "dual", "primal"]
FactorDtype = Literal["auto", "bfloat16", "float32", "float64"]

DECODER_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class InfluenceConfig:
    """What is traced, how scores are defined, and what may be spent on them.

    `enable` is off by default, as everywhere in `trainer`: a tracer made from the defaults installs no hook
    and scores nothing. Loops outside Archer's trainer pass `enable=True`.
    """

    enable: bool = field(
        default=False,
        metadata={"help": "Trace token influence. Off: no hook is installed and nothing is computed."},
    )

    # --- what a score is ---
    hessian_mode: HessianMode = field(
        default="inverse",
        metadata={
            "help": (
                "inverse: infl(r, t) = <G_r, H^-1 g_t>, gradients compared after whitening by H. identity: "
                "infl(r, t) = <G_r, g_t>, the plain inner product."
            )
        },
    )
    hessian_source: HessianSource = field(
        default="response",
        metadata={
            "help": (
                "What H is summed over. response: H = sum_r G_r G_r^T + lambda I over response gradients. "
                "token: H = sum_t g_t g_t^T + lambda I over all traced tokens of the group (dearer)."
            )
        },
    )
    output_function: OutputFunction = field(
        default="training_loss",
        metadata={
            "help": (
                "The objective J = sum_t w_t log pi_t whose gradients are compared. training_loss: the real "
                "loss with its clipping, KL and aggregation. log_prob_advantage: w_t is the advantage. "
                "log_prob_reward: w_t is the response's reward. log_prob: w_t = 1. Sign trap: the gradients "
                "of training_loss and log_prob_advantage already carry the advantage's sign, and the "
                "accepted-minus-rejected contrast applies it a second time, so for those two a positive "
                "score does not read 'pushes towards the accepted responses'. With log_prob it does."
            )
        },
    )
    accepted_rejected_scope: Scope = field(
        default="per_prompt",
        metadata={
            "help": (
                "per_prompt: a token is compared with the responses of its own prompt. all_selected: with "
                "all selected responses of the step, as one group. Prompts without contrast are skipped in "
                "both."
            )
        },
    )
    contrastive_agg: Aggregation = field(
        default="sum",
        metadata={
            "help": "How infl(r, t) is gathered over accepted (+) and rejected (-) responses: sum or mean."
        },
    )
    exclude_self_response: bool = field(
        default=False,
        metadata={
            "help": (
                "Leave the token's own response out of its score (and out of the mean). A token's gradient "
                "is part of its own response's gradient, so with the own response included the score "
                "contains the token's label: even random labels separate perfectly. Turn this on before "
                "measuring how well scores find anything. H keeps all responses."
            )
        },
    )
    score_normalization: Normalization = field(
        default="none",
        metadata={
            "help": (
                "token_norm: divide each score by sqrt(g_t^T H^-1 g_t), the token's own norm over all traced "
                "modules, so that scores compare direction rather than gradient size."
            )
        },
    )
    reg_lambda: float = field(
        default=0.0,
        metadata={
            "help": (
                "Damping. With reg_rule=hessian_trace a positive value is lambda itself and <= 0 means 0.1 * "
                "trace(H) / D. With reg_rule=kernel_trace it is the factor c (<= 0: c = 0.1)."
            )
        },
    )
    reg_rule: RegRule = field(
        default="hessian_trace",
        metadata={
            "help": (
                "hessian_trace: lambda = 0.1 * trace(H) / D. kernel_trace: lambda = c * trace(H) / n with n "
                "the number of gradients in H, which does not weaken as the projection grows."
            )
        },
    )

    # --- where it is read ---
    module_name_filter: tuple[str, ...] = field(
        default=DECODER_LINEARS,
        metadata={
            "help": (
                "Which linear modules are traced: plain pieces of text, as a list or separated by commas. A "
                "module is traced when its full name contains one of them. Empty: every trainable linear "
                "module, the output head included."
            )
        },
    )
    max_modules: int = field(
        default=0, metadata={"help": "Trace only the last N modules of each filter entry. <= 0: all."}
    )
    max_tokens_per_response: int = field(
        default=0,
        metadata={
            "help": (
                "Trace only the last N tokens of a response; earlier ones are absent from its gradient and "
                "score NaN. <= 0: all."
            )
        },
    )
    max_prompts_per_step: int = field(
        default=0, metadata={"help": "Trace at most the first N prompts that have a contrast. 0: no cap."}
    )

    # --- how it is compressed ---
    projection: ProjectionKind = field(
        default="rademacher",
        metadata={
            "help": "rademacher: random +-1/sqrt(k) projections. none: exact factors, for small models."
        },
    )
    projection_dim_factor: int = field(
        default=32,
        metadata={
            "help": "k_in = max(1, d_in // factor), likewise k_out. Larger is smaller, cheaper and noisier."
        },
    )
    max_proj_vector_sum: int = field(
        default=256, metadata={"help": "Shrink until k_in + k_out <= this. <= 0: no cap."}
    )
    max_hessian_dim: int = field(
        default=4096, metadata={"help": "Shrink until D = k_in * k_out <= this. <= 0: no cap."}
    )
    factor_dtype: FactorDtype = field(
        default="auto",
        metadata={
            "help": (
                "What token factors are stored in. auto: as the activations (float16 is widened to float32)."
            )
        },
    )

    # --- how it is computed ---
    solver: Solver = field(
        default="auto",
        metadata={
            "help": (
                "dual solves in the space of gradients (n x n), primal in parameter space (D x D); both are "
                "exact. auto takes the smaller."
            )
        },
    )
    proportionality_tolerance: float = field(
        default=1e-3,
        metadata={
            "help": (
                "Largest relative deviation at which another objective's weights count as proportional to "
                "the real ones, so that rescaling replaces a second backward. The default is below bfloat16 "
                "rounding. 0: always a second backward."
            )
        },
    )
    grad_offload_to_cpu: bool = field(
        default=False, metadata={"help": "Keep token factors in CPU memory between capture and scoring."}
    )
    force_gpu_compute: bool = field(
        default=True,
        metadata={
            "help": (
                "Score on the model's device even when factors are kept on the CPU. False: where they are "
                "kept."
            )
        },
    )
    profile_timing: bool = field(
        default=False,
        metadata={"help": "Wait for the device around each timed part, for exact times at some cost."},
    )
    skip_optimizer_step: bool = field(
        default=False, metadata={"help": "Trace only: the engine leaves the weights as they are."}
    )

    # --- where it is written ---
    output_dir: str | None = field(
        default=None, metadata={"help": "Trace folder. None: influence_trace/ in the run's output folder."}
    )
    write_every: int = field(default=1, metadata={"help": "Write every N-th step."})
    fsync: bool = field(
        default=False, metadata={"help": "Force each written step to the disk before it counts as written."}
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "module_name_filter", _filter_entries(self.module_name_filter))
        hints = get_type_hints(type(self))
        for knob in fields(self):
            _check_type(knob, hints[knob.name], self.__dict__[knob.name])
        _check_least("projection_dim_factor", self.projection_dim_factor, 1)
        _check_least("write_every", self.write_every, 1)
        _check_least("max_prompts_per_step", self.max_prompts_per_step, 0)
        _check_least("proportionality_tolerance", self.proportionality_tolerance, 0)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> InfluenceConfig:
        """Build from a configuration node; an unknown knob is an error that lists the known ones."""
        known = [knob.name for knob in fields(cls)]
        for name in values:
            if name not in known:
                raise ArcherError(f"{PREFIX}.{name} does not exist; the knobs are {', '.join(known)}")
        return cls(**values)


def _filter_entries(value: str | Iterable[str]) -> tuple[str, ...]:
    entries = value.split(",") if isinstance(value, str) else value
    return tuple(entry.strip() for entry in entries if entry.strip())


def _check_type(knob: Field[Any], hint: Any, value: Any) -> None:
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ArcherError(f"{PREFIX}.{knob.name}={value!r} is not one of {', '.join(get_args(hint))}")
        return
    accepts: dict[Any, tuple[type, ...]] = {
        bool: (bool,),
        int: (int,),
        float: (int, float),
        tuple[str, ...]: (tuple,),
        str | None: (str, type(None)),
    }
    is_boolean_by_mistake = isinstance(value, bool) and hint is not bool
    if is_boolean_by_mistake or not isinstance(value, accepts[hint]):
        wanted = " or ".join(kind.__name__ for kind in accepts[hint])
        raise ArcherError(f"{PREFIX}.{knob.name}={value!r} must be {wanted}")


def _check_least(name: str, value: float, least: float) -> None:
    if not value >= least:
        raise ArcherError(f"{PREFIX}.{name}={value!r} must be at least {least}")
