"""`archer train`: options, help and the closing table."""

import errno
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperCommand

from archer.config.compose import compose, recipes, to_yaml
from archer.config.notes import idle_notes
from archer.config.overrides import given_settings, renaming_notes
from archer.config.parse import leaves
from archer.config.presets import preset_notes
from archer.config.root import TrainConfig
from archer.errors import ArcherError
from archer.settings import declaration
from archer.tracking.console import accuracy_text

if TYPE_CHECKING:
    from archer.training.loop import Run
    from archer.training.progress import Outcome

COMMON_KEYS = (
    "actor_rollout_ref.model.path",
    "data.train_files",
    "data.val_files",
    "data.train_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.temperature",
    "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.actor.ppo_epochs",
    "actor_rollout_ref.actor.use_kl_loss",
    "algorithm.adv_estimator",
    "algorithm.filter_groups.enable",
    "reward.custom_reward_function.path",
    "trainer.total_training_steps",
    "trainer.experiment_name",
    "trainer.save_freq",
    "trainer.test_freq",
    "trainer.logger",
    "engine.device",
)


def train(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Hydra overrides: recipe=NAME, key=value ...", show_default=False),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the resolved configuration and stop.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check all that can be checked without training, and stop."),
    ] = False,
    config_dir: Annotated[
        Path | None,
        typer.Option("--config-dir", help="Folder with custom recipes, in recipe/NAME.yaml."),
    ] = None,
) -> None:
    """Train a language model with reinforcement learning.

    Without arguments: the embedded default (recipe=arithmetic), a tiny model that learns three-digit sums.
    """
    overrides = overrides or []
    again = overrides if config_dir is None else ["--config-dir", str(config_dir), *overrides]
    if dry_run:
        could_start = check_run(overrides, config_dir, Console(emoji=False), again)
        raise typer.Exit(0 if could_start else 2)
    config = composed(overrides, config_dir)
    if print_config:
        typer.echo(to_yaml(config), nl=False)
        return
    from archer.preflight.check import refuse_early

    console = Console(emoji=False)
    doubt = refuse_early(config)
    if doubt is not None:
        console.print(f"[yellow]{escape(doubt.sentence)}[/yellow]", highlight=False, soft_wrap=True)
    for text in notes_on(config, overrides, config_dir):
        console.print(f"[yellow]note: {escape(text)}[/yellow]", highlight=False, soft_wrap=True)
    run_engine(config, console, again)


def composed(overrides: list[str], config_dir: Path | None) -> TrainConfig:
    """Return the configuration; what nobody would obey is refused, of verl's where verl is installed."""
    config = compose(overrides, config_dir)
    if config.engine.name == "verl" and find_spec("verl") is not None:
        from archer.engines.verl.settings import check_keys

        check_keys(config)
    return config


def check_run(overrides: list[str], config_dir: Path | None, console: Console, again: list[str]) -> bool:
    """Check a run without starting it, print what was found, and return whether it could start."""
    from archer.preflight.check import full_check
    from archer.preflight.report import note, ok, print_report, problem

    try:
        config = composed(overrides, config_dir)
    except ArcherError as error:
        return print_report(console, [problem("configuration", str(error))], again)
    valid = ok("configuration", f"engine={config.engine.name}, {config.trainer.experiment_name}")
    notes = [note("configuration", text) for text in notes_on(config, overrides, config_dir)]
    return print_report(console, [valid, *notes, *full_check(config)], again)


def notes_on(config: TrainConfig, overrides: list[str], config_dir: Path | None) -> list[str]:
    """Say which settings were given by an old name, which have no effect, and which a preset left alone."""
    idle = idle_notes(config, given_settings(overrides, config_dir))
    kept = preset_notes(config) if config.trainer.influence_trace.enable else ()
    return [*renaming_notes(overrides, config_dir), *idle, *kept]


def make_run(config: TrainConfig, console: Console) -> "Run":
    """Return the run loop over the engine that the configuration names."""
    from archer.training.loop import Engine, Run  # torch and transformers take seconds: not for --help

    engine: Engine
    if config.engine.name == "verl":
        from archer.engines.verl.engine import VerlEngine

        engine = VerlEngine(config, console)
    else:
        from archer.engines.local.engine import LocalEngine

        engine = LocalEngine(config)
    return Run(config, console, engine)


