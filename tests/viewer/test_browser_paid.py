"""The third pane: what every token was paid. It is there where the trace holds it, and nowhere else."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import go, shown, token_box
from PIL import Image
from playwright.sync_api import Page, expect
from small_traces import TEXT, make_step, write_trace

from archer.trace.schema import TraceStep
from archer.viewer.app import app_maker
from archer.viewer.runs import Library
from archer.viewer.security import Access
from archer.viewer.serve import BackgroundServer

Serve = Callable[..., BackgroundServer]
SPARED, PENALISED, MASKED = 9, 2, 5
"""Positions of response 1: paid nothing, paid in full; position 5 of response 0 is outside the mask."""


def paid_step(**changes: Any) -> TraceStep:
    """Row 0 is accepted and paid 1 a token; row 1 rejected, paid -1 up to position 7 and nothing after it."""
    rows, width = 8, len(TEXT)
    advantage = np.where(np.arange(rows) % 2 == 0, 1.0, -1.0)[:, None] * np.ones((rows, width))
    credit = np.where((advantage < 0) & (np.arange(width) > 7), 0.0, 1.0)
    score = np.where(np.arange(width) == 0, np.nan, np.arange(width) - 7.0) * np.ones((rows, 1))
    weighed: dict[str, Any] = {"credit": credit, "credit_score": score, "paid": advantage * credit}
    return make_step(1, **(weighed | changes))


@pytest.fixture(scope="module")
def paid_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Step 1 was weighed, step 2 was not."""
    folder = tmp_path_factory.mktemp("traces") / "paid"
    write_trace(folder / "influence_trace", {1: paid_step(), 2: make_step(2)})
    return folder


@pytest.fixture(scope="module")
def paid(paid_run: Path) -> Any:
    """Address of a viewer of `paid_run`."""
    with BackgroundServer(app_maker(Library.open([paid_run])), Access.of("127.0.0.1", 0)) as server:
        yield server.url()


def panes(page: Page, part: str) -> int:
    return page.locator(f".workview {part}:visible").count()


def colour(page: Page, token: int, pane: int) -> tuple[int, int, int]:
    """The colour behind a token of the text."""
    box = token_box(page, token, pane)
    image = Image.open(io.BytesIO(page.screenshot()))
    return image.convert("RGB").getpixel((round(box["x"]) + 2, round(box["y"]) + 6))  # type: ignore[return-value]


def facts(page: Page, within: str) -> dict[str, str]:
    names, values = (page.locator(f"{within} {part}").all_inner_texts() for part in ("dt", "dd"))
    return dict(zip(names, values, strict=True))


def test_the_pane_is_there_where_the_step_holds_it(page: Page, paid: str) -> None:
    go(page, paid, "#1/0/1")
    shown(page, "0/1/0/1")
    for part in (".panehead", ".strippane canvas", ".positionchart canvas", ".textpane"):
        assert panes(page, part) == 3, part
    expect(page.locator("#third-metric")).to_have_value("paid")
    expect(page.locator(".panehead").nth(2)).to_contain_text("blue: it was penalised")
    assert "third" not in page.url, "what is shown by itself is not in the address"
    blue, none = colour(page, PENALISED, 2), colour(page, SPARED, 2)
    assert blue[2] > blue[0] + 60
    assert max(none) - min(none) < 10 and min(none) > 240, "paid nothing has no colour"
    go(page, paid, "#1/0/0")
    shown(page, "0/1/0/0")
    red = colour(page, PENALISED, 2)
    assert red[0] > red[2] + 60


def test_without_the_arrays_nothing_changes(page: Page, paid: str) -> None:
    for address in ("#2/0/1", "#2/0/1?third=paid", "#2/0/1?third=log_prob&pane=third"):
        go(page, paid, address)
        shown(page, "0/2/0/1")
        for part in (".panehead", ".strippane canvas", ".positionchart canvas", ".textpane"):
            assert panes(page, part) == 2, (address, part)
        expect(page.locator("#third")).to_be_hidden()
        expect(page.get_by_role("button", name="Two metrics")).to_be_visible()
        expect(page.locator("#left-metric option")).to_have_count(4)


