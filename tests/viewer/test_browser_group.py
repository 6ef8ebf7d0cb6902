"""The group page: units of colour, what a strip tells, the legend, saving the group, finding a response."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pages import go, shown, token_box
from playwright.sync_api import Page, expect
from small_traces import TEXT, VOCAB, make_step, write_trace

from archer.trace.reader import TraceReader
from archer.viewer.serve import BackgroundServer

Serve = Callable[..., BackgroundServer]
# Units of `TEXT` by hand: first positions of its words, lines and sentences.
UNITS = {
    "word": [0, 1, 2, 3, 6, 7, 10, 13],
    "line": [0, 7],
    "sentence": [0, 7],
}


def shaded(page: Page, grain: str, row: int) -> list[float | None]:
    """What the client colours the tokens of a response of step 2 by."""
    return page.evaluate(
        """async ([grain, row]) => { const { openSource } = await import('./static/api.js');
          const { shades } = await import('./static/grain.js');
          const source = openSource(); const head = await source.head(0, 2);
          return Array.from(shades(await source.response(head, row), 'influence', grain),
            value => Number.isNaN(value) ? null : value); }""",
        [grain, row],
    )


@pytest.mark.parametrize("grain", list(UNITS))
def test_units_have_the_mean_of_their_tokens(page: Page, small: str, run_folder: Path, grain: str) -> None:
    """Row 0: position 3 has no value and position 5 is masked; neither counts, neither is coloured."""
    go(page, small)
    arrays = TraceReader(run_folder / "influence_trace").read(2).arrays
    assert arrays.influence is not None
    expected: list[float | None] = [None] * len(TEXT)
    for first, end in zip(UNITS[grain], [*UNITS[grain][1:], len(TEXT)], strict=True):
        inside = [
            position
            for position in range(first, end)
            if arrays.response_mask[0, position] and math.isfinite(arrays.influence[0, position])
        ]
        for position in inside:
            expected[position] = sum(float(arrays.influence[0, each]) for each in inside) / len(inside)
    assert shaded(page, grain, 0) == [None if each is None else pytest.approx(each) for each in expected]


def test_a_full_stop_ends_a_sentence_only_before_a_blank(serve: Serve, page: Page, tmp_path: Path) -> None:
    from archer.trace.vocab import Vocab

    vocab = Vocab.from_tokens([b"It", b" is", b" 3", b".", b"5", b" So", b"!", b"\n"])
    ids = np.tile(np.array([0, 1, 2, 3, 4, 3, 5, 6, 7, 0]), (8, 1))
    values = np.tile(np.arange(10.0), (8, 1))
    step = make_step(
        responses=ids,
        entropies=values,
        influence=values,
        advantage=values,
        log_probs=-values,
        response_mask=values >= 0,
        prompts=[[0]] * 8,
    )
    folder = write_trace(tmp_path / "run" / "influence_trace", {2: step}, vocab=vocab)
    go(page, serve(folder).url())
    assert shaded(page, "sentence", 0) == [2.5] * 6 + [7.0] * 3 + [9.0]


def test_a_line_is_one_colour_in_strip_and_text(page: Page, small: str) -> None:
    go(page, small, "#2/0/0?grain=line")
    shown(page, "0/2/0/0")
    token_box(page, 14)
    sample = """token => { const pane = document.querySelectorAll('.workview .textpane')[1];
      const span = pane.querySelector(`[data-token="${token}"]`).getBoundingClientRect();
      const box = pane.getBoundingClientRect();
      return Array.from(pane.querySelector('canvas').getContext('2d')
        .getImageData(span.x - box.x + 2, span.y - box.y + 5, 1, 1).data).join(); }"""
    colours = [page.evaluate(sample, token) for token in range(len(TEXT)) if token not in (3, 5)]
    assert len(set(colours[:5])) == 1 and len(set(colours[5:])) == 1
    assert colours[0] != colours[5]
    page.keyboard.press("ArrowRight")
    expect(page.locator(".inspector dt", has_text="line mean influence")).to_have_count(1)
    page.get_by_label("Unit of colour").select_option("token")
    page.wait_for_function("() => !location.hash.includes('grain')")
    assert page.evaluate(sample, 0) != page.evaluate(sample, 2)


def test_the_legend_stays_in_sight(serve: Serve, page: Page, tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step(rows=40)})
    go(page, serve(folder).url(), "#1/0/0?k=100")
    shown(page, "0/1/0/0")
    page.locator(".tokenpanel tbody tr").first.wait_for()
    page.evaluate("() => window.scrollTo(0, document.body.scrollHeight)")
    for legend in page.locator(".panehead .ramp").all():
        expect(legend).to_be_in_viewport()


def test_a_strip_tells_the_whole_token_under_the_pointer(page: Page, small: str) -> None:
    go(page, small, "#2/0?left=entropy&right=influence")
    shown(page, "0/2/0/null")
    box = page.locator(".strippane canvas").first.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 10.5 / 15, box["y"] + box["height"] * 0.5 / 4)
    tooltip = page.locator(".tooltip")
    expect(tooltip.locator(".tooltip-token")).to_have_text("·maybe")
    for name in ("position", "id", "entropy", "influence", "log-prob", "advantage"):
        expect(tooltip.locator("dt", has_text=name)).to_have_count(1)


def test_a_group_without_values_says_why(serve: Serve, page: Page, tmp_path: Path) -> None:
    step = make_step(
        accepted=np.arange(8) < 4,
        influence=np.where(np.arange(8)[:, None] < 4, np.nan, 1.0) * np.ones((8, len(TEXT))),
    )
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: step})
    url = serve(folder).url()
    go(page, url, "#1/0")
    shown(page, "0/1/0/null")
    hint = page.locator(".workview > .hint")
    expect(hint).to_contain_text("No influence was computed for this group")
    expect(hint).to_contain_text("here all are accepted")
    expect(page.locator(".tokenpanel")).to_contain_text("No token here has a value of influence.")
    go(page, url, "#1/1")
    shown(page, "0/1/1/null")
    expect(hint).to_be_hidden()


def test_a_trace_without_influence_shows_what_it_has(serve: Serve, page: Page, tmp_path: Path) -> None:
    from small_traces import entropy_part

    folder = write_trace(tmp_path / "run" / "entropy_trace", {1: entropy_part(make_step())}, kind="entropy")
    go(page, serve(folder).url(), "#1/0/0/4")
    shown(page, "0/1/0/0")
    expect(page.locator("#left-metric")).to_have_value("entropy")
    expect(page.locator("#right-metric")).to_have_value("log_prob")
    expect(page.get_by_label("Metric of the range")).to_have_value("log_prob")
    assert page.locator(".inspector dt").all_inner_texts() == ["position", "id", "entropy", "log-prob"]
    page.locator("#hi").fill("-1")
    expect(page.locator(".panelbody")).to_contain_text("highest")


def test_a_group_is_saved_as_a_page_that_opens_alone(
    page: Page, new_page: Callable[..., Page], small: str, tmp_path: Path
) -> None:
    go(page, small, "#2/1/5")
    shown(page, "0/2/1/5")
    with page.expect_download() as download:
        page.locator("#save").click()
    assert download.value.suggested_filename == "archer-step-2-group-1.html"
    saved = tmp_path / "saved.html"
    download.value.save_as(saved)
    other = new_page()
    other.goto(saved.as_uri())
    shown(other, "0/2/1/null")
    expect(other.locator(".striplabel")).to_have_count(4)
    expect(other.locator("#save")).to_be_hidden()


def test_responses_are_found_by_uid_prompt_or_number(page: Page, small: str) -> None:
    go(page, small, "#2")
    rows = page.locator(".stepview > .datatable tbody tr")
    expect(rows).to_have_count(8)
    page.locator("#find").fill("PROMPT-1")
    expect(rows).to_have_count(4)
    page.get_by_role("button", name="rejected", exact=True).click()
    expect(rows).to_have_count(2)
    page.locator("#find").fill("answer is The")
    expect(rows).to_have_count(2)
    expect(rows.first.locator("td").nth(1)).to_have_text("0")
    page.locator("#find").fill("nobody")
    expect(page.locator(".stepview > .datatable .empty")).to_contain_text("Clear the field")
    page.get_by_role("button", name="all", exact=True).click()
    page.locator("#find").fill("6")
    expect(rows).to_have_count(1)
    page.locator("#find").press("Enter")
    shown(page, "0/2/1/6")


def test_words_of_the_vocabulary_are_what_the_units_were_counted_in() -> None:
    """Guards the table above: the text it was counted in."""
    text = "|".join(VOCAB.token(index).decode("utf-8", "replace") for index in TEXT)
    assert text.replace("\ufffd", "?").startswith("The| answer| is| |4|2|\n| so|")
