"""The `archer` command."""

import sys
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from archer import train as train_command
from archer.ablation.commands import app as ablation_app
from archer.data.commands import data_app
from archer.diagnosis.command import diagnose
from archer.errors import ArcherError, masked
from archer.evaluation.command import evaluate_command, export_model_command
from archer.imports.command import import_command
from archer.trace.commands import app as trace_app
from archer.verify.command import verify
from archer.viewer.commands import export, view


def _load_tokenizer(model_path: str) -> Any:
    from archer.generation.config import ModelConfig
    from archer.generation.model import load_tokenizer

    return load_tokenizer(ModelConfig(path=model_path))


app = typer.Typer(
    name="archer",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # joins the lines of a docstring
)
app.command("train", cls=train_command.TrainCommand)(train_command.train)
app.command()(view)
trace_app.command("import")(import_command)
app.add_typer(trace_app, name="trace")
app.command()(diagnose)
app.command()(export)
app.command()(verify)
app.command("eval")(evaluate_command)
app.command("export-model")(export_model_command)
app.add_typer(data_app(_load_tokenizer), name="data")
app.add_typer(ablation_app, name="ablate")


@app.command()
def version() -> None:
    """Print the version."""
    from archer import __version__

    typer.echo(__version__)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """RL post-training for language models that leaves a token-level trace of every step."""


def main() -> None:
    """Run the command line; a problem the user can fix is one message and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a file's name may hold bytes that are no text
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except ArcherError as error:
        _refuse(str(error))
    except OSError as error:
        if error.filename is None or isinstance(error, ConnectionError):
            raise
        _refuse(f"{error.filename}: {error.strerror}. Check the name, the disk and who may use it.")


def _refuse(text: str) -> NoReturn:
    console = Console(stderr=True, emoji=False)
    console.print(f"[bold red]error:[/bold red] {_escaped(masked(text))}", highlight=False)
    sys.exit(2)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


if __name__ == "__main__":
    main()
