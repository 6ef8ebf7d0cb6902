"""The viewer inside a real Gradio page, driven in a real browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import go
from playwright.sync_api import FrameLocator, Page, expect
from starlette.testclient import TestClient

from archer.viewer.app import app_maker
from archer.viewer.runs import Library
from archer.viewer.security import Access
from archer.viewer.serve import BackgroundServer


@pytest.fixture(scope="module")
def hosted(run_folder: Path) -> Iterator[str]:
    """Address of a Gradio page with a viewer of `run_folder`."""
    make = app_maker(Library.open([run_folder]), gradio=True)
    with BackgroundServer(make, Access.of("127.0.0.1", 0, embeddable=True)) as server:
        yield server.url()


def frame(page: Page) -> FrameLocator:
    return page.frame_locator("#archer-viewer")


def test_the_client_works_in_the_frame_and_nothing_comes_from_elsewhere(page: Page, hosted: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    go(page, hosted)
    viewer = frame(page)
    expect(viewer.get_by_role("heading", level=1)).to_have_text("small")
    viewer.locator(".runview tbody button").first.click()
    viewer.locator(".groupcard").nth(1).click()
    viewer.locator(".striplabel").nth(1).click()
    expect(viewer.locator(".responsetitle").first).to_contain_text("rejected · reward 0.25")
    viewer.get_by_role("button", name="Regular expression").click()
    viewer.locator("#search").fill(r"\d+")
    expect(viewer.locator(".matches")).to_have_text("1 match")
    painted = viewer.locator(".workview .textpane canvas").first.evaluate(
        "node => new Set(node.getContext('2d').getImageData(0, 0, node.width, 30).data).size"
    )
    assert painted > 10, "the text is painted in more than one colour"
    assert [url for url in asked if not url.startswith((hosted, "data:", "blob:", "about:"))] == []


def test_the_frame_fills_the_window(page: Page, hosted: str) -> None:
    go(page, hosted)
    frame(page).get_by_role("heading", level=1).wait_for()
    assert page.locator("#archer-viewer").bounding_box() == {"x": 0, "y": 0, "width": 1440, "height": 900}


def test_permalinks_of_the_gradio_page_are_those_of_the_viewer(page: Page, hosted: str) -> None:
    go(page, hosted, "#2/1/5/3")
    expect(frame(page).locator(".inspector dd").first).to_have_text("3")
    frame(page).locator(".striplabel").nth(2).click()
    page.wait_for_function("() => location.hash === '#2/1/6?run=small'")
    page.evaluate("() => { location.hash = '#4'; }")
    expect(frame(page).get_by_role("heading", level=1)).to_have_text("Step 4")


def test_gradio_itself_hands_out_no_files_and_takes_none(run_folder: Path) -> None:
    make = app_maker(Library.open([run_folder]), gradio=True)
    secret = run_folder / "influence_trace" / "manifest.jsonl"
    with TestClient(make(Access.of("127.0.0.1", 7862)), base_url="http://127.0.0.1:7862") as client:
        for path in ("/etc/passwd", str(secret), "pyproject.toml"):
            assert client.get(f"/gradio_api/file={path}").status_code == 403
        assert client.post("/gradio_api/upload", files={"files": ("x.txt", b"hello")}).status_code == 413
        assert client.get("/viewer/api/runs").json()["runs"][0]["name"] == "small"
        policy = client.get("/viewer/").headers["content-security-policy"]
        assert "script-src 'self';" in policy and "unsafe" not in policy


def test_gradio_pages_need_the_token_on_other_addresses(run_folder: Path) -> None:
    make = app_maker(Library.open([run_folder]), gradio=True)
    with TestClient(make(Access.of("0.0.0.0", 7862)), base_url="http://machine.example:7862") as client:
        for route in ("/", "/config", "/gradio_api/info", "/viewer/", "/viewer/api/runs"):
            assert client.get(route).status_code == 401
