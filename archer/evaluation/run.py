"""One evaluation from its plan to its folder."""

import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from archer.evaluation.build import build
from archer.evaluation.plan import EvalPlan
from archer.evaluation.report import as_json, describe_sampling, progress
from archer.evaluation.samples import Sample
from archer.evaluation.store import EvalFolder, identity
from archer.evaluation.summary import Summary, summarise


@dataclass(frozen=True)
class Evaluated:
    """A complete evaluation."""

    summary: Summary
    folder: Path
    fresh: bool  # False: it had been complete before


def evaluate(plan: EvalPlan, console: Console, out: Path | None = None, overwrite: bool = False) -> Evaluated:
    """Evaluate a model into a folder; what a stopped evaluation left there is used."""
    parts = build(plan)
    sampling = parts.evaluator.sampling
    total = len(parts.dataset)
    folder = EvalFolder(out or plan.folder, sampling.chunk, sampling.n, total)
    try:
        samples = folder.open(identity(parts.config, parts.compute), overwrite)
        done = len(samples) // sampling.n
        _say(
            console,
            f"{plan.model.path}  {parts.parameters / 1e6:,.2f} M parameters, {parts.compute.device.type}",
        )
        _say(console, f"{total:,} prompts of {', '.join(parts.config.data.val_files)}")
        _say(console, describe_sampling(parts.config))
        if parts.dataset.overlong:
            _say(console, f"{parts.dataset.overlong:,} prompts over data.max_prompt_length left out")
        if folder.summary_file.is_file():
            _say(console, "evaluated before with the same settings; --overwrite does it again")
            return Evaluated(summarise(samples), folder.path, fresh=False)
        if done:
            _say(console, f"going on after {done:,} of {total:,} prompts")
        started = time.monotonic()
        with progress(console, total) as shown:
            shown.show(done, samples)
            for chunk in parts.evaluator.chunks(done):
                folder.append(chunk)
                samples += chunk
                shown.show(len(samples) // sampling.n, samples)
        summary = summarise(samples)
        folder.finish(_document(plan, summary, samples, time.monotonic() - started))
        return Evaluated(summary, folder.path, fresh=True)
    finally:
        folder.close()
        parts.close()


def _document(plan: EvalPlan, summary: Summary, samples: list[Sample], seconds: float) -> dict[str, object]:
    return {
        "model": plan.model.path,
        "step": plan.model.step,
        "data": list(plan.config.data.val_files),
        "samples": len(samples),
        "seconds": round(seconds, 2),
        **as_json(summary),
    }


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
