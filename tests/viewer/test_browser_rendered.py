"""The rendered response: formulas and Markdown are drawn, and nothing in them can do anything."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pages import go, shown
from playwright.sync_api import Page, expect
from small_traces import make_step, write_trace

from archer.trace.vocab import Vocab
from archer.viewer.serve import BackgroundServer

Serve = Callable[..., BackgroundServer]
HOSTILE = r"""# Title
<script>window.bad = 1</script> <img src=x onerror="window.bad = 1"> <b>bold?</b>
[link](javascript:alert(1)) [other](https://example.com) ![picture](https://example.com/x.png) <https://example.com>
$\href{javascript:alert(1)}{x}$ $\url{https://example.com}$ $\includegraphics{https://example.com/x.png}$
$\htmlStyle{position:fixed}{y}$ $\rule{9999em}{9999em}$ $\def\a{\a\a}\a$
"""


def served(serve: Serve, tmp_path: Path, text: str) -> str:
    """A viewer of one response of this text."""
    vocab = Vocab.from_tokens([text.encode(), b"."])
    shape = (8, 2)
    step = make_step(
        responses=np.tile([0, 1], (8, 1)),
        response_mask=np.ones(shape, bool),
        prompts=[[1]] * 8,
        **{name: np.ones(shape) for name in ("entropies", "influence", "log_probs", "advantage")},
    )
    return serve(write_trace(tmp_path / "run" / "influence_trace", {1: step}, vocab=vocab)).url()


def rendered(page: Page, url: str) -> None:
    go(page, url, "#1/0/0")
    shown(page, "0/1/0/0")
    assert page.locator(".rendered").count() == 0, "on request only"
    page.locator("#rendered").click()
    page.locator('.rendered[data-done="0"]').wait_for()


@pytest.mark.parametrize(
    "formula", [r"\(a^2\)", "$a^2$", "$$a^2$$", r"\[a^2\]", "\\[\na^2\n\\]", "x\n$$\na^2\n$$"]
)
def test_formulas_become_mathml(serve: Serve, page: Page, tmp_path: Path, formula: str) -> None:
    rendered(page, served(serve, tmp_path, f"So {formula} is *it*." if "\n" not in formula else formula))
    expect(page.locator(".rendered math msup")).to_have_count(1)
    expect(page.locator(".rendered annotation")).to_have_count(0)


def test_markdown_is_drawn_and_money_is_no_formula(serve: Serve, page: Page, tmp_path: Path) -> None:
    text = (
        "## Step\n\n1. pay $5 and $10\n2. **then**\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```\ncode $x$\n```\n"
    )
    rendered(page, served(serve, tmp_path, text))
    article = page.locator(".rendered")
    expect(article.locator("h2")).to_have_text("Step")
    expect(article.locator("ol li")).to_have_count(2)
    expect(article.locator("td")).to_have_count(2)
    expect(article.locator("math")).to_have_count(0)
    expect(article.locator("pre")).to_contain_text("code $x$")


def test_nothing_in_a_response_becomes_active(serve: Serve, page: Page, tmp_path: Path) -> None:
    asked: list[str] = []
    url = served(serve, tmp_path, HOSTILE)
    page.on("request", lambda request: asked.append(request.url))
    rendered(page, url)
    inside = page.locator(".rendered")
    for name in ("script", "img", "a", "iframe", "svg", "object", "style", "b"):
        expect(inside.locator(name)).to_have_count(0)
    expect(inside).to_contain_text("<script>window.bad = 1</script>")
    attributes = inside.evaluate(
        "node => Array.from(node.querySelectorAll('*'), each => each.getAttributeNames()).flat()"
    )
    assert not [
        name for name in attributes if name.startswith("on") or name in ("href", "src", "style", "class")
    ]
    assert page.evaluate("() => window.bad") is None
    assert all(each.startswith(url.rsplit("/", 1)[0]) for each in asked)
    widest = inside.evaluate(
        "node => Math.max(...Array.from(node.querySelectorAll('*'), e => e.scrollHeight))"
    )
    assert widest < 5000


def test_what_takes_too_long_is_given_up(serve: Serve, page: Page, tmp_path: Path) -> None:
    text = "$" + "{" * 1500 + "x" + "}" * 1500 + "$ " + "*a **b " * 20000 + "> " * 5000
    go(page, served(serve, tmp_path, text), "#1/0/0?rendered=1")
    shown(page, "0/1/0/0")
    page.locator('.rendered[data-done="0"]').wait_for(timeout=12_000)
    page.keyboard.press("ArrowRight")
    expect(page.locator(".inspector dl")).to_be_visible()
