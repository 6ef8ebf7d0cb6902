"""The viewer inside a Gradio page, for hosted demos: Gradio shows a frame, the client has its own routes.

Gradio never carries the arrays: through component values they take ten to thirty times as long as through the
client's own binary requests.
"""

import importlib

from fastapi import FastAPI

from archer.errors import ArcherError

VIEWER_PATH = "/viewer"
FRAME = (
    f'<iframe src="{VIEWER_PATH}/" title="Archer trace viewer" '
    'style="width:100%;height:calc(100vh - 3rem);border:0"></iframe>'
)


def in_gradio(viewer: FastAPI) -> FastAPI:
    """A Gradio application at `/` whose page holds the viewer, itself at `/viewer`."""
    try:
        gradio = importlib.import_module("gradio")
    except ModuleNotFoundError as error:
        raise ArcherError(
            "archer view --gradio needs Gradio; install it with: pip install 'archer-rl[gradio]', "
            "or leave --gradio out, the viewer is the same."
        ) from error
    with gradio.Blocks(title="Archer viewer", analytics_enabled=False) as blocks:
        gradio.HTML(FRAME)
    host = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    host.mount(VIEWER_PATH, viewer)  # before Gradio, which takes every path that is left
    return gradio.mount_gradio_app(host, blocks, path="/")
