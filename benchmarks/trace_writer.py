"""What a traced step costs: time the training thread is blocked, time of the background write, size on disk.

    python benchmarks/trace_writer.py --rows 1024 --length 8192
    python benchmarks/trace_writer.py --run output/archer/<run>     # only the sizes of a run's steps

Sizes are compared with those of the arrays that format 2.0 had, written as format 2.0 wrote them: each trace
with all of its own.

The values imitate a reasoning model: half of the tokens nearly certain, log-normal response lengths,
heavy-tailed influence, Zipf-distributed token ids. The thread is blocked while `TraceStep.from_batch` copies
the arrays into their contract dtypes and `write` hands them over; the copy from the device is not counted.
"""

import argparse
import io
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from archer.trace.arrays import TraceKind
from archer.trace.deltas import encoded
from archer.trace.files import MANIFEST
from archer.trace.joined import own_arrays
from archer.trace.npz import write_npz
from archer.trace.reader import TraceReader
from archer.trace.schema import TraceStep
from archer.trace.writer import TraceWriter

STEP_SECONDS = 60.0
GROUP_SIZE = 16
INFLUENCE = ("influence", "advantage")
NEW_IN_2_1 = (
    *("data_source", "ground_truth", "extracted_answer", "reason", "truncated", "seed"),
    *("rollout_log_probs", "ratio", "clipped", "loss_weight", "credit"),
)


