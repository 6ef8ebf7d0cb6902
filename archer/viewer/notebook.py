"""`show(trace_dir)`: the viewer in a notebook cell."""

import html
from pathlib import Path
from typing import Any

from archer.errors import ArcherError
from archer.viewer.runs import Library, TracedRun

_running: list[Any] = []
"""Servers of this kernel; they live as long as it does."""


class Shown:
    """What a notebook displays: a frame. `url` opens the same in a tab, `close()` stops the server."""

    def __init__(self, frame: str, url: str | None, server: Any) -> None:
        self._frame = frame
        self.url = url
        self._server = server

    def _repr_html_(self) -> str:
        return self._frame

    def close(self) -> None:
        """Stop the server behind the frame; an embedded page has none."""
        if self._server is not None and self._server in _running:
            _running.remove(self._server)
            self._server.close()


def show(
    *trace_dirs: str | Path,
    model_path: str | None = None,
    follow: bool = True,
    height: int = 860,
    embed: bool = False,
    step: int | None = None,
    group: int | None = None,
) -> Shown:
    """Show traces or run folders below a notebook cell.

    The kernel serves the viewer on a free port of its machine. Where the browser is on another machine and
    cannot reach that port, `embed=True` puts one group into the notebook itself: `step` and `group`, by
    default the first group of the newest step.
    """
    folders = [Path(folder) for folder in trace_dirs]
    library = Library.open(folders, model_path)
    if embed:
        return Shown(
            _frame(f'srcdoc="{html.escape(_page(library.runs[0], step, group))}"', height), None, None
        )
    from archer.viewer.app import app_maker
    from archer.viewer.security import Access
    from archer.viewer.serve import BackgroundServer

    server = BackgroundServer(app_maker(library, follow=follow), Access.of("127.0.0.1", 0, embeddable=True))
    _running.append(server)
    place = "" if step is None else f"#{step}" if group is None else f"#{step}/{group}"
    return Shown(_frame(f'src="{html.escape(server.url() + place)}"', height), server.url() + place, server)


def _page(run: TracedRun, step: int | None, group: int | None) -> str:
    from archer.viewer.export import export_group
    from archer.viewer.steps import load_step

    if step is None:
        steps = run.timeline()
        if not steps:
            raise ArcherError("the trace holds no step yet; train first, or use embed=False to wait for one.")
        step = steps[-1].step
    return export_group(run, step, load_step(run, step).first_group if group is None else group)


def _frame(source: str, height: int) -> str:
    return (
        f'<iframe {source} title="Archer trace viewer" '
        f'style="width:100%;height:{int(height)}px;border:0;border-radius:8px"></iframe>'
    )
