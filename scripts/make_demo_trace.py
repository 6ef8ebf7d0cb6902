"""Makes the trace that `archer view --demo` shows, from some steps of a finished run.

    archer train trainer.experiment_name=demo
    python scripts/make_demo_trace.py output/archer/demo --every 4

Reads every chosen step of both traces and writes it anew, so that the result holds nothing but the trace: the
model is named without the folder it lay in, and file times are not kept. The package carries the result, so
it must stay below half a megabyte.
"""

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from archer.errors import ArcherError
from archer.trace.reader import TraceReader, find_traces
from archer.trace.writer import TraceWriter

TARGET = Path(__file__).resolve().parent.parent / "archer" / "viewer" / "demo"
MAX_BYTES = 500_000
KEPT_METADATA = ("project", "experiment", "model", "temperature", "influence_trace")


def copy_trace(source: Path, target: Path, steps: set[int] | None, every: int) -> int:
    """Write the chosen steps of a trace to a new folder; returns how many there are."""
    reader = TraceReader(source)
    known = [entry.step for entry in reader.entries]
    chosen = [step for step in known if step in steps] if steps else known[::every]
    metadata = public_metadata(reader.summary.metadata)
    with TraceWriter(target, kind=reader.summary.kind, metadata=metadata, vocab=reader.vocab) as writer:
        for step in chosen:
            writer.write(step, reader.read(step).arrays)
    return len(chosen)


def public_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """What a shipped trace may say of its run."""
    kept = {name: metadata[name] for name in KEPT_METADATA if name in metadata}
    if isinstance(kept.get("model"), str):
        kept["model"] = Path(kept["model"]).name
    if isinstance(kept.get("influence_trace"), dict):
        kept["influence_trace"] = {k: v for k, v in kept["influence_trace"].items() if k != "output_dir"}
    return kept


def main() -> None:
    """Replace the demo trace."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="output folder of a run with traces")
    parser.add_argument("--steps", type=int, nargs="+", help="the steps to keep")
    parser.add_argument("--every", type=int, default=1, help="or every so many of the steps there are")
    parser.add_argument("--target", type=Path, default=TARGET, help="folder to replace")
    args = parser.parse_args()
    if args.target.exists():
        shutil.rmtree(args.target)
    wanted = None if args.steps is None else set(args.steps)
    for trace in find_traces(args.run):
        steps = copy_trace(trace, args.target / trace.name, wanted, max(args.every, 1))
        print(f"{trace.name}: {steps} steps")
    size = sum(path.stat().st_size for path in args.target.rglob("*") if path.is_file())
    print(f"{args.target}: {size / 1000:.0f} kB")
    if size > MAX_BYTES:
        raise ArcherError(f"that is more than {MAX_BYTES / 1000:.0f} kB; choose fewer steps.")


if __name__ == "__main__":
    try:
        main()
    except ArcherError as error:
        sys.exit(f"error: {error}")
