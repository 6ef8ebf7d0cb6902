"""Colours as they really are on the screen: ramps, zero, missing, masked, gamma, scales, light and dark."""

import io
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pages import go, shown, token_box
from PIL import Image
from playwright.sync_api import Page, expect
from small_traces import TEXT, make_step, write_trace

from archer.viewer.serve import BackgroundServer

Rgb = tuple[int, int, int]
PAPER: dict[str, Rgb] = {"light": (251, 250, 246), "dark": (22, 24, 29)}


def screen(page: Page) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def token_colour(page: Page, token: int, pane: int, image: Image.Image | None = None) -> Rgb:
    """The background of a token: the upper left corner of its box, where no letter reaches."""
    box = token_box(page, token, pane)
    return (image or screen(page)).getpixel((math.ceil(box["x"]) + 1, int(box["y"] + 5)))  # type: ignore[return-value]


def strip_colours(page: Page, pane: int, row: int, rows: int) -> list[Rgb]:
    """The colour in the middle of every token's cell in one row of a strip."""
    box = page.locator(".strippane canvas").nth(pane).bounding_box()
    assert box
    image = screen(page)
    y = int(box["y"] + box["height"] * (row + 0.4) / rows)
    return [
        image.getpixel((int(box["x"] + box["width"] * (token + 0.5) / len(TEXT)), y))  # type: ignore[misc]
        for token in range(len(TEXT))
    ]


def lightness(colour: Rgb) -> float:
    red, green, blue = colour
    return 0.299 * red + 0.587 * green + 0.114 * blue


def distance(a: Rgb, b: Rgb) -> int:
    return sum(abs(x - y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_entropy_goes_from_paper_to_one_end_of_cividis_without_turning(
    new_page: Callable[..., Page], small: str, scheme: str
) -> None:
    page = new_page(scheme=scheme)
    go(page, small, "#2/0")
    shown(page, "0/2/0/null")
    colours = strip_colours(page, 0, 0, 4)
    levels = [lightness(colour) for token, colour in enumerate(colours) if token != 5]
    assert distance(colours[0], PAPER[scheme]) == 0
    ordered = sorted(levels, reverse=scheme == "light")
    assert levels == ordered
    assert abs(levels[-1] - levels[0]) > 150


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_influence_is_blue_below_zero_red_above_and_paper_at_zero(
    new_page: Callable[..., Page], small: str, scheme: str
) -> None:
    page = new_page(scheme=scheme)
    go(page, small, "#2/0")
    shown(page, "0/2/0/null")
    colours = strip_colours(page, 1, 0, 4)
    assert distance(colours[7], PAPER[scheme]) == 0
    for token in (0, 1, 2, 4):
        red, _, blue = colours[token]
        assert blue > red + 30
    for token in (10, 12, 14):
        red, _, blue = colours[token]
        assert red > blue + 30


def test_missing_and_masked_look_like_no_value_at_all(page: Page, small: str) -> None:
    go(page, small, "#2/0/0")
    shown(page, "0/2/0/0")
    colours = strip_colours(page, 1, 0, 4)
    ramp = [colours[token] for token in range(len(TEXT)) if token not in (3, 5)]
    masked = colours[5]
    assert masked == (222, 220, 214)
    assert min(distance(masked, colour) for colour in ramp) > 20
    box = page.locator(".strippane canvas").nth(1).bounding_box()
    assert box
    image = screen(page)
    left, right = (
        int(box["x"] + box["width"] * edge / len(TEXT)) + inset for edge, inset in ((3, 3), (4, -3))
    )
    top = int(box["y"])
    cell = {image.getpixel((x, y)) for x in range(left, right) for y in range(top + 4, top + 18)}
    assert cell == {(243, 241, 235), (205, 202, 193)}, "a checker of two greys"
    assert token_colour(page, 5, 1) == (222, 220, 214)


def test_text_panes_have_the_colours_of_the_strip(page: Page, small: str) -> None:
    go(page, small, "#2/0/0")
    shown(page, "0/2/0/0")
    token_box(page, 0)
    image = screen(page)
    for pane in (0, 1):
        strip = strip_colours(page, pane, 0, 4)
        for token in (0, 2, 7, 10, 14):
            assert distance(token_colour(page, token, pane, image), strip[token]) <= 6, (pane, token)


def test_gamma_recolours_strip_text_and_legend_at_once(page: Page, small: str) -> None:
    go(page, small, "#2/0/0")
    shown(page, "0/2/0/0")
    before_text, before_strip = token_colour(page, 4, 0), strip_colours(page, 0, 0, 4)
    legend = page.locator(".panehead .ramp canvas").first
    ramp = "node => Array.from(node.getContext('2d').getImageData(60, 5, 1, 1).data).join()"
    before_legend = legend.evaluate(ramp)
    page.locator("#gamma").fill("-1.2")
    page.wait_for_function("() => location.hash.includes('gamma=0.435')")
    assert lightness(token_colour(page, 4, 0)) < lightness(before_text) - 20
    assert lightness(strip_colours(page, 0, 0, 4)[4]) < lightness(before_strip[4]) - 20
    assert legend.evaluate(ramp) != before_legend


def test_the_scale_is_bound_at_the_99th_percentile_of_what_was_chosen(
    page: Page, small: str, run_folder: Path
) -> None:
    from archer.trace.reader import TraceReader

    arrays = TraceReader(run_folder / "influence_trace").read(2).arrays
    assert arrays.influence is not None

    def bound(rows: slice) -> float:
        values = np.abs(arrays.influence[rows][arrays.response_mask[rows]])  # type: ignore[index]
        return float(np.percentile(values[np.isfinite(values)], 99))

    go(page, small, "#2/1/5")
    shown(page, "0/2/1/5")
    ticks = page.locator(".panehead").nth(1).locator(".ticks span").last
    bounds = [bound(slice(None)), bound(slice(4, 8)), bound(slice(5, 6))]
    assert bounds[0] > 1.2 * bounds[1] > 1.4 * bounds[2], "the scopes must differ for this to show anything"
    for scale, expected in zip(("step", "group", "response"), bounds, strict=True):
        page.get_by_label("Colour scale").select_option(scale)
        page.wait_for_function("scale => location.hash.includes(scale) || scale === 'step'", arg=scale)
        assert float(ticks.inner_text().removeprefix("≥ ")) == pytest.approx(expected, rel=0.03)


def test_any_metric_can_be_shown_in_either_pane(page: Page, small: str) -> None:
    go(page, small, "#2/0/0")
    shown(page, "0/2/0/0")
    options = page.locator("#left-metric option").all_inner_texts()
    assert options == ["entropy (nats)", "influence", "log-prob", "advantage"]
    page.locator("#left-metric").select_option("advantage")
    page.wait_for_function("() => location.hash.includes('left=advantage')")
    red, _, blue = strip_colours(page, 0, 0, 4)[4]
    assert red > blue + 60, "advantage 1 is positive"


def test_a_metric_only_this_file_has_is_discovered(
    serve: Callable[..., BackgroundServer], page: Page, tmp_path: Path
) -> None:
    import zipfile

    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step()})
    with (
        zipfile.ZipFile(folder / "steps" / "step_000001.npz", "a") as archive,
        archive.open("kl_ref.npy", "w") as out,
    ):
        np.lib.format.write_array(out, np.full((8, len(TEXT)), 3.5, np.float32))
    go(page, serve(folder).url(), "#1/0/1/2?right=kl_ref")
    shown(page, "0/1/0/1")
    expect(page.locator("#right-metric")).to_have_value("kl_ref")
    expect(page.locator(".inspector")).to_contain_text("kl ref")
    expect(page.locator(".inspector dd").last).to_have_text("3.5")


