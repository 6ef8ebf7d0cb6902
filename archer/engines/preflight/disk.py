"""Disk that a run fills: checkpoints and traces."""

import os
import shutil
from pathlib import Path

from archer.config.root import TrainConfig
from archer.engines.preflight.demand import gib
from archer.engines.preflight.finding import Finding, note, ok, problem
from archer.engines.preflight.model import ModelShape

ENTROPY_BYTES, INFLUENCE_BYTES = 9, 17  # of the arrays' numbers for one response token
ENTROPY_SHARE, INFLUENCE_SHARE = 0.34, 0.27  # of that after compression, by benchmarks/trace_writer.py


def checkpoint_bytes(shape: ModelShape, engine: str) -> int:
    """One checkpoint: weights and AdamW's moments, 12 P; verl's holds the whole model once more, 2 P."""
    return (12 if engine == "local" else 14) * shape.parameters


def kept_checkpoints(config: TrainConfig, steps: int) -> int:
    """The most checkpoints that lie there at a time: those kept and the one being written."""
    every = config.trainer.save_freq
    made = -(-steps // every) if every > 0 else 1
    keep = config.trainer.max_actor_ckpt_to_keep
    return made if keep is None else min(made, keep + 1)


def trace_bytes(config: TrainConfig, steps: int) -> int:
    """Both traces over the run, every response as long as it may get: tokens x bytes x compressed share."""
    trainer = config.trainer
    tokens = (
        config.data.train_batch_size * config.actor_rollout_ref.rollout.n * config.data.max_response_length
    )
    total = 0.0
    if trainer.entropy_trace.enable:
        total += steps // trainer.entropy_trace.write_every * tokens * ENTROPY_BYTES * ENTROPY_SHARE
    if trainer.influence_trace.enable:
        total += steps // trainer.influence_trace.write_every * tokens * INFLUENCE_BYTES * INFLUENCE_SHARE
    return int(total)


def existing(path: Path) -> Path:
    """The nearest folder that is there already."""
    path = path.absolute()
    while not path.is_dir():
        path = path.parent
    return path


def check_disk(config: TrainConfig, shape: ModelShape, steps: int) -> Finding:
    """Compare what the run writes with the room there is."""
    free = shutil.disk_usage(existing(config.run_dir)).free
    count, one = kept_checkpoints(config, steps), checkpoint_bytes(shape, config.engine.name)
    traces = trace_bytes(config, steps)
    text = (
        f"{count} checkpoint{'' if count == 1 else 's'} of {gib(one)} GiB, "
        f"traces of at most {gib(traces)} GiB in {steps:,} steps; {gib(free)} GiB free"
    )
    if count * one > free:
        remedy = (
            "Set trainer.max_actor_ckpt_to_keep, a larger trainer.save_freq, or trainer.default_local_dir."
        )
        return problem("disk", f"Checkpoints do not fit on the disk: {text}.", remedy)
    if count * one + traces > free:
        remedy = "Raise trainer.entropy_trace.write_every and trainer.influence_trace.write_every."
        return note("disk", f"It may get full: {text}.", remedy)
    return ok("disk", text)


def is_writable(path: Path) -> bool:
    """Whether a folder can be made or written at `path`."""
    return os.access(existing(path), os.W_OK)
