"""`archer ablate`: run a grid, collect its results."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archer.errors import ArcherError

app = typer.Typer(help="Run a grid of trainings and compare them.", no_args_is_help=True)


@app.command()
def run(
    grid: Annotated[
        str,
        typer.Argument(
            help="A grid file, or the name of a shipped one: credit, credit_all, credit_gsm8k, gsm8k, "
            "influence_0220."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Hydra overrides of every case, as in archer train.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the grid. Default: output/ablation/GRID.", show_default=False),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Train every case with each of these seeds, e.g. 0,3 or 100-107; else the grid's."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Cases at a time. Times are only exact with 1.")] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Run only this case; a pattern like '*-identity'; may be repeated."),
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try failed cases again.")] = False,
    list_only: Annotated[
        bool, typer.Option("--list", "--dry-run", help="Configure and show the cases, and stop.")
    ] = False,
    gpus: Annotated[
        str | None,
        typer.Option(help="Devices, e.g. 0,1,2,3: each of the --jobs cases sees one of them."),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            help="What starts a training, e.g. 'srun -N1 archer train'. It is called with key=value "
            "overrides. Default: archer train of this installation.",
            show_default=False,
        ),
    ] = None,
    config_dir: Annotated[
        Path | None, typer.Option("--config-dir", help="Folder with custom recipes.")
    ] = None,
) -> None:
    """Train every case of a grid, each in a folder of its own.

    A case that runs out of memory is tried once more with token factors in CPU memory. Any other failure is
    recorded, and the next case starts. Ctrl-C lets the running cases finish their step and save; the same
    command resumes: what is done is skipped.
    """
    from archer.ablation.driver import TRAIN, Driver, RunOptions
    from archer.ablation.folder import AblationFolder
    from archer.ablation.grid import choose, load_grid, parse_seeds, plan_cases
    from archer.ablation.progress import GridProgress, list_cases

    console = Console(highlight=False, emoji=False)
    loaded = load_grid(grid, () if seeds is None else parse_seeds(seeds))
    planned = plan_cases(loaded, overrides or [], config_dir)
    chosen = choose(planned, only or [])
    folder = AblationFolder(out or Path("output") / "ablation" / loaded.name)
    if list_only:
        list_cases(console, folder, chosen, loaded.shared)
        return
    devices = tuple(part for part in (gpus or "").split(",") if part)
    if gpus is not None and not devices:
        raise ArcherError("--gpus wants device numbers, e.g. --gpus 0,1.")
    options = RunOptions(
        jobs=jobs,
        retry_failed=retry_failed,
        command=tuple(shlex.split(command)) if command else TRAIN,
        config_dir=config_dir,
        gpus=devices,
        keep_checkpoints=loaded.keep_checkpoints,
    )
    with folder.held(loaded, planned):
        driver = Driver(folder, chosen, options, GridProgress(console, folder, chosen))
        states = driver.run()
    done = sum(state.status == "done" for state in states.values())
    failed = [name for name, state in states.items() if state.status == "failed"]
    console.out(f"\n{done} of {len(states)} cases done, {len(failed)} failed.")
    for name in failed:
        last = states[name].attempts[-1]
        console.out(f"  {name}: {last.failure}; see {folder.log(name, last.offloaded)}")
    if driver.stop_signal is not None:
        console.out("Stopped. The same command resumes from here.")
        raise typer.Exit(128 + driver.stop_signal)
    console.out(f"next: archer ablate collect {shlex.quote(str(folder.path))}")
    if failed:
        raise typer.Exit(1)


@app.command()
def collect(
    folder: Annotated[Path, typer.Argument(help="The folder of a grid: --out of archer ablate run.")],
    out: Annotated[
        Path | None, typer.Option(help="Where the report goes. Default: FOLDER/report.", show_default=False)
    ] = None,
) -> None:
    """Compare the cases of a grid: report.md with plots, and the same as CSV.

    A grid with seeds is compared seed by seed, in held-out accuracy; any other in cost and influence scores.
    Works at any time, also while the grid runs; cases that are not done are listed without figures.
    """
    from archer.ablation.comparison import compare_cases
    from archer.ablation.folder import AblationFolder
    from archer.ablation.paired import compare_seeds
    from archer.ablation.paired_report import write_paired_report
    from archer.ablation.report import write_report

    where = out or folder / "report"
    if AblationFolder(folder).plan().seeds:
        lines = write_paired_report(compare_seeds(folder), where)
    else:
        lines = write_report(compare_cases(folder), where)
    for line in lines:
        Console(highlight=False, emoji=False).out(line)
