"""Where the viewer runs: the real command, a notebook's frame, a model's tokenizer, several runs at once."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from pages import go, shown
from playwright.sync_api import Page, expect
from small_traces import make_step, write_trace

from archer.viewer import commands, runs, show
from archer.viewer.serve import BackgroundServer

Serve = Callable[..., BackgroundServer]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def command() -> Iterator[Callable[..., str]]:
    """`archer view` with some arguments in a process of its own; returns the address it prints."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> str:
        line = [sys.executable, "-m", "archer.cli", "view", "--port", "0", *arguments]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        started.append(process)
        assert process.stdout is not None
        return next(text.strip() for text in process.stdout if text.strip().startswith("http"))

    yield start
    for process in started:
        process.terminate()
        process.wait()


def test_the_command_opens_the_shipped_demo(command: Callable[..., str], page: Page) -> None:
    go(page, command("--demo"))
    expect(page.get_by_role("heading", level=1)).to_contain_text("Group 13")
    expect(page.locator(".inspector .chosen")).to_have_text("·+")
    page.locator(".brand").click()
    page.locator(".runview tbody button").last.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Step 1")
    page.locator(".groupcard").first.click()
    page.locator(".striplabel").first.click()
    expect(page.locator(".responsetitle").first).to_contain_text("mean influence")


def test_the_command_shows_a_run_and_lets_in_with_its_token(
    command: Callable[..., str], page: Page, run_folder: Path
) -> None:
    address = command("--trace-dir", str(run_folder / "influence_trace"), "--host", "0.0.0.0")
    assert "?token=" in address
    go(page, address.replace("0.0.0.0", "127.0.0.1"), "#2/0/1")
    shown(page, "0/2/0/1")
    assert "token" not in page.url


def test_open_opens_the_browser(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("archer.viewer.serve.serve", lambda make, access, ready: ready(access))
    commands.view(folders=[run_folder], open_browser=True, host="127.0.0.1", port=7862)
    assert opened == ["http://127.0.0.1:7862/"]


def test_a_model_path_decodes_what_carries_no_vocabulary(serve: Serve, page: Page, tmp_path: Path) -> None:
    model = Path(runs.__file__).parents[1] / "assets" / "tiny_reasoner"
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step()}, vocab=None)
    go(page, serve(folder, model_path=str(model)).url(), "#1/0/0/4")
    shown(page, "0/1/0/0")
    expected = runs.vocab_of_model(str(model)).token(4).decode()
    expect(page.locator(".inspector .chosen")).to_have_text(expected)
    expect(page.locator(".notice")).to_have_count(0)


def test_a_notebook_on_this_machine_frames_the_live_viewer(
    page: Page, run_folder: Path, tmp_path: Path
) -> None:
    shown_in_cell = show(run_folder, step=2, group=1)
    (tmp_path / "index.html").write_text(f"<!doctype html><body>{shown_in_cell._repr_html_()}")

    class Notebook(SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(tmp_path))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Notebook)
    Thread(target=server.serve_forever, daemon=True).start()
    page.goto(f"http://127.0.0.1:{server.server_port}/")
    frame = page.frame_locator("iframe")
    frame.locator(".striplabel").nth(2).click()
    expect(frame.locator(".responsetitle").first).to_contain_text("Response 6")
    frame.get_by_role("button", name="Regular expression").click()
    frame.locator("#search").fill("ma.be")
    expect(frame.locator(".matches")).to_have_text("1 match")
    server.shutdown()
    shown_in_cell.close()


def test_the_timeline_draws_every_run_in_its_colour_and_marks_damage(
    serve: Serve, page: Page, run_folder: Path, tmp_path: Path
) -> None:
    second = write_trace(tmp_path / "second" / "influence_trace", {n: make_step(n + 50) for n in (1, 2, 3)})
    (second / "steps" / "step_000002.npz").unlink()
    go(page, serve(run_folder, second).url(), "#?run=1")
    page.locator(".runview tbody tr").first.wait_for()
    # mean entropy, where the two runs differ
    found = (
        page.locator(".runview .chart canvas")
        .nth(2)
        .evaluate(
            """node => { const data = node.getContext('2d').getImageData(0, 0, node.width, node.height).data;
          const colours = new Set();
          for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255)
            colours.add(`${data[i]},${data[i + 1]},${data[i + 2]}`);
          return Array.from(colours); }"""
        )
    )
    assert {"47,93,158", "194,102,45", "178,60,46"} <= set(found), "both runs and the damaged step"
    expect(page.locator(".damage", has_text="its file is missing")).to_be_visible()
