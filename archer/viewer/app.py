"""Puts the parts together: folders, address and host become one ASGI application."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from archer.errors import ArcherError
from archer.install import install_hint
from archer.viewer.runs import Library
from archer.viewer.security import Access, Guard

DEMO = Path(__file__).parent / "demo"


def app_maker(library: Library, *, follow: bool = False, gradio: bool = False) -> Callable[[Access], Any]:
    """A function that makes the guarded application once the final port is known."""
    try:
        from archer.viewer.server import create_app
    except ModuleNotFoundError as error:
        raise ArcherError(f"the viewer needs {error.name}: {install_hint('viewer')}") from error
    if gradio:
        from archer.viewer.gradio_host import in_gradio

        return lambda access: Guard(in_gradio(create_app(library, access, follow=follow)), access)
    return lambda access: Guard(create_app(library, access, follow=follow), access)


def demo_folder() -> Path:
    """The trace shipped with the package."""
    return DEMO