def test_a_step_without_them_asks_for_no_more_than_two_metrics(page: Page, paid: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/groups/" in request.url else None)
    go(page, paid, "#2/0")
    shown(page, "0/2/0/null")
    assert [url.split("?")[1] for url in asked if "metrics=" in url] == ["metrics=entropy%2Cinfluence"]


def test_its_metric_and_its_absence_stand_in_the_address(page: Page, paid: str) -> None:
    go(page, paid, "#1/0/1")
    shown(page, "0/1/0/1")
    page.locator("#third-metric").select_option("credit_score")
    page.wait_for_function("() => location.hash.includes('third=credit_score')")
    page.reload()
    shown(page, "0/1/0/1")
    expect(page.locator("#third-metric")).to_have_value("credit_score")
    toggle = page.locator("#third")
    expect(toggle).to_have_attribute("aria-pressed", "true")
    toggle.click()
    page.wait_for_function("() => /third=(&|$)/.test(location.hash)")
    assert panes(page, ".textpane") == panes(page, ".strippane canvas") == 2
    page.reload()
    shown(page, "0/1/0/1")
    assert panes(page, ".textpane") == panes(page, ".panehead") == 2
    expect(toggle).to_have_attribute("aria-pressed", "false")
    toggle.click()
    page.wait_for_function("() => !location.hash.includes('third')")
    assert panes(page, ".textpane") == panes(page, ".panehead") == 3
    expect(page.locator("#third-metric")).to_have_value("paid")


def test_the_text_keeps_three_equal_columns_that_agree(page: Page, paid: str) -> None:
    go(page, paid, "#1/0/1")
    shown(page, "0/1/0/1")
    boxes = [token_box(page, 10, pane) for pane in (0, 1, 2)]
    edges = [page.locator(".workview .textpane").nth(pane).bounding_box() for pane in (0, 1, 2)]
    places = [(box["x"] - edge["x"], box["y"]) for box, edge in zip(boxes, edges, strict=True) if edge]
    assert places[0] == places[1] == places[2]
    heads = [page.locator(".panehead").nth(pane).bounding_box() for pane in (0, 1, 2)]
    assert [head and head["x"] for head in heads] == [edge and edge["x"] for edge in edges]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [1001, 1150, 1400, 1401, 1760])
def test_three_heads_fit_every_wide_window(new_page: Callable[..., Page], paid: str, width: int) -> None:
    page = new_page(width=width)
    go(page, paid, "#1/0/1")
    shown(page, "0/1/0/1")
    for pane in range(3):
        head = page.locator(".panehead").nth(pane).bounding_box()
        ramp = page.locator(".panehead .ramp").nth(pane).bounding_box()
        chooser = page.locator(".panehead select").nth(pane).bounding_box()
        assert head and ramp and chooser
        for inside in (ramp, chooser):
            assert inside["x"] >= head["x"]
            assert inside["x"] + inside["width"] <= head["x"] + head["width"] + 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_narrow_window_has_it_among_the_choices(new_page: Callable[..., Page], paid: str) -> None:
    page = new_page(width=520)
    go(page, paid, "#1/0/1")
    shown(page, "0/1/0/1")
    choice = page.get_by_label("Panes")
    assert choice.locator("option").all_inner_texts() == ["show entropy", "show influence", "show paid"]
    assert panes(page, ".textpane") == 1
    choice.select_option("third")
    page.wait_for_function("() => location.hash.includes('pane=third')")
    for part in (".panehead", ".strippane", ".positionchart", ".textpane"):
        visible = page.locator(f".workview {part}:visible")
        expect(visible).to_have_count(1)
        expect(visible).to_have_attribute("data-pane", "2")
    assert colour(page, PENALISED, 2)[2] > colour(page, PENALISED, 2)[0] + 60
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_two_responses_are_underlined_by_what_they_were_paid(page: Page, paid: str) -> None:
    go(page, paid, "#1/0/1?beside=0")
    shown(page, "0/1/0/1")
    expect(page.locator(".pairsummary")).to_contain_text("Line below: paid.")
    below = """token => { const pane = document.querySelector('.pair .textpane');
      const span = pane.querySelector(`[data-token="${token}"]`).getBoundingClientRect();
      const box = pane.getBoundingClientRect();
      return Array.from(pane.querySelector('canvas').getContext('2d')
        .getImageData(span.x - box.x + 2, span.y - box.y + 25, 1, 1).data); }"""
    page.locator('.pair [data-token="12"]').first.wait_for()
    red, _, blue, _ = page.evaluate(below, PENALISED)
    assert blue > red + 60
    red, _, blue, _ = page.evaluate(below, SPARED)
    assert abs(blue - red) < 10, "no line where nothing was paid"
    page.get_by_label("Line below the tokens").select_option("left")
    expect(page.locator(".pairsummary")).to_contain_text("Line below: entropy.")
    page.wait_for_function("() => location.hash.includes('line=left')")
    page.reload()
    shown(page, "0/1/0/1")
    expect(page.locator(".pairsummary")).to_contain_text("Line below: entropy.")
    page.locator("#third").click()
    expect(page.get_by_label("Line below the tokens")).to_be_hidden()


def test_a_narrow_window_has_the_legends_that_two_responses_are_read_with(
    new_page: Callable[..., Page], paid: str
) -> None:
    page = new_page(width=1000)
    go(page, paid, "#1/0/1?beside=0")
    shown(page, "0/1/0/1")
    meanings = page.locator(".panehead .meaning:visible")
    expect(meanings).to_have_count(2)
    expect(meanings.nth(1)).to_contain_text("paid nothing")
    go(page, paid, "#2/0/1?beside=0")
    shown(page, "0/2/0/1")
    assert panes(page, ".panehead") == 2