def make_batch(
    rows: int, length: int, seed: int, off_policy: bool = False, full: bool = False
) -> dict[str, Any]:
    """A padded float32 batch as a trainer holds it, for `TraceStep.from_batch`.

    off_policy: ratios differ from 1 in all but the first of four mini-batches
    full: every response has `length` tokens
    """
    rng = np.random.default_rng(seed)
    shape = (rows, length)
    lengths = np.clip(rng.lognormal(np.log(length / 3), 0.7, rows).astype(int), 1, length)
    lengths[slice(None) if full else 0] = length
    entropies = rng.gamma(1.2, 0.6, shape).astype(np.float32)
    certain = rng.random(shape, dtype=np.float32) < 0.55
    entropies[certain] *= 0.005
    groups = np.arange(rows) // GROUP_SIZE
    accepted = rng.random(rows) < 0.5
    advantage = np.where(accepted, 1.0, -1.0).astype(np.float32)[:, None]
    log_probs = -entropies * rng.standard_exponential(shape, dtype=np.float32)
    moved = rng.standard_normal(shape, dtype=np.float32) * 0.05 * (off_policy & (groups % 4 > 0))[:, None]
    answers = rng.integers(0, 10_000, rows)
    truths = answers[groups * GROUP_SIZE]
    prompts = [rng.integers(0, 150_000, 200) for _ in range(groups[-1] + 1)]
    return {
        "entropies": entropies,
        "response_mask": np.arange(length) < lengths[:, None],
        "responses": np.minimum(rng.zipf(1.25, shape), 150_000),
        "response_index": np.arange(rows),
        "log_probs": log_probs,
        "rollout_log_probs": log_probs * (1 + 0.01 * rng.standard_normal(shape, dtype=np.float32)),
        "ratio": np.exp(moved),
        "clipped": (moved > 0.1).astype(np.int8) - (moved < -0.1),
        "loss_weight": np.ones(shape, dtype=np.float32),
        "data_source": ["math_dapo"] * rows,
        "ground_truth": [str(truth) for truth in truths],
        "extracted_answer": [str(answer) for answer in answers],
        "reason": [
            f"expected {truth}, found {answer}" for truth, answer in zip(truths, answers, strict=True)
        ],
        "truncated": lengths == length,
        "unjudged": np.zeros(rows, dtype=bool),
        "sample_index": groups,
        "seed": rng.integers(-(2**63), 2**63 - 1, rows),
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


def measure(kind: TraceKind, batch: dict[str, Any], steps: int, fsync: bool, refers: bool = False) -> Cost:
    """Write the batch `steps` times, each when the one before is on disk, as in training.

    refers: beside an entropy trace that holds the rest
    """
    dropped = () if kind == "influence" else ("influence", "advantage")
    given = {name: value for name, value in batch.items() if name not in dropped}
    blocked, cpu = [], []
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / f"{kind}_trace"
        with (
            TraceWriter(Path(parent) / "other", kind="entropy") as other,
            TraceWriter(folder, kind=kind, fsync=fsync, beside=other) as writer,
        ):
            for step in range(1, steps + 1):
                start, thread_start = time.perf_counter(), time.thread_time()
                arrays = TraceStep.from_batch(**given)
                writer.write(step, arrays, refers=refers)
                blocked.append(time.perf_counter() - start)
                cpu.append(time.thread_time() - thread_start)
                writer.flush()
        lines = [json.loads(line) for line in (folder / MANIFEST).read_text().splitlines()]
    return Cost(
        blocked=median(blocked),
        cpu=median(cpu),
        background=median(line["seconds"] for line in lines),
        raw=sum(a.nbytes for a in (own_arrays(arrays) if refers else arrays.arrays()).values()),
        file=lines[-1]["bytes"],
    )


def size(arrays: Mapping[str, np.ndarray]) -> int:
    """Bytes of a step file."""
    file = io.BytesIO()
    write_npz(file, arrays)
    return file.tell()


def against_2_0(steps: Iterable[TraceStep]) -> str:
    """The sizes of steps that have influence, in this format over format 2.0."""
    new, old = Counter[str](), Counter[str]()
    for step in steps:
        whole = step.arrays()
        entropy = {name: array for name, array in whole.items() if name not in INFLUENCE}
        new += Counter(entropy=size(encoded(entropy)), refers=size(own_arrays(step)))
        new["alone"] += size(encoded(whole))
        old["entropy"] += size({name: array for name, array in entropy.items() if name not in NEW_IN_2_1})
        old["alone"] += size({name: array for name, array in whole.items() if name not in NEW_IN_2_1})
    ratio = {name: new[name] / old[name] for name in old}
    both = (new["entropy"] + new["refers"]) / (old["entropy"] + old["alone"])
    return (
        f"against format 2.0: both traces {both:.2f} x ({new['entropy']:,} + {new['refers']:,} bytes against "
        f"{old['entropy']:,} + {old['alone']:,}), the entropy trace alone {ratio['entropy']:.2f} x, "
        f"an influence trace that stands alone {ratio['alone']:.2f} x"
    )


def main() -> None:
    """Measure both kinds of trace and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1024, help="responses of the step")
    parser.add_argument("--length", type=int, default=8192, help="tokens of the longest response")
    parser.add_argument("--steps", type=int, default=3, help="steps to write; the medians are printed")
    parser.add_argument("--off-policy", action="store_true", help="ratios that differ from 1")
    parser.add_argument("--full", action="store_true", help="every response is the longest")
    parser.add_argument("--fsync", action="store_true", help="bring every file to disk before going on")
    parser.add_argument("--run", type=Path, help="only compare the sizes of this run's steps")
    args = parser.parse_args()
    if args.run:
        reader = TraceReader(args.run / "influence_trace")
        print(against_2_0(reader.read(entry.step).arrays for entry in reader.entries))
        return
    batch = make_batch(args.rows, args.length, seed=0, off_policy=args.off_policy, full=args.full)
    tokens = int(np.sum(batch["response_mask"]))
    table = Table(title=f"one step of {args.rows} responses x {args.length} tokens ({tokens:,} valid)")
    share = f"of {STEP_SECONDS:.0f} s"
    for column in ("trace", "blocked", share, "CPU", "background", "raw", "file", "file / raw"):
        table.add_column(column, justify="right")
    table.add_row("entropy", *measure("entropy", batch, args.steps, args.fsync).cells())
    table.add_row("influence", *measure("influence", batch, args.steps, args.fsync, refers=True).cells())
    table.add_row("influence alone", *measure("influence", batch, args.steps, args.fsync).cells())
    Console(width=100).print(table)
    print(against_2_0([TraceStep.from_batch(**batch)]))


if __name__ == "__main__":
    main()