def test_the_toggle_changes_between_light_and_dark_and_is_remembered(page: Page, small: str) -> None:
    go(page, small, "#2/0")
    shown(page, "0/2/0/null")
    assert screen(page).getpixel((3, 890)) == PAPER["light"]
    page.keyboard.press("t")
    page.wait_for_function("() => document.documentElement.dataset.theme === 'dark'")
    assert screen(page).getpixel((3, 890)) == PAPER["dark"]
    assert strip_colours(page, 0, 0, 4)[0] == PAPER["dark"]
    page.reload()
    shown(page, "0/2/0/null")
    assert screen(page).getpixel((3, 890)) == PAPER["dark"]


def test_text_on_every_colour_can_be_read(page: Page, small: str) -> None:
    """Contrast of ink and background along both ramps, as WCAG computes it."""
    go(page, small)
    worst = page.evaluate(
        """async () => { const { Scale, STEPS } = await import('./static/colour.js');
          const linear = v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4 };
          const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
          const rgb = hex => [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
          let worst = 99;
          for (const dark of [false, true]) for (const ramp of ['sequential', 'diverging']) {
            const scale = new Scale(ramp, 1, 1, dark);
            for (let i = 0; i <= STEPS; i++) {
              const [ink, back] = [light(rgb(scale.ink[i])), light(scale.rgb[i])];
              worst = Math.min(worst, (Math.max(ink, back) + 0.05) / (Math.min(ink, back) + 0.05));
            } }
          return worst; }"""
    )
    assert worst >= 4.5


def test_characters_over_several_tokens_are_drawn_whole_and_once(page: Page, small: str) -> None:
    go(page, small, "#2/0/0/8")
    shown(page, "0/2/0/0")
    expect(page.locator('.workview .textpane[data-pane="0"] [data-token="8"]')).to_have_text("∑")
    expect(page.locator('.workview .textpane[data-pane="0"] [data-token="9"]')).to_have_text("")
    assert token_box(page, 9)["width"] > 2, "the token that only continues it keeps its colour"
    page.keyboard.press("ArrowRight")
    expect(page.locator(".inspector .chosen")).to_have_text("(continues a character)")


def test_line_breaks_and_blanks_are_visible(page: Page, small: str) -> None:
    go(page, small, "#2/0/0/6")
    shown(page, "0/2/0/0")
    expect(page.locator('.workview .textpane[data-pane="0"] [data-token="6"]')).to_have_text("⏎")
    assert token_box(page, 7)["y"] > token_box(page, 5)["y"] + 20
    expect(page.locator(".inspector .chosen")).to_have_text("⏎")
