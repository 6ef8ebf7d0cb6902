"""`archer diagnose RUN`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from archer.errors import ArcherError, visible


def diagnose(
    run: Annotated[Path, typer.Argument(help="The output folder of a run, or a trace.", metavar="RUN")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Say in plain words what is wrong with a run, since when, why, and what to try.

    Reads metrics and traces; either alone will do. Exits with 0 when nothing is found, 1 when something is,
    2 when there is nothing to read.
    """
    from archer.diagnosis.diagnosis import Diagnosis
    from archer.diagnosis.report import DiagnosisReport
    from archer.diagnosis.run_files import open_run

    try:
        with Console(stderr=True, emoji=False).status(Text(f"reading {visible(str(run))}")):
            files = open_run(run)
            diagnosis = Diagnosis()
            for evidence in files.evidence(diagnosis.limits):
                diagnosis.add(evidence)
        report = DiagnosisReport.of(diagnosis, files.name, str(run), files.steps, files.notes)
    except ArcherError as error:
        # Unlike other errors these may quote what stands in a stranger's file.
        message = Text.assemble(("error:", "bold red"), " ", visible(str(error)))
        Console(stderr=True, emoji=False).print(message, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        report.print(Console(highlight=False, emoji=False))
    raise typer.Exit(1 if report.findings else 0)
