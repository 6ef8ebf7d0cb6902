"""For everybody: keyboard alone, focus, contrast, colour-blind eyes, and the page that asks for a token."""

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pages import go, shown, token_box
from playwright.sync_api import Page, expect
from small_traces import make_step, write_trace

from archer.viewer.app import app_maker
from archer.viewer.runs import Library
from archer.viewer.security import Access
from archer.viewer.serve import BackgroundServer

FOCUSED = """() => { const node = document.activeElement;
  return node.getAttribute('aria-label') || node.id || node.textContent.trim().slice(0, 30); }"""
# Every piece of visible text with its contrast against what is painted behind it.
CONTRAST = """() => {
  const linear = v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4 };
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const parse = text => { const parts = text.match(/[\\d.]+/g).map(Number);
    return [parts.slice(0, 3), parts[3] ?? 1]; };
  const behind = node => { for (let at = node; at; at = at.parentElement) {
      const [rgb, alpha] = parse(getComputedStyle(at).backgroundColor);
      if (alpha > 0.99) return rgb; }
    return [255, 255, 255]; };
  const poor = []; const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) { const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !node.checkVisibility()) continue;
    if (node.closest('.textwindow, .unseen, :disabled, script, style, noscript, option')) continue;
    const [ink, alpha] = parse(getComputedStyle(node).color); if (!alpha) continue;
    const [a, b] = [light(ink), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const words = walker.currentNode.textContent.trim().slice(0, 30);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${node.className} ${words}`);
  } return Array.from(new Set(poor)); }"""
RAMPS = """async () => { const { Scale } = await import('./static/colour.js');
  const found = {};
  for (const dark of [false, true]) for (const ramp of ['sequential', 'diverging'])
    found[`${ramp} ${dark ? 'dark' : 'light'}`] =
      new Scale(ramp, 1, 1, dark).rgb.filter((_, i) => i % 32 === 0);
  return found; }"""
# Machado, Oliveira and Fernandes (2009), full severity, on linear RGB.
BLINDNESS = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def seen_by(kind: str, colours: list[list[int]]) -> np.ndarray:
    """CIELAB coordinates of sRGB colours as an eye of this kind sees them, [N, 3]."""
    share = np.array(colours) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    linear = np.clip(linear @ np.array(BLINDNESS[kind]).T, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = linear @ to_xyz.T / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "place", ["", "#2", "#2/0/0/4?q=answer", "#2/0?table=statistics", "#2/0?vs=0:4", "#77"]
)
def test_all_text_has_the_contrast_that_wcag_asks_for(
    new_page: Callable[..., Page], small: str, scheme: str, place: str
) -> None:
    page = new_page(scheme=scheme)
    go(page, small, place)
    page.get_by_role("heading", level=1).wait_for()
    if place and place != "#77":
        page.locator("table tbody tr").first.wait_for()
    assert page.evaluate(CONTRAST) == []


@pytest.mark.parametrize("kind", list(BLINDNESS))
def test_ramps_can_be_told_apart_by_colour_blind_eyes(page: Page, small: str, kind: str) -> None:
    """Sequential: lightness goes one way. Diverging: it does so on either side of zero, and values of equal
    size and different sign stay different colours."""
    go(page, small)
    for name, colours in page.evaluate(RAMPS).items():
        lab = seen_by(kind, colours)
        middle = len(colours) // 2
        arms = [lab] if name.startswith("sequential") else [lab[middle:], lab[: middle + 1][::-1]]
        for arm in arms:
            steps = np.diff(arm[:, 0])
            assert (steps < 0).all() or (steps > 0).all(), (name, arm[:, 0])
            assert abs(arm[-1, 0] - arm[0, 0]) > 35, name
        if len(arms) == 2:
            apart = np.linalg.norm(arms[0] - arms[1], axis=1)
            assert (apart[2:] > 18).all(), (name, apart)


