"""Tasks on the run page, with the clicks they take."""

import struct
from collections.abc import Callable
from pathlib import Path

from pages import go, shown
from playwright.sync_api import Page, expect
from test_run_routes import make_run

from archer.viewer.serve import BackgroundServer

Serve = Callable[..., BackgroundServer]


def test_the_first_look_shows_tokens_and_one_click_opens_them(
    serve: Serve, page: Page, tmp_path: Path
) -> None:
    go(page, serve(make_run(tmp_path / "run")).url())
    expect(page.locator(".tellingpane:not([hidden]) h3")).to_have_count(2)
    page.locator("#open-telling").click()
    page.wait_for_function("() => /^#2[/]\\d+[/]\\d+[/]\\d+[?]run=run/.test(location.hash)")


def test_every_metric_is_one_click_or_a_word_away(serve: Serve, page: Page, tmp_path: Path) -> None:
    go(page, serve(make_run(tmp_path / "run")).url())
    page.get_by_role("button", name="all 2").click()
    expect(page.locator('.chart[data-metric="actor/entropy"] canvas[data-painted="1"]')).to_be_visible()
    page.locator("#metrics").fill("score")
    expect(page.locator(".runview .chart")).to_have_count(1)


def test_links_name_the_run_and_old_ones_still_open(serve: Serve, page: Page, tmp_path: Path) -> None:
    url = serve(make_run(tmp_path / "b"), make_run(tmp_path / "a")).url()
    for run in ("a", "1"):
        go(page, url, f"#2?run={run}")
        shown(page, "1/2/null/null")
    go(page, url, "#2?run=gone")
    expect(page.get_by_role("alert")).to_contain_text("no run gone")
    page.get_by_role("button", name="a", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("a")


def test_a_name_that_several_runs_have_opens_none_of_them_by_chance(
    serve: Serve, page: Page, tmp_path: Path
) -> None:
    url = serve(make_run(tmp_path / "x/run"), make_run(tmp_path / "y/run")).url()
    go(page, url, "#2?run=run")
    expect(page.get_by_role("alert")).to_contain_text("2 runs of this viewer are named run")
    page.get_by_role("button", name="y/run", exact=True).click()
    shown(page, "1/2/null/null")


def test_fifty_runs_fit_the_window(serve: Serve, page: Page, tmp_path: Path) -> None:
    for number in range(50):
        make_run(tmp_path / f"a-run-with-a-name-of-some-length-{number:02d}", 1)
    go(page, serve(tmp_path).url())
    expect(page.locator(".runlegend label")).to_have_count(50)
    page.locator(".runlegend").get_by_role("button", name="all").click()
    page.get_by_role("button", name="actor/ 1").click()
    expect(page.locator('.chart canvas[data-painted="50"]')).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_picture_is_one_click_and_not_empty(serve: Serve, page: Page, tmp_path: Path) -> None:
    go(page, serve(make_run(tmp_path / "run")).url(), "#2/0/0")
    shown(page, "0/2/0/0")
    with page.expect_download() as download:
        page.locator("#png").click()
    content = download.value.path().read_bytes()
    assert download.value.suggested_filename == "archer-run-step-2-group-0-response-0.png"
    assert content.startswith(b"\x89PNG") and struct.unpack(">II", content[16:24])[0] > 1000
    assert len(content) > 20_000


def test_a_note_takes_two_clicks_and_is_listed_marked_and_deleted(
    serve: Serve, page: Page, tmp_path: Path
) -> None:
    url = serve(make_run(tmp_path / "run")).url()
    go(page, url, "#2/0/1")
    shown(page, "0/2/0/1")
    page.locator("#note").click()
    page.locator("#note-text").fill("<b>wrong</b> \u202e sign")
    page.locator("#keep-note").click()
    expect(page.locator('.striplabel[data-row="1"][data-noted]')).to_be_visible()
    go(page, url)
    expect(page.locator(".notelist .notetext")).to_have_text("<b>wrong</b> ⟨U+202E⟩ sign")
    page.locator(".notelist .rowlink").click()
    shown(page, "0/2/0/1")
    go(page, url)
    page.get_by_role("button", name="Delete the note").click()
    expect(page.locator(".notelist")).to_be_hidden()
