"""`archer eval` and `archer export-model`: options, modes, exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from archer.errors import ArcherError

if TYPE_CHECKING:
    from archer.evaluation.plan import EvalOptions
    from archer.evaluation.watch import Watch


def evaluate_command(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Further settings as in archer train: key=value ...", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A checkpoint folder (global_step_N), a run (its newest checkpoint), a Hugging Face "
            "folder, a hub id, or builtin:tiny_reasoner.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Prompts in verl's schema; may be repeated. Default: the run's data.val_files."),
    ] = None,
    n: Annotated[int | None, typer.Option("--n", min=1, help="Responses per prompt.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k likeliest tokens; -1: all.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest response.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Responses decoded at a time.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N prompts.")] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"] | None, typer.Option(help="Where to compute.")] = None,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"] | None, typer.Option(help="Number format of the products.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for samples.jsonl and summary.json. Default: evaluation/DATA@N/MODEL in the run's "
            "folder; in output/ for a model from elsewhere.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an evaluation in --out.")] = False,
    watch: Annotated[
        Path | None,
        typer.Option(
            help="Instead of --model: evaluate each new checkpoint of this run until it ends.",
            show_default=False,
        ),
    ] = None,
    until_step: Annotated[
        int | None, typer.Option(min=0, help="With --watch: end after the checkpoint of this step.")
    ] = None,
) -> None:
    """Measure accuracy: avg@n, pass@k, majority@n, per data source, with every sample kept.

    A checkpoint of a run is evaluated as the run validates (prompts, lengths, sampling, seed) unless options
    say otherwise: without any, the result is the one that training logged. A model from elsewhere answers
    once, greedily, or --n times at temperature 1. Ctrl-C stops; the same command resumes.
    """
    if (model is None) == (watch is None):
        raise ArcherError("Give either --model (one evaluation) or --watch (each new checkpoint of a run).")
    if until_step is not None and watch is None:
        raise ArcherError("--until-step says when --watch ends; it means nothing with --model.")
    # Here, because torch takes seconds that --help should not.
    from transformers.utils import logging as transformers_logging

    from archer.evaluation.plan import EvalOptions
    from archer.evaluation.watch import Watch, watched_folder

    transformers_logging.disable_progress_bar()
    options = EvalOptions(
        data=tuple(data or ()),
        n=n,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        max_tokens=max_tokens,
        seed=seed,
        batch=batch,
        limit=limit,
        device=device,
        dtype=dtype,
        overrides=tuple(overrides or ()),
    )
    console = Console(emoji=False)
    try:
        if watch is not None:
            _watch(Watch(watched_folder(watch), options, until_step, out, overwrite), console)
        else:
            assert model is not None
            _once(model, options, out, overwrite, console)
    except KeyboardInterrupt:
        console.print("\nStopped. The same command resumes from here.")
        raise typer.Exit(130) from None


def _once(model: str, options: EvalOptions, out: Path | None, overwrite: bool, console: Console) -> None:
    from archer.evaluation.choice import choose_model
    from archer.evaluation.plan import make_plan
    from archer.evaluation.report import summary_table
    from archer.evaluation.run import evaluate

    done = evaluate(make_plan(choose_model(model), options), console, out, overwrite)
    console.print()
    console.print(summary_table(done.summary))
    overall = done.summary.overall
    if overall.failures:
        console.print(
            f"{overall.failures} responses could not be judged and are left out; "
            f"see `failure` in the samples. The first: {overall.first_failure}",
            style="yellow",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    for what, file in (("samples", "samples.jsonl"), ("figures", "summary.json")):
        console.print(f"{what}   {done.folder / file}", highlight=False, soft_wrap=True)


def _watch(plan: Watch, console: Console) -> None:
    from archer.evaluation.report import summary_table
    from archer.evaluation.watch import HISTORY, watch

    console.print(f"watching {plan.checkpoints} (Ctrl-C ends)", highlight=False, soft_wrap=True)
    count, last = 0, None
    for step, done in watch(plan, console):
        console.print(f"\n[bold]step {step}[/bold]", highlight=False)
        console.print(summary_table(done.summary))
        count, last = count + 1, done.folder.parent
    evaluated = f"{count} checkpoint{'' if count == 1 else 's'} evaluated"
    console.print(f"\n{evaluated}; the run has ended or the last step was reached.")
    if last is not None:
        console.print(f"history   {last / HISTORY}", highlight=False, soft_wrap=True)


def export_model_command(
    model: Annotated[str, typer.Argument(help="A run (its newest checkpoint), a checkpoint, or an adapter.")],
    out: Annotated[Path, typer.Argument(help="The folder to write; it must not exist yet.")],
    dtype: Annotated[
        Literal["float32", "bfloat16"],
        typer.Option(help="Number format of the weights; adapters are merged in float32."),
    ] = "float32",
    base: Annotated[
        str | None, typer.Option(help="The adapter's base model, where it is not at its old place.")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run model code that comes with the base.")
    ] = False,
) -> None:
    """Write a checkpoint as a plain Hugging Face model: LoRA adapters merged, training state left out.

    The folder loads with from_pretrained, in vLLM, or as actor_rollout_ref.model.path of another run.
    """
    from transformers.utils import logging as transformers_logging

    from archer.evaluation.choice import choose_model
    from archer.evaluation.plain_model import export_model

    transformers_logging.disable_progress_bar()
    export_model(choose_model(model), out, dtype, base, trust_remote_code)
    typer.echo(f"model   {out}")