def test_everything_is_reached_in_reading_order_and_the_focus_is_seen(page: Page, small: str) -> None:
    go(page, small, "#2/0/0/4")
    shown(page, "0/2/0/0")
    page.locator(".tokenpanel tbody tr").first.wait_for()
    order = []
    for _ in range(80):
        page.keyboard.press("Tab")
        order.append(page.evaluate(FOCUSED))
        outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", order[-1]
        if order[-1] == "csv" or "CSV" in order[-1]:
            break
    landmarks = [
        "To the content",
        "Archer",
        "response 0",
        "Next step (n)",
        "Series of the timeline",
        "Search the text",
        "Lowest value",
        "Gamma of the colours",
        "Order of the responses",
        "Metric of the left pane",
        "Metric of the right pane",
        "Response 0, accepted, reward 1, 14 tokens",
        "Response 3, rejected, reward 0.25, 12 tokens",
        "Tokens of the response; arrow keys move from token to token",
        "Highest & lowest",
        "Metric of the table",
    ]
    places = [order.index(name) for name in landmarks]
    assert places == sorted(places), order


def test_a_whole_visit_by_keyboard_alone(page: Page, small: str) -> None:
    go(page, small)
    page.locator(".runview tbody tr").first.wait_for()

    def tab_to(label: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate(FOCUSED).startswith(label):
                return
        raise AssertionError(f"{label} was not reached")

    tab_to("To the content")
    page.keyboard.press("Enter")
    tab_to("5")  # the newest step's row in the table
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Step 5")
    tab_to("Group 1")
    page.keyboard.press("Enter")
    shown(page, "0/5/1/null")
    tab_to("Response 6")
    page.keyboard.press("Enter")
    shown(page, "0/5/1/6")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".inspector .chosen")).to_have_text("·answer")
    expect(page.locator('[aria-live="polite"]')).to_contain_text("·answer: position 1, id 1, entropy")
    page.keyboard.press("/")
    page.keyboard.type("maybe")
    page.keyboard.press("Enter")
    expect(page.locator(".inspector .chosen")).to_have_text("·maybe")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(page.locator("#search")).to_have_value("")
    with page.expect_download():
        page.keyboard.press("e")
    page.keyboard.press("c")
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare")


def test_the_selected_token_is_seen_on_every_colour(page: Page, small: str) -> None:
    """The frame around it has an edge of paper and one of the accent, so one of them always stands out."""
    go(page, small, "#2/0/0/14")
    shown(page, "0/2/0/0")
    token_box(page, 14)
    colours = page.evaluate(
        """() => { const canvas = document.querySelectorAll('.workview .textpane canvas')[0];
          const span = document.querySelector('.workview [data-token="14"]').getBoundingClientRect();
          const box = canvas.getBoundingClientRect();
          const [x, y] = [span.x - box.x + 20, span.y - box.y - 2];
          const column = canvas.getContext('2d').getImageData(x, y, 1, 14).data;
          return Array.from({ length: 14 }, (_, i) => Array.from(column.slice(4 * i, 4 * i + 3)).join()); }"""
    )
    assert "47,93,158" in colours and "251,250,246" in colours, colours


def test_without_a_token_a_browser_gets_a_page_to_give_it(
    new_page: Callable[..., Page], tmp_path: Path
) -> None:
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step()})
    token = "a-token-of-some-length"
    make = app_maker(Library.open([folder]))
    with BackgroundServer(make, Access.of("0.0.0.0", 0, token)) as server:
        address = f"http://127.0.0.1:{server.access.port}/"
        for scheme, wrong in itertools.product(("light", "dark"), (False, True)):
            page = new_page(scheme=scheme)
            page.goto(f"{address}{'?token=not-the-right-one' if wrong else ''}#1/0/2")
            expect(page.get_by_role("heading")).to_have_text("This viewer needs its token")
            assert page.get_by_role("alert").count() == int(wrong)
            assert page.evaluate(CONTRAST) == []
            page.get_by_label("Token").fill(token)
            page.keyboard.press("Enter")
            shown(page, "0/1/0/2")
            assert page.url == f"{address}#1/0/2", "the token is not left in the address, the place is"
