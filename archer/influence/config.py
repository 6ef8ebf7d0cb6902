"""Every knob of `trainer.influence_trace`, with its meaning, its default and its check."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from archer.errors import ArcherError
from archer.settings import Section, knob, range_problems

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
Preset = Literal["none", "signed"]

PRESETS: dict[str, dict[str, Any]] = {
    "none": {},
    "signed": {
        "output_function": "log_prob",
        "exclude_self_response": True,
        "contrastive_agg": "mean",
        "reg_rule": "kernel_trace",
    },
}
"""What each preset sets."""

ALL_LINEAR = "all-linear"
"""Entry of module_name_filter: every linear map but the output head, whatever its name."""


@dataclass(frozen=True)
class InfluenceConfig(Section):
    """What is traced, how scores are defined, and what may be spent on them.

    `enable` is off by default, as everywhere in `trainer`: a tracer made from the defaults installs no hook
    and scores nothing. Loops outside Archer's trainer pass `enable=True`.
    """

    switch: ClassVar[str] = "enable"
    without_it: ClassVar[tuple[str, ...]] = ("skip_optimizer_step",)

    enable: bool = knob(False, "Trace token influence. Off: no hook is installed and nothing is computed.")

    preset: Preset = knob(
        "none",
        "Knobs under one name, for those that are not set. signed, for reading: output_function=log_prob, "
        "exclude_self_response=True, contrastive_agg=mean, reg_rule=kernel_trace; positive then pulls "
        "towards the accepted responses, and scores do not contain the token's own verdict. In Python: "
        "InfluenceConfig.of_preset.",
    )

    # --- what a score is ---
    hessian_mode: HessianMode = knob(
        "inverse",
        "inverse: infl(r, t) = <G_r, H^-1 g_t>, gradients compared after whitening by H. identity: "
        "infl(r, t) = <G_r, g_t>, the plain inner product, which grows with the square of the objective's "
        "scale: with training_loss that of the loss, its normalisation and a loss scaler's factor included.",
    )
    hessian_source: HessianSource = knob(
        "response",
        "What H is summed over. response: H = sum_r G_r G_r^T + lambda I over response gradients. "
        "token: H = sum_t g_t g_t^T + lambda I over all traced tokens of the group (costlier).",
        needs="hessian_mode=inverse",
    )
    output_function: OutputFunction = knob(
        "training_loss",
        "The objective J = sum_t w_t log pi_t whose gradients are compared. training_loss: the real "
        "loss with its clipping, KL and aggregation. log_prob_advantage: w_t is the advantage. "
        "log_prob_reward: w_t is the response's reward. log_prob: w_t = 1. Sign trap: the gradients "
        "of training_loss and log_prob_advantage already carry the advantage's sign, and the "
        "accepted-minus-rejected contrast applies it a second time, so for those two a positive "
        "score does not read 'pushes towards the accepted responses'. With log_prob it does. With "
        "log_prob_reward a response of reward 0 scores exactly 0.",
    )
    accepted_rejected_scope: Scope = knob(
        "per_prompt",
        "per_prompt: a token is compared with the responses of its own prompt. all_selected: with "
        "all selected responses of the step, as one group. Prompts without contrast are skipped in "
        "both.",
    )
    contrastive_agg: Aggregation = knob(
        "sum", "How infl(r, t) is gathered over accepted (+) and rejected (-) responses: sum or mean."
    )
    exclude_self_response: bool = knob(
        False,
        "Leave the token's own response out of its score (and out of the mean). A token's gradient "
        "is part of its own response's gradient, so with the own response included the score "
        "contains the token's label: even random labels separate perfectly. Turn this on before "
        "measuring how well scores find anything. H keeps all responses.",
    )
    score_normalization: Normalization = knob(
        "none",
        "token_norm: divide each score by sqrt(g_t^T H^-1 g_t), the token's own norm over all traced "
        "modules, so that scores compare direction rather than gradient size.",
    )
    reg_lambda: float = knob(
        0.0,
        "Damping. With reg_rule=hessian_trace a positive value is lambda itself and <= 0 means 0.1 * "
        "trace(H) / D. With reg_rule=kernel_trace it is the factor c (<= 0: c = 0.1). Traces too small "
        "to be more than rounding beside the largest module's count as that much.",
        needs="hessian_mode=inverse",
    )
    reg_rule: RegRule = knob(
        "hessian_trace",
        "hessian_trace: lambda = 0.1 * trace(H) / D. kernel_trace: lambda = c * trace(H) / n with n "
        "the number of gradients in H, which does not weaken as the projection grows.",
        needs="hessian_mode=inverse",
    )

    # --- where it is read ---
    module_name_filter: tuple[str, ...] = knob(
        (ALL_LINEAR,),
        "Which linear modules are traced: plain pieces of text, as a list or separated by commas. A "
        "module is traced when its full name contains one of them; all-linear stands for every trainable "
        "linear module but the output head, fused experts included. Empty: the output head, too.",
    )
    max_modules: int = knob(
        0,
        "Trace only the last N modules of each filter entry; of all-linear, the last N of each kind (all "
        "q_proj are a kind, and so are the fused experts' down_proj, each layer's counted once). <= 0: all.",
    )
    max_tokens_per_response: int = knob(
        0,
        "Trace only the last N tokens of a response; earlier ones are absent from its gradient and "
        "score NaN. <= 0: all.",
    )
    max_prompts_per_step: int = knob(0, "Trace at most the first N prompts that have a contrast. <= 0: all.")

    # --- how it is compressed ---
    projection: ProjectionKind = knob(
        "rademacher", "rademacher: random +-1/sqrt(k) projections. none: exact factors, for small models."
    )
    projection_dim_factor: int = knob(
        32,
        "k_in = max(1, d_in // factor), likewise k_out. Larger is smaller, cheaper and noisier.",
        at_least=1,
        needs="projection!=none",
    )
    max_proj_vector_sum: int = knob(
        256, "Shrink until k_in + k_out <= this. <= 0: no cap.", needs="projection!=none"
    )
    max_hessian_dim: int = knob(
        4096, "Shrink until D = k_in * k_out <= this. <= 0: no cap.", needs="projection!=none"
    )
    factor_dtype: FactorDtype = knob(
        "auto", "What token factors are stored in. auto: as the activations (float16 is widened to float32)."
    )

    # --- how it is computed ---
    solver: Solver = knob(
        "auto",
        "dual solves in the space of gradients (n x n), primal in parameter space (D x D); both are "
        "exact. auto takes the smaller.",
        needs="hessian_mode=inverse",
    )
    proportionality_tolerance: float = knob(
        1e-3,
        "Largest relative deviation at which another objective's weights count as proportional to "
        "the real ones, so that rescaling replaces a second backward. The default is below bfloat16 "
        "rounding. 0: always a second backward.",
        at_least=0,
        needs="output_function!=training_loss",
    )
    grad_offload_to_cpu: bool = knob(
        False, "Keep token factors in CPU memory between capture and scoring.", needs="engine.device!=cpu"
    )
    force_gpu_compute: bool = knob(
        True,
        "Score on the model's device even when factors are kept on the CPU. False: where they are kept.",
        needs="grad_offload_to_cpu",
    )
    profile_timing: bool = knob(
        False, "Wait for the device around each timed part, for exact times at some cost."
    )
    skip_optimizer_step: bool = knob(False, "Trace only: the engine leaves the weights as they are.")

    # --- where it is written ---
    output_dir: str | None = knob(None, "Trace folder. None: influence_trace/ in the run's output folder.")
    write_every: int = knob(1, "Write every N-th step.", at_least=1)
    fsync: bool = knob(False, "Force each written step to the disk before it counts as written.")
    self_contained: bool = knob(
        False,
        "Repeat the arrays of the entropy trace in the influence trace, which then can be moved and read "
        "without it. False: where both lie in one folder, a step refers to the entropy trace.",
        needs="trainer.entropy_trace.enable",
    )

    @classmethod
    def of_preset(cls, preset: Preset, **knobs: Any) -> InfluenceConfig:
        """A config of a preset's knobs; those given here go before."""
        if preset not in PRESETS:
            raise ArcherError(f"{PREFIX}.preset={preset!r} is not one of {', '.join(PRESETS)}")
        return cls(**{"preset": preset, **PRESETS[preset], **knobs})

    def __post_init__(self) -> None:
        given: Any = self.module_name_filter
        entries = given.split(",") if isinstance(given, str) else given
        entries = tuple(entry.strip() for entry in entries if entry.strip())
        object.__setattr__(self, "module_name_filter", entries)
        hints = get_type_hints(type(self))
        for setting in fields(self):
            _check_type(setting.name, hints[setting.name], self.__dict__[setting.name])
        problems = [
            f"{PREFIX}.{name}={value!r}: must be {text}" for name, value, text in range_problems(self)
        ]
        if problems:
            raise ArcherError("\n".join(problems))


def _check_type(name: str, hint: Any, value: Any) -> None:
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ArcherError(f"{PREFIX}.{name}={value!r} is not one of {', '.join(get_args(hint))}")
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
        raise ArcherError(f"{PREFIX}.{name}={value!r} must be {wanted}")
