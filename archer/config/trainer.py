"""`trainer.*` and `engine.*`: the run itself."""

from dataclasses import dataclass, field
from typing import Any, Literal

from archer.config.knob import knob, section
from archer.influence.config import InfluenceConfig


@dataclass(frozen=True)
class EntropyTraceConfig:
    """The trace of every response token's entropy."""

    enable: bool = knob(False, "write the entropy of every response token of every step")
    output_dir: str | None = knob(None, "trace folder; default: entropy_trace in the run folder")
    write_every: int = knob(1, "write every N-th step")
    fsync: bool = knob(False, "force each written step to the disk before it counts as written")


@dataclass(frozen=True)
class TrainerConfig:
    """Length, folders, checkpoints, validation and logging of a run."""

    project_name: str = knob("archer", "first level of the output folder")
    experiment_name: str = knob("default", "second level of the output folder")
    default_local_dir: str | None = knob(None, "run folder; default: output/<project_name>/<experiment_name>")
    total_epochs: int = knob(1, "passes over the training prompts")
    total_training_steps: int | None = knob(None, "training steps; default: from total_epochs")
    save_freq: int = knob(-1, "checkpoint every N steps and at the end; -1: at the end only")
    max_actor_ckpt_to_keep: int | None = knob(None, "keep the last N checkpoints; default: all")
    resume_mode: Literal["auto", "disable", "resume_path"] = knob(
        "auto", "auto: go on from the newest checkpoint; disable: want an empty folder; resume_path"
    )
    resume_from_path: str | None = knob(None, "checkpoint folder for resume_mode=resume_path")
    test_freq: int = knob(-1, "validate every N steps and at the end; -1: at the end only")
    val_before_train: bool = knob(True, "validate before the first step")
    val_only: bool = knob(False, "validate and stop")
    skip_optimizer_step: bool = knob(False, "run everything but the weight update")
    logger: tuple[str, ...] = knob(("console",), "console, tensorboard, wandb, trackio; metrics.jsonl always")
    entropy_trace: EntropyTraceConfig = section(EntropyTraceConfig)
    influence_trace: InfluenceConfig = section(InfluenceConfig)
    nnodes: int = knob(1, "machines; engine=local is one process")
    n_gpus_per_node: int = knob(1, "devices of each machine; engine=local is one process")


@dataclass(frozen=True)
class EngineConfig:
    """What runs the training loop."""

    name: Literal["local", "verl"] = knob(
        "local", "set by engine=NAME; local: one process on one device, verl: many devices, on Ray and verl"
    )
    device: Literal["auto", "cpu", "cuda"] = knob("auto", "auto: cuda where there is one")
    dtype: Literal["auto", "float32", "bfloat16"] = knob(
        "auto", "compute type; auto: bfloat16 on cuda, float32 on cpu; weights stay float32"
    )
    threads: int = knob(0, "CPU threads of the training process, at most its cores; 0: all of them")
    compile_decoding: bool = knob(True, "engine=local on cuda: static cache and compiled decoding")
    worker_logs: bool = knob(False, "engine=verl: show what Ray's worker processes print")
    verl: dict[str, Any] = field(
        default_factory=dict,
        metadata={
            "help": "engine=verl: settings that only verl has, as a tree; they may also be given by their "
            "own names, e.g. actor_rollout_ref.rollout.name=sglang"
        },
    )
