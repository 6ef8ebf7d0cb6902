"""The application of a viewer: folders, address and host put together, plain or inside a Gradio page.

Inside Gradio, for hosted demos, Gradio shows a frame and the client has its own routes. Gradio never carries
the arrays: through component values they take ten to thirty times as long as through the client's own binary
requests. All addresses are relative, so that the page may live below any path.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from archer.errors import ArcherError, install_hint
from archer.viewer.runs import Library
from archer.viewer.security import Access, Guard


def app_maker(
    library: Library, *, follow: bool = False, gradio: bool = False, start: str = ""
) -> Callable[[Access], Any]:
    """A function that makes the guarded application once the final port is known."""
    try:
        from archer.viewer.server import create_app
    except ModuleNotFoundError as error:
        raise ArcherError(f"the viewer needs {error.name}: {install_hint('viewer')}") from error
    around = in_gradio if gradio else lambda viewer: viewer
    return lambda access: Guard(around(create_app(library, access, follow=follow, start=start)), access)


def demo_folder() -> Path:
    """The trace of the embedded model, shipped with the package."""
    return Path(__file__).parent / "demo"


def real_demo_folder() -> Path:
    """The trace of a real model, shipped with the package."""
    return Path(__file__).parent / "demo_real"


REAL_DEMO_START = "#40/13/111/148?beside=nearest"
"""Where the demo opens: the response made `4K - 4 + K` of `(3K - 4) + K`, and this token is that `+`."""


FRAME_ID = "archer-viewer"
FRAME = (
    f'<iframe id="{FRAME_ID}" title="Archer trace viewer" '
    'style="position:fixed;inset:0;width:100%;height:100%;border:0"></iframe>'
)
# The frame opens where the page's address says, and the address follows the frame: a permalink of the Gradio
# page is a permalink of the viewer.
LINKED = f"""() => {{
  const frame = document.getElementById("{FRAME_ID}");
  const place = () => frame.contentWindow.location.hash;
  frame.addEventListener("load", () => frame.contentWindow.addEventListener("hashchange", () => {{
    if (location.hash !== place()) history.replaceState(null, "", place() || "#");
  }}));
  addEventListener("hashchange", () => {{
    if (location.hash !== place()) frame.contentWindow.location.hash = location.hash;
  }});
  frame.src = "viewer/" + location.hash;
}}"""


def in_gradio(viewer: Any) -> Any:
    """A Gradio application at `/` whose page holds the viewer, itself at `/viewer`."""
    try:
        gradio = importlib.import_module("gradio")
    except ModuleNotFoundError as error:
        raise ArcherError(
            f"archer view --gradio needs Gradio: {install_hint('gradio')}, or leave --gradio out, the viewer "
            "is the same."
        ) from error
    from fastapi import FastAPI

    with gradio.Blocks(title="Archer viewer", analytics_enabled=False) as blocks:
        gradio.HTML(FRAME)
    host = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    host.mount("/viewer", viewer)  # before Gradio, which takes every path that is left
    return gradio.mount_gradio_app(
        host,
        blocks,
        path="/",
        footer_links=[],
        # Gradio's own themes ask a font service on the network for their fonts.
        theme=gradio.themes.Base(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
        js=LINKED,
        ssr_mode=False,
        mcp_server=False,
        enable_monitoring=False,
        blocked_paths=["/"],  # its file route reads nothing at all
        max_file_size=1,
    )
