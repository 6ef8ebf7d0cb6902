"""`archer ablate`: run a grid, collect its results."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from archer.errors import ArcherError

if TYPE_CHECKING:
    from archer.ablation.planning import PlannedCase
    from archer.ablation.state import AblationFolder

FAILED = 1
app = typer.Typer(help="Run a grid of trainings and compare them.", no_args_is_help=True)


@app.command()
def run(
    grid: Annotated[str, typer.Argument(help="A grid file, or the name of a shipped one: influence_0220.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Hydra overrides of every case, as in archer train.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the grid. Default: output/ablation/GRID.", show_default=False),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Cases at a time. Times are only exact with 1.")] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Run only this case; a pattern like '*-identity'; may be repeated."),
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try broken cases again.")] = False,
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
        Path | None, typer.Option("--config-dir", help="Folder with recipes of your own.")
    ] = None,
) -> None:
    """Train every case of a grid, each in a folder of its own.

    A case that dies of memory is tried once more with token factors in CPU memory. One that fails otherwise
    is recorded, and the grid goes on. Ctrl-C lets the running cases finish their step and save; the same
    command goes on: what is done is skipped.
    """
    from archer.ablation.display import Display
    from archer.ablation.driver import TRAIN, Driver, RunOptions
    from archer.ablation.grid import load_grid
    from archer.ablation.planning import choose, plan_cases
    from archer.ablation.state import AblationFolder

    console = Console()
    loaded = load_grid(grid)
    planned = plan_cases(loaded, overrides or [], config_dir)
    chosen = choose(planned, only or [])
    folder = AblationFolder(out or Path("output") / "ablation" / loaded.name)
    if list_only:
        _list(console, folder, chosen, loaded.shared)
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
    folder.open(loaded, planned)
    try:
        driver = Driver(folder, chosen, options, Display(console, folder, chosen))
        states = driver.run()
    finally:
        folder.close()
    counts = {s: [n for n, state in states.items() if state.status == s] for s in ("done", "failed")}
    console.print(f"\n{len(counts['done'])} of {len(states)} cases done, {len(counts['failed'])} failed.")
    for name in counts["failed"]:
        log = folder.case(name).log(states[name].offloaded)
        console.print(f"  {name}: see {log}", highlight=False, markup=False, soft_wrap=True)
    if driver.stop_signal is not None:
        console.print("Stopped. The same command goes on from here.")
        raise typer.Exit(128 + driver.stop_signal)
    console.print(
        f"next: archer ablate collect {shlex.quote(str(folder.path))}", highlight=False, soft_wrap=True
    )
    if counts["failed"]:
        raise typer.Exit(FAILED)


@app.command()
def collect(
    folder: Annotated[Path, typer.Argument(help="The folder of a grid: --out of archer ablate run.")],
    out: Annotated[
        Path | None, typer.Option(help="Where the report goes. Default: FOLDER/report.", show_default=False)
    ] = None,
) -> None:
    """Compare the cases of a grid: cases.csv, correlations.csv, report.md and report.html.

    Works at any time, also while the grid runs; cases that are not done are listed without figures.
    """
    from archer.ablation.report import build_report
    from archer.ablation.write import write_report

    written = write_report(build_report(folder), out or folder / "report")
    console = Console()
    for path in written:
        console.print(str(path), highlight=False, markup=False, soft_wrap=True)


def _list(
    console: Console, folder: "AblationFolder", cases: "tuple[PlannedCase, ...]", shared: tuple[str, ...]
) -> None:
    """Print the cases with what is known of them; nothing is written."""
    from archer.ablation.grid import short

    console.print(f"folder  {folder.path}", highlight=False, markup=False, soft_wrap=True)
    console.print("every case has")
    for override in shared:
        console.print(f"  {override}", highlight=False, markup=False, soft_wrap=True)
    console.print("cases, each with its state and what it sets itself")
    longest = max(len(case.name) for case in cases)
    for case in cases:
        line = f"  {case.name:<{longest}}  {folder.case(case.name).read().status}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
        console.print(Padding(Text(" ".join(map(short, case.own)), style="dim"), (0, 0, 0, 6)))
