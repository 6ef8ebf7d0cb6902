"""Two steps or runs beside each other, a run still in training, an exported page."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pages import go, shown
from playwright.sync_api import Page, expect
from small_traces import make_step, write_trace

from archer.trace.reader import TraceReader
from archer.viewer.export import write_group
from archer.viewer.runs import TracedRun
from archer.viewer.serve import BackgroundServer

Serve = Callable[..., BackgroundServer]


@pytest.fixture
def second(tmp_path: Path) -> Path:
    folder = tmp_path / "second"
    write_trace(folder / "influence_trace", {step: make_step(step + 50) for step in range(1, 4)})
    return folder


def test_two_steps_are_compared_side_by_side(page: Page, small: str) -> None:
    go(page, small, "#4")
    page.get_by_role("heading", name="Step 4").wait_for()
    page.keyboard.press("c")
    shown(page, "0/4/null/null")
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare")
    expect(page.locator(".figures")).to_contain_text("A · step 4")
    expect(page.locator(".figures")).to_contain_text("B · step 3")
    page.get_by_label("Step B").select_option("1")
    expect(page.locator(".figures")).to_contain_text("B · step 1")
    page.get_by_label("Group B").select_option("1")
    expect(page.locator('[data-side="B"] h3')).to_contain_text("Response 4")
    page.locator('[data-side="B"] .striplabel').nth(2).click()
    expect(page.locator('[data-side="B"] h3')).to_contain_text("Response 6")
    expect(page.locator('[data-side="A"] h3')).to_contain_text("Response 4")  # the same prompt
    page.wait_for_function("() => decodeURIComponent(location.hash).includes('vs=small:1/1/6')")
    page.keyboard.press("c")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Group 1")


def test_the_comparison_of_distinct_tokens_is_right(page: Page, small: str, run_folder: Path) -> None:
    go(page, small, "#2/0?vs=0:5/1&metric=influence")
    shown(page, "0/2/0/null")
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    found = next(row for row in rows if row["token"] == " answer")
    reader = TraceReader(run_folder / "influence_trace")
    means = []
    for step, group in ((2, 0), (5, 1)):
        arrays = reader.read(step).arrays
        assert arrays.influence is not None and arrays.group_id is not None
        chosen = (arrays.responses == 1) & arrays.response_mask & (arrays.group_id == group)[:, None]
        means.append(float(np.nanmean(arrays.influence[chosen])))
    assert [float(found["mean_a"]), float(found["mean_b"])] == pytest.approx(means, rel=1e-5)
    assert float(found["difference"]) == pytest.approx(means[1] - means[0], rel=1e-4)


def test_two_runs_share_the_timeline_and_compare(
    serve: Serve, page: Page, run_folder: Path, second: Path
) -> None:
    url = serve(run_folder, second).url()
    go(page, url)
    expect(page.locator(".runlegend")).to_contain_text("small")
    expect(page.locator(".runlegend")).to_contain_text("second")
    page.get_by_label("Run", exact=True).select_option("1")
    expect(page.get_by_role("heading", level=1)).to_have_text("second")
    expect(page.locator(".runview > .lead")).to_contain_text("3 steps")
    go(page, url, "#2")
    page.get_by_role("heading", name="Step 2").wait_for()
    page.keyboard.press("c")
    expect(page.locator(".figures")).to_contain_text("A · small · step 2")
    expect(page.locator(".figures")).to_contain_text("B · second · step 2")
    page.get_by_role("button", name="Swap sides").click()
    expect(page.locator(".figures")).to_contain_text("A · second · step 2")


def test_new_steps_appear_by_themselves_while_following(serve: Serve, page: Page, tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "run" / "influence_trace", {})
    go(page, serve(folder, follow=True).url())
    expect(page.locator(".runview .notice")).to_contain_text("appears here by itself")
    write_trace(folder, {1: make_step(1)})
    expect(page.locator(".runview tbody tr")).to_have_count(1, timeout=15_000)
    write_trace(folder, {2: make_step(2)})
    expect(page.locator(".runview tbody tr")).to_have_count(2, timeout=15_000)
    expect(page.locator("#follow")).to_have_attribute("aria-pressed", "true")


def test_following_can_be_switched_on_in_the_page(serve: Serve, page: Page, tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step(1)})
    go(page, serve(folder).url())
    expect(page.locator(".runview tbody tr")).to_have_count(1)
    page.locator("#follow").click()
    write_trace(folder, {2: make_step(2)})
    expect(page.locator(".runview tbody tr")).to_have_count(2, timeout=15_000)


def test_a_step_rewritten_under_the_viewer_is_shown_anew_by_following(
    serve: Serve, page: Page, tmp_path: Path
) -> None:
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step(1)})
    go(page, serve(folder, follow=True).url(), "#1/0/1/2")
    shown(page, "0/1/0/1")
    before = page.locator(".inspector dl").inner_text()
    write_trace(folder, {1: make_step(77)})
    page.wait_for_function(
        "before => document.querySelector('.inspector dl').innerText !== before", arg=before
    )


def test_an_exported_group_opens_from_a_disk_with_everything(
    new_page: Callable[..., Page], run_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "group.html"
    write_group(TracedRun(run_folder), 3, 1, out)
    page = new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(out.as_uri())
    shown(page, "0/3/1/null")
    assert page.locator(".striplabel").count() == 4
    page.keyboard.press("j")
    shown(page, "0/3/1/4")
    page.locator("#search").fill("maybe")
    expect(page.locator(".matches")).to_have_text("1 match")
    page.get_by_role("button", name="Distinct tokens").click()
    expect(page.locator(".tokenpanel tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Clear").click()
    expect(page.locator(".responsetitle").first).to_contain_text("accepted · reward 1")
    assert [url for url in requests if not url.startswith(("file:", "blob:", "data:"))] == []
    expect(page.locator("#compare")).to_be_hidden()
    expect(page.get_by_role("button", name="step", exact=True)).to_have_count(0)


def test_an_exported_group_works_inside_a_notebook_frame(
    new_page: Callable[..., Page], run_folder: Path, tmp_path: Path
) -> None:
    from archer.viewer import show

    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><body>{show(run_folder, embed=True, step=2, group=0)._repr_html_()}")
    page = new_page()
    page.goto(notebook.as_uri())
    frame = page.frame_locator("iframe")
    expect(frame.locator(".striplabel")).to_have_count(4)
    frame.locator(".striplabel").nth(1).click()
    expect(frame.locator(".responsetitle").first).to_contain_text("Response 1")
    frame.get_by_role("button", name="Regular expression").click()
    frame.locator("#search").fill("ma.be")
    expect(frame.locator(".matches")).to_have_text("1 match")
    page.frames[1].wait_for_function("() => location.hash.includes('q=ma.be')")
    assert page.frames[1].url.startswith("about:srcdoc#2/0/1?"), "settings change the frame's address alone"


def test_an_older_trace_without_vocabulary_shows_ids_and_says_why(
    serve: Serve, page: Page, tmp_path: Path
) -> None:
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step()}, vocab=None)
    go(page, serve(folder).url(), "#1/0/0/4")
    shown(page, "0/1/0/0")
    expect(page.locator(".notice")).to_contain_text("--model-path")
    expect(page.locator(".inspector .chosen")).to_have_text("⟨4⟩")
