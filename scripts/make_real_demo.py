"""Cuts the real model's trace that `archer view --demo` opens from the folder of a finished run.

    python scripts/make_real_demo.py RUN --groups 14 --steps 1 20 40 60 --name gsm8k-qwen2.5-coder-0.5b \
        --licences "Qwen2.5-Coder-0.5B-Instruct (Apache-2.0), GSM8K (MIT)"

Keeps the first groups of the chosen steps, so that responses keep their numbers. The vocabulary keeps its ids
and loses the bytes of tokens that do not occur. Values are the run's own, bit for bit. Where the run did not
keep the answers that its verifier read, they are read from the texts again. Every file is written anew: the
model is named without the folder it lay in.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from make_demo_trace import public_metadata

from archer.errors import ArcherError
from archer.rewards.extract import boxed_answer
from archer.rewards.telling import shortened
from archer.trace.arrays import SPECS
from archer.trace.reader import TraceReader, find_traces
from archer.trace.schema import TraceStep
from archer.trace.vocab import Vocab
from archer.trace.writer import TraceWriter

TARGET = Path(__file__).resolve().parent.parent / "archer" / "viewer" / "demo_real"
MAX_BYTES = 1_500_000
DIGITS = 5  # of a metric in metrics.jsonl
METRICS = "metrics.jsonl"
README = "README.md"


def cut(step: TraceStep, groups: int) -> TraceStep:
    """The rows of groups 0 to `groups` - 1, no wider than their longest response."""
    if step.group_id is None:
        raise ArcherError("the trace has no group_id; this script needs a trace of format 2.")
    rows = np.flatnonzero(step.group_id < groups)
    mask = step.response_mask[rows]
    width = int(np.flatnonzero(mask.any(axis=0))[-1]) + 1 if mask.any() else 0
    kept = {
        name: values[rows][:, :width] if SPECS[name].layout == "token" else values[rows]
        for name, values in step.arrays().items()
        if SPECS[name].layout in ("token", "row")
    }
    prompts = [step.prompt(int(row)) for row in rows]
    known = [prompt for prompt in prompts if prompt is not None]
    if len(known) == len(prompts):
        kept["prompt_ids"] = np.concatenate([np.empty(0, np.int32), *known])
        kept["prompt_offsets"] = np.cumsum([0, *(len(prompt) for prompt in known)]).astype(np.int64)
    return TraceStep(**{name: np.ascontiguousarray(values) for name, values in kept.items()})


def with_answers(step: TraceStep, vocab: Vocab | None) -> TraceStep:
    r"""The step with the answers that the verifier of `\boxed{}` reads in its responses."""
    if vocab is None or step.extracted_answer is not None:
        return step
    texts = [
        vocab.decode(ids[mask]).text for ids, mask in zip(step.responses, step.response_mask, strict=True)
    ]
    return replace(step, extracted_answer=np.array([shortened(boxed_answer(text) or "") for text in texts]))


def used_only(vocab: Vocab, steps: Sequence[TraceStep]) -> Vocab:
    """The same ids; tokens that occur in none of the steps lose their bytes."""
    held = [step.responses[step.response_mask] for step in steps]
    held += [step.prompt_ids for step in steps if step.prompt_ids is not None]
    used = set(np.unique(np.concatenate(held)).tolist())
    return Vocab.from_tokens([vocab.token(id_) if id_ in used else b"" for id_ in range(len(vocab))])


def rounded(line: str) -> str:
    """One line of metrics with fewer digits."""
    values: dict[str, Any] = json.loads(line)
    short = {k: float(f"{v:.{DIGITS}g}") if isinstance(v, float) else v for k, v in values.items()}
    return json.dumps(short, separators=(",", ":"))


def make(run: Path, target: Path, steps: list[int], groups: int, name: str, licences: str) -> int:
    """Replace the target folder; returns its size in bytes."""
    if target.exists():
        shutil.rmtree(target)
    beside: TraceWriter | None = None
    for trace in find_traces(run):  # the entropy trace first: the influence trace refers to it
        reader = TraceReader(trace)
        parts = {step: with_answers(cut(reader.read(step).arrays, groups), reader.vocab) for step in steps}
        vocab = None if reader.vocab is None else used_only(reader.vocab, list(parts.values()))
        metadata = public_metadata(reader.summary.metadata) | {"experiment": name, "licences": licences}
        with TraceWriter(
            target / trace.name, kind=reader.summary.kind, metadata=metadata, vocab=vocab, beside=beside
        ) as writer:
            for step, arrays in parts.items():
                writer.write(step, arrays, refers=beside is not None)
        beside = writer if reader.summary.kind == "entropy" else beside
        print(f"{trace.name}: {len(steps)} steps, {groups} groups each")
    if (run / METRICS).is_file():
        lines = (run / METRICS).read_text().splitlines()
        (target / METRICS).write_text("".join(rounded(line) + "\n" for line in lines))
    (target / README).write_text(
        f"Steps {', '.join(map(str, steps))} of a real run, the first {groups} groups of each, cut by "
        "`scripts/make_real_demo.py`.\n"
        "The run kept no extracted answers: they are read anew from the texts.\n"
        f"Texts come from {licences}.\n"
    )
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())


def main() -> None:
    """Replace the real demo trace."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="output folder of a run with traces")
    parser.add_argument("--steps", type=int, nargs="+", required=True, help="the steps to keep")
    parser.add_argument("--groups", type=int, required=True, help="how many groups of each, from the first")
    parser.add_argument("--name", required=True, help="what the viewer calls the run")
    parser.add_argument("--licences", required=True, help="model and data, with their licences")
    parser.add_argument("--target", type=Path, default=TARGET, help="folder to replace")
    args = parser.parse_args()
    size = make(args.run, args.target, args.steps, args.groups, args.name, args.licences)
    print(f"{args.target}: {size / 1000:.0f} kB")
    if size > MAX_BYTES:
        raise ArcherError(f"that is more than {MAX_BYTES / 1000:.0f} kB; choose fewer steps or groups.")


if __name__ == "__main__":
    try:
        main()
    except ArcherError as error:
        sys.exit(f"error: {error}")
