"""What `trainer.log_step_responses` costs: its share of a training step, in one run.

    python benchmarks/step_responses.py --count 4 --steps 10

The embedded model trains on this machine. Measured of every step: the step without the responses, choosing
and decoding them (`timing_s/step_responses`), and handing the table to each tracker. Printed are medians and
their share of the step. W&B works offline. The embedded model's steps take less than a second: with a model
that is worth training the share is smaller still.
"""

import argparse
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from archer.config.compose import compose
from archer.engines.local.engine import LocalEngine
from archer.tracking import RunInfo, make_trackers
from archer.training.traces import Traces


def main() -> None:
    """Train, measure and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=4, help="trainer.log_step_responses")
    parser.add_argument("--steps", type=int, default=10, help="steps that count; one more warms up")
    parser.add_argument("--trackers", nargs="*", default=["wandb", "trackio", "tensorboard"])
    args = parser.parse_args()
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as closing:
        os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "TRACKIO_DIR": f"{folder}/trackio"}
        config = compose(
            [f"trainer.default_local_dir={folder}/run", f"trainer.log_step_responses={args.count}"]
        )
        engine = LocalEngine(config)
        engine.start(None, closing)
        engine.traces = Traces(config, engine.tokenizer, resumed_at=0)
        closing.callback(engine.traces.close)
        run = RunInfo("benchmark", "step_responses", "bench", Path(folder), {})
        trackers = dict(zip(args.trackers, make_trackers(args.trackers, run), strict=True))
        for tracker in trackers.values():
            closing.callback(tracker.close)
        for step in range(args.steps + 1):
            report = engine.train_step(lambda: False)
            chosen = report.metrics["timing_s/step_responses"]
            costs = {"step": report.metrics["timing_s/step"] - chosen, "choose and decode": chosen}
            for name, tracker in trackers.items():
                start = time.perf_counter()
                tracker.log_samples(engine.step, report.responses)
                costs[name] = time.perf_counter() - start
                tracker.log(engine.step, report.metrics)
            if step:  # the first step warms up, and opens the trackers' files
                for name, cost in costs.items():
                    seconds.setdefault(name, []).append(cost)
    whole = median(seconds.pop("step"))
    table = Table(title=f"{args.count} best and {args.count} worst responses, medians of {args.steps} steps")
    for column in ("part", "ms", "share of the step"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for name, values in seconds.items():
        table.add_row(name, f"{median(values) * 1e3:.2f}", f"{median(values) / whole:.2%}")
    Console().print(table)


if __name__ == "__main__":
    main()
