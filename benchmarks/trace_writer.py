"""What a traced step costs: time the training thread is blocked, time of the background write, size on disk.

    python benchmarks/trace_writer.py --rows 1024 --length 8192

The values imitate a reasoning model: half of the tokens nearly certain, log-normal response lengths,
heavy-tailed influence, Zipf-distributed token ids. The thread is blocked while `TraceStep.from_batch` copies
the arrays into their contract dtypes and `write` hands them over; the copy from the device is not counted.
"""

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from archer.trace.arrays import TraceKind
from archer.trace.files import MANIFEST
from archer.trace.schema import TraceStep
from archer.trace.writer import TraceWriter

STEP_SECONDS = 60.0
GROUP_SIZE = 16


def make_batch(rows: int, length: int, seed: int) -> dict[str, Any]:
    """A padded float32 batch as a trainer holds it, for `TraceStep.from_batch`."""
    rng = np.random.default_rng(seed)
    shape = (rows, length)
    lengths = np.clip(rng.lognormal(np.log(length / 3), 0.7, rows).astype(int), 1, length)
    lengths[0] = length
    entropies = rng.gamma(1.2, 0.6, shape).astype(np.float32)
    certain = rng.random(shape, dtype=np.float32) < 0.55
    entropies[certain] *= 0.005
    groups = np.arange(rows) // GROUP_SIZE
    accepted = rng.random(rows) < 0.5
    advantage = np.where(accepted, 1.0, -1.0).astype(np.float32)[:, None]
    prompts = [rng.integers(0, 150_000, 200) for _ in range(groups[-1] + 1)]
    return {
        "entropies": entropies,
        "response_mask": np.arange(length) < lengths[:, None],
        "responses": np.minimum(rng.zipf(1.25, shape), 150_000),
        "response_index": np.arange(rows),
        "log_probs": -entropies * rng.standard_exponential(shape, dtype=np.float32),
        "reward": accepted.astype(np.float32),
        "accepted": accepted,
        "group_id": groups,
        "uid": [f"{group:032x}" for group in groups],
        "prompts": [prompts[group] for group in groups],
        "influence": (rng.standard_normal(shape, dtype=np.float32) ** 3 * 1e-3),
        "advantage": np.broadcast_to(advantage, shape),
    }


@dataclass(frozen=True)
class Cost:
    """Medians over the steps written."""

    blocked: float  # seconds on the clock
    cpu: float  # seconds of the training thread's own work: what a busy machine does not distort
    background: float
    raw: int  # bytes
    file: int

    def cells(self) -> tuple[str, ...]:
        """The table's columns."""
        return (
            f"{self.blocked * 1e3:.0f} ms",
            f"{self.blocked / STEP_SECONDS:.2%}",
            f"{self.cpu * 1e3:.0f} ms",
            f"{self.background:.2f} s",
            f"{self.raw / 2**20:.0f} MiB",
            f"{self.file / 2**20:.0f} MiB",
            f"{self.file / self.raw:.1%}",
        )


def measure(kind: TraceKind, batch: dict[str, Any], steps: int, fsync: bool) -> Cost:
    """Write the batch `steps` times, each when the one before is on disk, as in training."""
    dropped = () if kind == "influence" else ("influence", "advantage")
    given = {name: value for name, value in batch.items() if name not in dropped}
    blocked, cpu = [], []
    with tempfile.TemporaryDirectory() as folder:
        with TraceWriter(folder, kind=kind, fsync=fsync) as writer:
            for step in range(1, steps + 1):
                start, thread_start = time.perf_counter(), time.thread_time()
                arrays = TraceStep.from_batch(**given)
                writer.write(step, arrays)
                blocked.append(time.perf_counter() - start)
                cpu.append(time.thread_time() - thread_start)
                writer.flush()
        lines = [json.loads(line) for line in (Path(folder) / MANIFEST).read_text().splitlines()]
    return Cost(
        blocked=median(blocked),
        cpu=median(cpu),
        background=median(line["seconds"] for line in lines),
        raw=sum(array.nbytes for array in arrays.arrays().values()),
        file=lines[-1]["bytes"],
    )


def main() -> None:
    """Measure both kinds of trace and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1024, help="responses of the step")
    parser.add_argument("--length", type=int, default=8192, help="tokens of the longest response")
    parser.add_argument("--steps", type=int, default=3, help="steps to write; the medians are printed")
    parser.add_argument("--fsync", action="store_true", help="bring every file to disk before going on")
    args = parser.parse_args()
    batch = make_batch(args.rows, args.length, seed=0)
    tokens = int(np.sum(batch["response_mask"]))
    table = Table(title=f"one step of {args.rows} responses x {args.length} tokens ({tokens:,} valid)")
    share = f"of {STEP_SECONDS:.0f} s"
    for column in ("trace", "blocked", share, "CPU", "background", "raw", "file", "file / raw"):
        table.add_column(column, justify="right")
    kinds: tuple[TraceKind, ...] = ("entropy", "influence")
    for kind in kinds:
        table.add_row(kind, *measure(kind, batch, args.steps, args.fsync).cells())
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