def test_a_token_tells_advantage_credit_pay_and_score(page: Page, paid: str) -> None:
    go(page, paid, f"#1/0/1/{SPARED}")
    shown(page, "0/1/0/1")
    told = facts(page, ".inspector")
    assert [told[name] for name in ("advantage", "credit", "paid", "credit score")] == ["−1", "0", "0", "2"]
    box = token_box(page, PENALISED, 2)
    page.mouse.move(box["x"] + 3, box["y"] + 10)
    told = facts(page, ".tooltip")
    assert [told[name] for name in ("advantage", "credit", "paid", "credit score")] == ["−1", "1", "−1", "−5"]


def test_a_score_that_is_missing_was_not_computed(page: Page, paid: str) -> None:
    go(page, paid, "#1/0/1/0?third=credit_score")
    shown(page, "0/1/0/1")
    assert facts(page, ".inspector")["credit score"] == "no value"
    legend = page.locator(".panehead").nth(2)
    expect(legend.locator(".swatch", has_text="no value")).to_be_visible()
    expect(legend.locator(".swatch", has_text="failed")).to_be_hidden()


def test_full_colour_of_credit_is_never_less_than_pay_in_full(
    serve: Serve, page: Page, tmp_path: Path
) -> None:
    tenth = np.full((8, len(TEXT)), 0.1)
    step = paid_step(credit=tenth, paid=tenth)
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: step})
    url = serve(folder).url()
    for scale in ("step", "group", "response"):
        go(page, url, f"#1/0/1?third=credit&scale={scale}")
        shown(page, "0/1/0/1")
        legend = page.locator(".panehead").nth(2)
        expect(legend.locator(".ticks")).to_have_text("0≥ 1")
        expect(legend.locator(".meaning")).to_contain_text("1 pays it in full, 0 nothing")


def test_tables_rank_by_it_and_csv_holds_it(page: Page, paid: str) -> None:
    go(page, paid, "#1/0/1?metric=paid&table=list&order=ascending")
    shown(page, "0/1/0/1")
    page.locator(".tokenpanel tbody tr").first.wait_for()
    with page.expect_download() as download:
        page.locator("#csv").click()
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    assert [float(row["paid"]) for row in rows] == [-1.0] * 8 + [0.0] * (len(rows) - 8)
    assert {"credit", "credit_score", "advantage"} <= rows[0].keys()
    assert rows[0]["credit_score"] == "" and float(rows[1]["credit_score"]) == -6
    go(page, paid, "#1/0/1")
    shown(page, "0/1/0/1")
    columns = page.locator(".tokenpanel .highest th")
    columns.first.wait_for()
    assert "paid" in [text.strip().lower() for text in columns.all_inner_texts()]


def test_the_step_page_and_its_cards_stay_as_they_were(page: Page, paid: str) -> None:
    cards: list[list[str]] = []
    for step in (1, 2):
        go(page, paid, f"#{step}")
        page.locator(".stepview .tokenpanel th").first.wait_for()
        cards.append(page.locator(".stepview .tokenpanel .highest th").all_inner_texts())
        assert "paid" not in page.locator(".groupcard").first.inner_text()
    assert cards[0] == cards[1]


def test_it_goes_with_a_saved_page(
    page: Page, new_page: Callable[..., Page], paid: str, tmp_path: Path
) -> None:
    go(page, paid, "#1/0/1")
    shown(page, "0/1/0/1")
    with page.expect_download() as download:
        page.locator("#save").click()
    saved = tmp_path / "saved.html"
    download.value.save_as(saved)
    other = new_page()
    other.goto(f"{saved.as_uri()}#1/0/1")
    shown(other, "0/1/0/1")
    assert panes(other, ".textpane") == 3
    assert colour(other, PENALISED, 2) == colour(page, PENALISED, 2)
    other.locator("#third").click()
    assert panes(other, ".textpane") == 2


def test_it_goes_with_a_picture(page: Page, paid: str, tmp_path: Path) -> None:
    go(page, paid, "#1/0/1")
    shown(page, "0/1/0/1")
    token_box(page, PENALISED, 2)
    box = page.locator('.workview .textpane[data-pane="2"]').bounding_box()
    view = page.locator(".workview").bounding_box()
    assert box and view
    with page.expect_download() as download:
        page.keyboard.press("i")
    image = Image.open(download.value.path()).convert("RGB")
    ratio = image.width / (view["width"] + 32)
    at = [(box[axis] - view[axis] + 16) * ratio for axis in ("x", "y")]
    size = [box[side] * ratio for side in ("width", "height")]
    part = image.crop((int(at[0]), int(at[1]), int(at[0] + size[0]), int(at[1] + size[1])))
    colours = [pixel for _, pixel in part.getcolors(1 << 20) or []]
    assert any(blue > red + 60 for red, _, blue in colours), "the penalised tokens are in the picture"
