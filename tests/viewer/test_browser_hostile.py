"""Model output is never markup: hostile tokens, prompts, names and metrics, looked at in a real browser."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pages import go, shown
from playwright.sync_api import Page, expect
from small_traces import make_step, write_trace

from archer.trace.vocab import Vocab
from archer.viewer.export import write_group
from archer.viewer.runs import TracedRun
from archer.viewer.serve import BackgroundServer

HOSTILE = [
    b"<script>window.hit=1</script>",
    b"<img src=x onerror=window.hit=1>",
    b'"><svg onload=window.hit=1>',
    b"'onmouseover='window.hit=1",
    b"</script><script>window.hit=1</script>",
    "\u202egnp.exe\u202c".encode(),
    "\u2066\u2069\u200b\u00ad".encode(),
    b"\x00\x07\x1b[31m\x7f",
    b"\xff\xfe",
    b"{{constructor.constructor('window.hit=1')()}}",
    b'=HYPERLINK("x")',
    "\u2028\u2029\r\n\t".encode(),
    ("e" + "\u0301" * 40).encode(),
    b"javascript:window.hit=1",
    b"x" * 3000,
]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    size = len(HOSTILE)
    shape = (8, size)
    step = make_step(
        responses=np.tile(np.arange(size), (8, 1)),
        entropies=np.ones(shape),
        influence=np.ones(shape),
        advantage=np.ones(shape),
        log_probs=-np.ones(shape),
        response_mask=np.ones(shape, dtype=bool),
        judgement=[
            json.dumps({"detail": "<img src=x onerror=window.hit=1>\u202e", "extra": {"<b>": "\x1b[31m"}})
        ]
        * 8,
        uid=["<b onclick=window.hit=1>uid</b>\u202e"] * 8,
        prompts=[list(range(size))] * 8,
    )
    folder = tmp_path / "<img src=x onerror=window.hit=1>"
    write_trace(folder / "influence_trace", {1: step}, vocab=Vocab.from_tokens(HOSTILE))
    path = folder / "influence_trace" / "steps" / "step_000001.npz"
    with zipfile.ZipFile(path, "a") as archive, archive.open("<svg onload=window.hit=1>.npy", "w") as out:
        np.lib.format.write_array(out, np.ones(shape, np.float32))
    return folder


def assert_unharmed(page: Page) -> None:
    assert page.evaluate("window.hit") is None
    assert (
        page.evaluate("document.querySelectorAll('#app script, #app img, #app svg, #app b[onclick]').length")
        == 0
    )
    raw = "/[\\u202a-\\u202e\\u2066-\\u2069\\u200b\\u0000-\\u0008\\u001b\\u007f]/"
    for part in ("#app", ".tooltip"):
        assert page.evaluate(f"{raw}.test(document.querySelector('{part}').textContent)") is False


@pytest.mark.parametrize(
    "place",
    ["", "#1", "#1/0", "#1/0/0/3", "#1/0/0/7?table=distinct", "#1/0/0?table=list&scope=step", "#1/0?vs=0:1"],
)
def test_hostile_text_stays_text_everywhere(
    serve: Callable[..., BackgroundServer], page: Page, hostile: Path, place: str
) -> None:
    go(page, serve(hostile).url(), place)
    page.get_by_role("heading", level=1).wait_for()
    if "/" in place:
        page.wait_for_function("() => document.documentElement.dataset.shown")
        expect(page.locator("table tbody tr").first).to_be_visible()
    if place.startswith("#1/0/0"):
        box = page.locator(".workview .textpane").first.bounding_box()
        assert box
        page.mouse.move(box["x"] + 20, box["y"] + 12)
        expect(page.locator(".tooltip")).to_be_visible()
        page.locator(".prompt summary").click()
    assert_unharmed(page)


def test_script_tokens_are_shown_letter_by_letter(
    serve: Callable[..., BackgroundServer], page: Page, hostile: Path
) -> None:
    url = serve(hostile).url()
    go(page, url, "#1/0/0/0")
    shown(page, "0/1/0/0")
    expect(page.locator(".inspector .chosen")).to_have_text("<script>window.hit=1</script>")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".inspector .chosen")).to_have_text("<img·src=x·onerror=window.hit=1>")
    go(page, url, "#1/0/0/5")
    shown(page, "0/1/0/0")
    expect(page.locator(".inspector .chosen")).to_have_text("⟨U+202E⟩gnp.exe⟨U+202C⟩")
    go(page, url, "#1/0/0/7")
    expect(page.locator(".inspector .chosen")).to_have_text("␀␇␛[31m␡")


def test_a_hostile_address_is_harmless(page: Page, small: str) -> None:
    go(
        page,
        small,
        "#2/0/0?left=<script>window.hit=1</script>&q=<img src=x onerror=window.hit=1>&table=__proto__&vs=",
    )
    shown(page, "0/2/0/0")
    expect(page.locator("#left-metric")).to_have_value("entropy")
    assert_unharmed(page)


def test_an_exported_page_is_as_harmless(
    new_page: Callable[..., Page], hostile: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.html"
    write_group(TracedRun(hostile), 1, 0, out)
    page = new_page()
    page.goto(out.as_uri() + "#1/0/0/0")
    shown(page, "0/1/0/0")
    expect(page.locator(".inspector .chosen")).to_have_text("<script>window.hit=1</script>")
    assert_unharmed(page)


def test_inline_script_is_refused_by_the_policy(
    new_page: Callable[..., Page], browser: object, small: str
) -> None:
    page = browser.new_page()  # type: ignore[attr-defined]  # the policy's complaint is the point here
    page.goto(small)
    page.get_by_role("heading", level=1).wait_for()
    page.evaluate(
        """() => { const node = document.createElement('script'); node.textContent = 'window.hit = 1';
          document.body.append(node); }"""
    )
    assert page.evaluate("window.hit") is None
    page.close()
