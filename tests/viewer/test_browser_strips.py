"""Strips, charts and cells: pooling, zoom, many responses, unusual characters, damaged arrays."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pages import go, shown, token_box
from playwright.sync_api import Page, expect
from small_traces import TEXT, make_step, write_trace

from archer.trace.vocab import Vocab
from archer.viewer.serve import BackgroundServer

Serve = Callable[..., BackgroundServer]
LONG = 6000


def long_run(tmp_path: Path) -> Path:
    """Eight responses of 6,000 tokens: 1 at every hundredth, else -0.01."""
    values = np.full((8, LONG), -0.01)
    values[:, ::100] = 1.0
    step = make_step(
        responses=np.tile(np.resize(np.array(TEXT), LONG), (8, 1)),
        response_mask=np.ones((8, LONG), bool),
        **dict.fromkeys(("entropies", "influence", "log_probs", "advantage"), values),
    )
    return write_trace(tmp_path / "run" / "influence_trace", {1: step})


def red_share(page: Page) -> float:
    """The share of the influence strip's pixels that look hot."""
    return page.evaluate(
        """() => { const canvas = document.querySelectorAll('.workview .strippane canvas')[1];
          const { data } = canvas.getContext('2d').getImageData(0, 10, canvas.width, 1); let hot = 0;
          for (let i = 0; i < data.length; i += 4) if (data[i] > data[i + 2] + 90) hot += 1;
          return hot / canvas.width; }"""
    )


def test_a_pixel_is_the_mean_unless_extremes_are_asked_for(serve: Serve, page: Page, tmp_path: Path) -> None:
    go(page, serve(long_run(tmp_path)).url(), "#1/0/0")
    shown(page, "0/1/0/0")
    caption = page.locator(".strippane .stripcaption").nth(1)
    expect(caption).to_contain_text("A pixel is the mean of")
    expect(caption).to_contain_text("full colour at ±")
    expect(page.locator(".positionchart .stripcaption").nth(1)).to_contain_text("Means of")
    values: Any = page.evaluate(
        """async () => { const { Strip } = await import('./static/strip.js');
          const { openSource } = await import('./static/api.js');
          const source = openSource(); const head = await source.head(0, 1);
          const responses = await source.group(head, 0, null, true);
          const of = pooling => { const strip = new Strip(document.createElement('canvas'));
            strip.show(responses, { metric: 'influence', grain: 'token', keeps: null, width: 600, height: 24,
              zoom: null, pooling });
            return [strip.value[0], strip.value[1], strip.value[10], strip.token[0]]; };
          return [of('mean'), of('extremes')]; }"""
    )
    np.testing.assert_allclose(values[0], [(1 - 0.09) / 10, -0.01, (1 - 0.09) / 10, 0], rtol=1e-3)
    np.testing.assert_allclose(values[1], [1, -0.01, 1, 0], rtol=1e-3)
    page.get_by_role("button", name="Extremes").click()
    expect(caption).to_contain_text("A pixel is the most extreme of")
    page.wait_for_function("() => location.hash.includes('pool=extremes')")


def test_a_drag_zooms_and_a_double_click_shows_all(serve: Serve, page: Page, tmp_path: Path) -> None:
    go(page, serve(long_run(tmp_path)).url(), "#1/0/0")
    shown(page, "0/1/0/0")
    box = page.locator(".strippane canvas").nth(1).bounding_box()
    assert box
    y = box["y"] + 10
    page.mouse.move(box["x"] + box["width"] * 0.5, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.52, y, steps=4)
    page.mouse.up()
    page.wait_for_function("() => /zoom=(29|30)\\d\\d-(30|31)\\d\\d/.test(location.hash)")
    shown(page, "0/1/0/0")
    expect(page.locator(".strippane .stripcaption").nth(1)).to_contain_text("double click for all")
    assert red_share(page) < 0.1
    page.locator(".strippane canvas").nth(1).dblclick()
    page.wait_for_function("() => !location.hash.includes('zoom')")


def test_sixty_four_responses_leave_the_text_on_the_screen(serve: Serve, page: Page, tmp_path: Path) -> None:
    step = make_step(rows=64, group_id=[0] * 64)
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: step})
    go(page, serve(folder).url(), "#1/0")
    text = page.locator(".pair .textpane").first
    text.wait_for()
    box = text.bounding_box()
    assert box and box["y"] < 860


