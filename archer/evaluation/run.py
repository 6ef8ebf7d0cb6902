"""One evaluation from its plan to its folder."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from archer.config.root import TrainConfig
from archer.evaluation.evaluator import Evaluator, exact_of, recorder_of, validation_sampling
from archer.evaluation.plan import EvalPlan
from archer.evaluation.report import as_json, describe_sampling, progress
from archer.evaluation.store import EvalFolder, identity
from archer.evaluation.summary import Sample, Summary, summarise
from archer.evaluation.trace import evaluation_trace
from archer.generation.build import Generation, PromptFiles, build_generation
from archer.generation.judge import failures_of, refuse_outage
from archer.trace.files import VALIDATION

DATA = "--data"


@dataclass(frozen=True)
class Evaluated:
    """A complete evaluation."""

    summary: Summary
    folder: Path
    fresh: bool  # False: it had been complete before


def load(plan: EvalPlan) -> tuple[Generation, TrainConfig]:
    """Load what an evaluation needs, the way training loads it; prompts may set the longest length."""
    config, options = plan.config, plan.config.actor_rollout_ref
    generation = build_generation(
        options.model,
        options.rollout,
        config.data,
        config.reward,
        config.engine,
        {DATA: PromptFiles(config.data.val_files, config.data.val_max_samples)},
        fit_prompts=plan.fit_prompts,
    )
    if plan.fit_prompts:
        longest = max(len(prompt.token_ids) for prompt in generation.datasets[DATA])
        config = replace(config, data=replace(config.data, max_prompt_length=longest))
    return generation, config


def evaluate(plan: EvalPlan, console: Console, out: Path | None = None, overwrite: bool = False) -> Evaluated:
    """Evaluate a model into a folder; what a stopped evaluation left there is used."""
    generation, config = load(plan)
    sampling, dataset = validation_sampling(config), generation.datasets[DATA]
    recorder = None
    if config.trainer.val_trace.enable is not False:
        recorder = recorder_of(generation, config, sampling)
    evaluator = Evaluator(dataset, generation.rollout, generation.judge, sampling, recorder)
    total = len(dataset)

    def refuse(samples: list[Sample]) -> None:
        again = "run the same command again with --overwrite"
        refuse_outage(failures_of(samples), evaluator.total, config.reward, "the evaluation", again)

    folder = EvalFolder(out or plan.folder, sampling.chunk, sampling.n, total)
    try:
        samples = folder.open(identity(config, generation.compute), overwrite)
        done = len(samples) // sampling.n
        complete = folder.summary_file.is_file()
        parameters = f"{sum(p.numel() for p in generation.model.parameters()) / 1e6:,.2f} M parameters"
        told = [
            f"{plan.model.path}  {parameters}, {generation.compute.device.type}",
            f"{total:,} prompts of {', '.join(config.data.val_files)}",
            describe_sampling(config),
        ]
        if dataset.overlong:
            told.append(f"{dataset.overlong:,} prompts over data.max_prompt_length left out")
        refuse(samples)
        if complete:
            told.append("evaluated before with the same settings; --overwrite does it again")
        elif done:
            told.append(f"resuming after {done:,} of {total:,} prompts")
        console.print("\n".join(told), highlight=False, markup=False, soft_wrap=True)
        if complete:
            exact = exact_of(generation, config, dataset).mean()
            return Evaluated(summarise(samples, exact), folder.path, fresh=False)
        started = time.monotonic()
        with (
            evaluation_trace(folder.path / VALIDATION, recorder, plan, generation, done) as keep,
            progress(console, total) as show,
        ):
            show(done, samples)
            for chunk in evaluator.chunks(done):
                keep()  # before the samples: what is there twice is cut, what is missing would be lost
                folder.append(chunk)
                samples += chunk
                refuse(samples)
                show(len(samples) // sampling.n, samples)
        generation.rollout.rest()  # one more pass over the model may need its memory
        summary = summarise(samples, exact_of(generation, config, dataset).mean())
        document = {
            "model": plan.model.path,
            "step": plan.model.step,
            "data": list(config.data.val_files),
            "samples": len(samples),
            "seconds": round(time.monotonic() - started, 2),
        }
        folder.finish(document | as_json(summary))
        return Evaluated(summary, folder.path, fresh=True)
    finally:
        folder.close()
        generation.scorer.close()
