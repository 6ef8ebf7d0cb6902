"""Runs the viewer: in the foreground for the command line, in a thread for notebooks."""

import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import uvicorn

from archer.errors import ArcherError
from archer.viewer.security import Access


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, so that a taken port is a clear message and port 0 becomes a real one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ArcherError(
            f"the viewer cannot listen on {host} port {port}: {error.strerror or error}. "
            "Choose another with --port (0 picks a free one)."
        ) from error
    return listener


class ViewerServer(uvicorn.Server):
    """A uvicorn server that calls back once it answers requests."""

    def __init__(self, app: Any, ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="on")
        )
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then say so."""
        await super().startup(sockets=sockets)
        if not self.should_exit:
            self._ready()


class BackgroundServer:
    """A viewer in a thread of this process. A context manager; `close` stops it."""

    def __init__(self, make_app: Callable[[Access], Any], access: Access) -> None:
        listener = bind(access.host, access.port)
        self.access = replace(access, port=int(listener.getsockname()[1]))
        started = threading.Event()
        self._server = ViewerServer(make_app(self.access), started.set)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name="archer-viewer", daemon=True
        )
        self._thread.start()
        if not started.wait(30.0):
            raise ArcherError("the viewer did not start; run `archer view` in a terminal to see why.")

    def __enter__(self) -> "BackgroundServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop answering and end the thread."""
        self._server.should_exit = True
        self._thread.join()

    def url(self) -> str:
        """Where to point a browser."""
        return self.access.url()


def serve(make_app: Callable[[Access], Any], access: Access, ready: Callable[[Access], None]) -> None:
    """Serve in the foreground until interrupted; `ready` gets the final address once it answers."""
    listener = bind(access.host, access.port)
    final = replace(access, port=int(listener.getsockname()[1]))
    ViewerServer(make_app(final), lambda: ready(final)).run(sockets=[listener])