def with_tokens(tmp_path: Path, tokens: list[bytes], ids: list[int]) -> Path:
    shape = (8, len(ids))
    step = make_step(
        responses=np.tile(ids, (8, 1)),
        response_mask=np.ones(shape, bool),
        prompts=[[0]] * 8,
        **{name: np.ones(shape) for name in ("entropies", "influence", "log_probs", "advantage")},
    )
    return write_trace(tmp_path / "run" / "influence_trace", {1: step}, vocab=Vocab.from_tokens(tokens))


def test_every_blank_can_be_seen(serve: Serve, page: Page, tmp_path: Path) -> None:
    tokens = ["a", "\u00a0", "\u3000", "\u2009"]
    go(page, serve(with_tokens(tmp_path, [t.encode() for t in tokens], [0, 1, 2, 3])).url(), "#1/0/0")
    shown(page, "0/1/0/0")
    token_box(page, 0)
    shown_as = [page.locator(f'.textpane[data-pane="0"] [data-token="{n}"]').inner_text() for n in (1, 2, 3)]
    assert shown_as == ["⍽", "␣", "⟨U+2009⟩"]


def test_right_to_left_text_reads_from_the_right(serve: Serve, page: Page, tmp_path: Path) -> None:
    tokens = ["So", " שלום", " עולם", " and", " on"]
    go(page, serve(with_tokens(tmp_path, [t.encode() for t in tokens], [0, 1, 2, 3, 4])).url(), "#1/0/0")
    shown(page, "0/1/0/0")
    xs = [token_box(page, token)["x"] for token in range(5)]
    assert xs[0] < xs[2] < xs[1] < xs[3] < xs[4]
    box = token_box(page, 1)
    page.mouse.move(box["x"] + 4, box["y"] + 10)
    expect(page.locator(".tooltip-token")).to_have_text("·שלום")


def test_the_context_shows_its_token_and_cuts_no_character(serve: Serve, page: Page, tmp_path: Path) -> None:
    tokens = ["😀" * 45, "HERE", "w" * 400]
    ids = [0, 1, 2, 1, 0]
    go(page, serve(with_tokens(tmp_path, [t.encode() for t in tokens], ids)).url(), "#1/0/0")
    shown(page, "0/1/0/0")
    page.locator(".context").first.wait_for()
    for row in page.locator(".tokenpanel tbody tr", has=page.locator("b", has_text="HERE")).all():
        mark, scroll = (
            row.locator(".context b").bounding_box(),
            page.locator(".halves > div").first.bounding_box(),
        )
        assert mark and scroll and mark["width"] > 25
    assert "U+D83D" not in page.locator(".tokenpanel").inner_text()
    inside = page.evaluate(
        """() => Array.from(document.querySelectorAll('.tablescroll'),
          node => node.scrollWidth - node.clientWidth)"""
    )
    assert max(inside) <= 1, "nothing is pushed off the table"


def test_an_unreadable_array_of_strangers_hides_nothing(serve: Serve, page: Page, tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step()})
    with zipfile.ZipFile(folder / "steps" / "step_000001.npz", "a") as archive:
        archive.writestr("kl_ref.npy", b"this is no array")
    go(page, serve(folder).url(), "#1/0/0")
    shown(page, "0/1/0/0")
    expect(page.locator(".notice")).to_contain_text("'kl_ref' of step file step_000001.npz is left out")
    expect(page.locator("#left-metric")).to_have_value("entropy")


def test_sentence_means_have_bounds_of_their_own(page: Page, small: str) -> None:
    go(page, small, "#2/0/0")
    shown(page, "0/2/0/0")
    high = page.locator(".panehead").nth(1).locator(".ticks span").last
    tokens = float(high.inner_text().removeprefix("≥ "))
    page.get_by_label("Unit of colour").select_option("sentence")
    page.wait_for_function("() => location.hash.includes('grain=sentence')")
    shown(page, "0/2/0/0")
    assert float(high.inner_text().removeprefix("≥ ")) < 0.7 * tokens
