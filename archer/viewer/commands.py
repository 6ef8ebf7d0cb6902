"""`archer view` and `archer export`."""

import os
import socket
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from archer.errors import visible
from archer.viewer.app import REAL_DEMO_START, app_maker, demo_folder, real_demo_folder
from archer.viewer.runs import Library
from archer.viewer.security import Access, is_loopback

Folders = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Runs, traces, or folders of runs such as output/; all are shown side by side.",
        metavar="[DIR]...",
    ),
]
TraceDirs = Annotated[
    list[Path] | None, typer.Option("--trace-dir", help="The same as DIR; may be repeated.", metavar="DIR")
]
ModelPath = Annotated[
    str | None,
    typer.Option(help="Model whose tokenizer decodes traces without vocab.npz; ids are shown without it."),
]


def view(
    folders: Folders = None,
    trace_dir: TraceDirs = None,
    model_path: ModelPath = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but this machine's own needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 7862,
    follow: Annotated[bool, typer.Option("--follow", help="Show new steps of a run in training.")] = False,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the browser.")] = False,
    token: Annotated[
        str | None, typer.Option(help="Token to ask for; made and printed where one is needed.")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Show the traces shipped with Archer.")] = False,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Take no notes: nothing is written beside the runs.")
    ] = False,
    gradio: Annotated[bool, typer.Option("--gradio", help="Serve inside a Gradio page.")] = False,
) -> None:
    """Show what every token did, in the browser."""
    given = [*(folders or []), *(trace_dir or []), *([real_demo_folder(), demo_folder()] if demo else [])]
    library = Library.open(given, model_path, read_only=read_only or demo)
    access = Access.of(host, port, token, embeddable=gradio)
    start = REAL_DEMO_START if given[:1] == [real_demo_folder()] else ""
    make_app = app_maker(library, follow=follow, gradio=gradio, start=start)
    from archer.viewer.serve import serve

    def ready(final: Access) -> None:
        typer.echo(_greeting(library, final))
        if open_browser:
            webbrowser.open(final.url())

    serve(make_app, access, ready)


NAMED = 8  # runs that the greeting names


def _greeting(library: Library, access: Access) -> str:
    names = [visible(run.name) for run in library.runs]
    more = f" and {len(names) - NAMED} more runs" if len(names) > NAMED else ""
    left_out = "".join(
        visible(f"Left out: {place}: {why}") + "\n" for place, why in list(library.left_out.items())[:NAMED]
    )
    others = "".join(f"    {url}\n" for url in access.other_urls())
    tunnel = ""
    if is_loopback(access.host) and "SSH_CONNECTION" in os.environ:
        port = access.port
        tunnel = (
            f"From your own machine: ssh -L {port}:localhost:{port} {socket.gethostname()}, then open "
            f"http://localhost:{port}/ there. Any local port will do.\n"
        )
    runs = f"Viewing {', '.join(names[:NAMED])}{more}\n{left_out}"
    return f"{runs}\n    {access.url()}\n{others}\n{tunnel}Ctrl-C ends it."


def export(
    out: Annotated[Path, typer.Argument(help="The HTML file to write.", metavar="OUT.html")],
    trace_dir: Annotated[Path, typer.Option(help="Trace folder or run folder.", metavar="DIR")],
    step: Annotated[int, typer.Option(help="The training step.")],
    group: Annotated[int | None, typer.Option(help="The group; the first of the step by default.")] = None,
    model_path: ModelPath = None,
) -> None:
    """Write one group of a step as a single HTML file that opens without a server."""
    from archer.viewer.export import write_group
    from archer.viewer.steps import load_step

    run = Library.open([trace_dir], model_path).runs[0]
    group = load_step(run, step).first_group if group is None else group
    size = write_group(run, step, group, out)
    typer.echo(f"{out}: step {step}, group {group}, {size / 1e6:.1f} MB")
