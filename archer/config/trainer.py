"""`trainer.*` and `engine.*`: the run itself."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from archer.generation.config import ComputeConfig
from archer.influence.config import InfluenceConfig
from archer.settings import Section, knob, section


@dataclass(frozen=True)
class EntropyTraceConfig(Section):
    """The trace of every response token's entropy."""

    switch: ClassVar[str] = "enable"

    enable: bool = knob(False, "write the entropy of every response token of every step")
    output_dir: str | None = knob(None, "trace folder; default: entropy_trace in the run folder")
    write_every: int = knob(1, "write every N-th step", at_least=1)
    fsync: bool = knob(False, "force each written step to the disk before it counts as written")


@dataclass(frozen=True)
class ValTraceConfig(Section):
    """The trace of the responses that validations and `archer eval` sample."""

    enable: bool | None = knob(
        None,
        "trace responses of every validation in val_trace of the run folder, and of `archer eval` in its "
        "folder; default: with entropy_trace.enable, and in every `archer eval`",
        needs="data.val_files",
    )
    max_responses: int = knob(
        128,
        "responses of each validation that are traced, those of the first prompts",
        at_least=1,
        unit="responses",
        needs="data.val_files",
    )


@dataclass(frozen=True)
class TrainerConfig(Section):
    """Length, folders, checkpoints, validation and logging of a run."""

    project_name: str = knob("archer", "first level of the output folder")
    experiment_name: str = knob("default", "second level of the output folder")
    default_local_dir: str | None = knob(None, "run folder; default: output/<project_name>/<experiment_name>")
    total_epochs: int = knob(
        1, "passes over the training prompts", above=0, needs="total_training_steps=None"
    )
    total_training_steps: int | None = knob(None, "training steps; default: from total_epochs", above=0)
    save_freq: int = knob(-1, "checkpoint every N steps and at the end; -1: at the end only")
    max_actor_ckpt_to_keep: int | None = knob(None, "keep the last N checkpoints; default: all", at_least=1)
    resume_mode: Literal["auto", "disable", "resume_path"] = knob(
        "auto", "auto: resume from the newest checkpoint; disable: want an empty folder; resume_path"
    )
    resume_from_path: str | None = knob(None, "checkpoint folder for resume_mode=resume_path")
    test_freq: int = knob(
        -1, "validate every N steps and at the end; -1: at the end only", needs="data.val_files"
    )
    val_before_train: bool = knob(True, "validate before the first step")
    log_val_generations: int = knob(
        0,
        "show N responses of every validation on the console and send them to the trackers",
        at_least=0,
        needs="data.val_files",
    )
    log_step_responses: int = knob(
        0,
        "show the N best and N worst responses of every step on the console and send them to the trackers",
        at_least=0,
    )
    diagnose: bool = knob(
        False,
        "after every step look for what goes wrong (docs/diagnose.md): a warning on the console, diagnose/ "
        "metrics to the trackers",
    )
    val_only: bool = knob(False, "validate and stop")
    skip_optimizer_step: bool = knob(False, "run everything but the weight update")
    max_skipped_updates: int = knob(
        5,
        "engine=local: stop after N updates in a row whose gradient was not finite, which are skipped",
        at_least=1,
        unit="updates",
        needs="engine.name=local",
    )
    logger: tuple[str, ...] = knob(("console",), "console, tensorboard, wandb, trackio; metrics.jsonl always")
    entropy_trace: EntropyTraceConfig = section(EntropyTraceConfig)
    influence_trace: InfluenceConfig = section(InfluenceConfig)
    val_trace: ValTraceConfig = section(ValTraceConfig)
    nnodes: int = knob(1, "machines; engine=local is one process", above=0)
    n_gpus_per_node: int = knob(1, "devices of each machine; engine=local is one process", above=0)


@dataclass(frozen=True)
class EngineConfig(ComputeConfig):
    """What runs the training loop."""

    name: Literal["local", "verl"] = knob(
        "local", "set by engine=NAME; local: one process on one device, verl: many devices, on Ray and verl"
    )
    worker_logs: bool = knob(False, "engine=verl: show what Ray's worker processes print", needs="name=verl")
    verl: dict[str, Any] = knob(
        {},
        "engine=verl: settings that only verl has, as a tree; they may also be given by their names, e.g. "
        "actor_rollout_ref.rollout.name=sglang",
    )