def run_engine(config: TrainConfig, console: Console, overrides: list[str]) -> None:
    """Run an engine and print how it ended; exit with 128 + signal when it was stopped."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    run = make_run(config, console)
    try:
        outcome = run.execute()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ArcherError(
            f"The disk is full: {error.filename or config.run_dir} could not be written. What was saved "
            "before is untouched; make room and run the same command again to resume."
        ) from error
    if outcome.was_finished and outcome.stopped_by is None and not config.trainer.val_only:
        console.print(
            f"{run.folder.path}: steps done already {outcome.steps}, asked for {outcome.total_steps}. "
            "Nothing is left to do; to train further, raise trainer.total_training_steps.",
            highlight=False,
            soft_wrap=True,
        )
        return
    console.print(closing_table(config, run, outcome))
    if outcome.stopped_by is not None:
        console.print("Stopped. The same command resumes from here.")
        raise typer.Exit(128 + outcome.stopped_by)
    if config.trainer.val_only:
        return
    console.print("\n[bold]next[/bold]")
    for command, purpose in next_steps(config, overrides, outcome.steps):
        console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)
        console.print(f"      {purpose}", style="dim", highlight=False, markup=False, soft_wrap=True)


def closing_table(config: TrainConfig, run: "Run", outcome: "Outcome") -> Table:
    """Return what a run achieved and where things are."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    progress = outcome.progress
    if progress.accuracy_before is not None:
        table.add_row("accuracy before", accuracy_text(progress.accuracy_before, progress.sampled_before))
    if progress.accuracy_after is not None:
        when = "" if progress.measured_at == outcome.steps else f" at step {progress.measured_at}"
        after = accuracy_text(progress.accuracy_after, progress.sampled_after)
        table.add_row(f"accuracy after{when}", f"[bold green]{after}[/bold green]")
    table.add_row("steps", f"{outcome.steps} of {outcome.total_steps}")
    starts = " (all starts)" if outcome.begun_at else ""
    table.add_row("training time", f"{progress.seconds:.0f} s{starts}")
    table.add_row("run folder", str(run.folder.path))
    for name, folder in trace_folders(config).items():
        table.add_row(name, str(folder))
    newest = run.folder.checkpoints.latest()
    if newest is not None:
        exported = newest.path / "actor" / "huggingface"  # where verl puts the whole model
        whole = any(exported.glob("*.safetensors"))  # with LoRA, or on request, there is none
        table.add_row("model", str(exported if whole else newest.path))
    return table


def trace_folders(config: TrainConfig) -> dict[str, Path]:
    """Return where the traces of a run are, by what the closing table calls them."""
    entropy, influence = config.trainer.entropy_trace, config.trainer.influence_trace
    found = {}
    if entropy.enable:
        found["entropy trace"] = Path(entropy.output_dir or config.run_dir / "entropy_trace")
    if influence.enable:
        found["influence trace"] = Path(influence.output_dir or config.run_dir / "influence_trace")
    return found


def last_step_with_rows(config: TrainConfig) -> int | None:
    """Newest step of the influence trace that has rows; groups that are all right or all wrong leave none."""
    from archer.trace.manifest import read_manifest

    folder = trace_folders(config).get("influence trace")
    if folder is None:
        return None
    steps = read_manifest(folder).lines.values()
    return max((line.step for line in steps if line.statistics.rows), default=None)


def next_steps(config: TrainConfig, overrides: list[str], steps: int) -> list[tuple[str, str]]:
    """What to type next, and what for. Commands are written so that they run where this one ran."""
    archer = shlex.quote(sys.argv[0]) if sys.argv[0].endswith("/archer") else "archer"
    found = []
    folders = list(trace_folders(config).values())
    if folders:
        together = all(folder.parent == config.run_dir for folder in folders)
        shown_folders = [config.run_dir] if together else folders
        view = f"{archer} view {shlex.join(map(str, shown_folders))}"
        found.append((view, "what every token did, in the browser"))
    shown = last_step_with_rows(config)
    if shown is not None:
        folder = shlex.quote(str(trace_folders(config)["influence trace"]))
        show = f"{archer} trace show {folder} --step {shown}"
        found.append((show, "entropy and influence, token by token"))
    more = [o for o in overrides if not o.lstrip("+").startswith("trainer.total_training_steps=")]
    again = shlex.join([*more, f"trainer.total_training_steps={2 * max(steps, 1)}"])
    return [
        *found,
        (f"{archer} train {again}", "train this run further"),
        (
            f"{archer} train actor_rollout_ref.model.path=MODEL data.train_files=PROMPTS.jsonl",
            f"your own model and prompts; `{archer} train --help` lists recipes and settings",
        ),
    ]


class TrainCommand(TyperCommand):
    """`archer train` whose help ends with the recipes and the most used keys."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the options, then what can be overridden."""
        super().format_help(ctx, formatter)
        console = Console(emoji=False)
        helps = {name: declaration(field).help for name, _, field in leaves(TrainConfig)}
        rows = {
            "Recipes: recipe=NAME": recipes(),
            "Most used keys: key=value (all: archer train --print-config)": {
                k: helps[k] for k in COMMON_KEYS
            },
        }
        for title, entries in rows.items():
            table = Table(box=None, show_header=False, padding=(0, 2, 0, 1))
            table.add_column(no_wrap=True)
            table.add_column()
            for name, text in entries.items():
                table.add_row(f"[cyan]{name}[/cyan]", escape(text))
            console.print(f" [bold]{title}[/bold]", highlight=False)
            console.print(table)
            console.print()
