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
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from archer.trace.files import MANIFEST
from archer.trace.schema import TraceKind, TraceStep
from archer.trace.writer import TraceWriter

STEP_SECONDS = 60.0
GROUP_SIZE = 16


def make_batch(rows: int, length: int, seed: int) -> dict[str, object]:
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


def measure(
    kind: TraceKind, batch: dict[str, object], steps: int, fsync: bool
) -> tuple[list[float], list[float], int, int]:
    """Blocked and background seconds of each step, bytes on disk and raw bytes of one."""
    blocked = []
    given = (
        batch
        if kind == "influence"
        else {k: v for k, v in batch.items() if k not in ("influence", "advantage")}
    )
    with tempfile.TemporaryDirectory() as folder:
        with TraceWriter(folder, kind=kind, fsync=fsync) as writer:
            for step in range(1, steps + 1):
                start = time.perf_counter()
                arrays = TraceStep.from_batch(**given)  # type: ignore[arg-type]
                writer.write(step, arrays)
                blocked.append(time.perf_counter() - start)
                writer.flush()  # a training step is far longer than the write
        lines = [json.loads(line) for line in (Path(folder) / MANIFEST).read_text().splitlines()]
    raw = sum(array.nbytes for array in arrays.arrays().values())
    return blocked, [line["seconds"] for line in lines], lines[-1]["bytes"], raw


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
    tokens = int(np.sum(batch["response_mask"]))  # type: ignore[arg-type]
    table = Table(title=f"one step of {args.rows} responses x {args.length} tokens ({tokens:,} valid)")
    for column in (
        "trace",
        "blocked",
        f"of {STEP_SECONDS:.0f} s",
        "background",
        "raw",
        "file",
        "file / raw",
    ):
        table.add_column(column, justify="right")
    kinds: tuple[TraceKind, ...] = ("entropy", "influence")
    for kind in kinds:
        blocked, background, size, raw = measure(kind, batch, args.steps, args.fsync)
        median = float(np.median(blocked))
        table.add_row(
            kind,
            f"{median * 1e3:.0f} ms",
            f"{median / STEP_SECONDS:.2%}",
            f"{np.median(background):.2f} s",
            f"{raw / 2**20:.0f} MiB",
            f"{size / 2**20:.0f} MiB",
            f"{size / raw:.1%}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
