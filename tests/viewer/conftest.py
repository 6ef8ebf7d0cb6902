"""A viewer over small traces, and one browser for the whole session."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parent))  # helpers of this folder, under every import mode of pytest
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from headless_chromium import NoChromiumError, launch
from small_traces import make_step, write_trace

from archer.viewer.app import app_maker
from archer.viewer.runs import Library
from archer.viewer.security import Access
from archer.viewer.serve import BackgroundServer


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five steps with an influence trace; must not be changed."""
    folder = tmp_path_factory.mktemp("traces") / "small"
    write_trace(folder / "influence_trace", {step: make_step(step) for step in range(1, 6)})
    return folder


@pytest.fixture
def serve() -> Iterator[Callable[..., BackgroundServer]]:
    """Serve run folders; the servers end with the test."""
    servers: list[BackgroundServer] = []

    def start(*folders: Path, follow: bool = False, model_path: str | None = None) -> BackgroundServer:
        library = Library.open(list(folders), model_path)
        servers.append(BackgroundServer(app_maker(library, follow=follow), Access.of("127.0.0.1", 0)))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def small(run_folder: Path) -> Iterator[str]:
    """Address of a viewer of `run_folder`."""
    with BackgroundServer(app_maker(Library.open([run_folder])), Access.of("127.0.0.1", 0)) as server:
        yield server.url()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, found or installed by the project's script."""
    with sync_playwright() as playwright:
        try:
            chromium = launch(playwright)
        except NoChromiumError as error:
            pytest.fail(str(error))
        yield chromium
        chromium.close()


@pytest.fixture
def new_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Pages that fail their test on a script error or a breach of the content policy."""
    contexts = []
    complaints: list[str] = []

    def make(width: int = 1440, height: int = 900, scheme: Any = "light") -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            reduced_motion="reduce",
            accept_downloads=True,
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda message: (
                complaints.append(message.text)
                if message.type == "error" and "Failed to load resource" not in message.text
                else None
            ),
        )
        page.on("dialog", lambda dialog: (complaints.append("a dialog opened"), dialog.dismiss()))
        return page

    yield make
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def page(new_page: Callable[..., Page]) -> Page:
    """One page of the usual size."""
    return new_page()
