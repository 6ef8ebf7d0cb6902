"""Search in a real browser: expressions that never end, on every page that searches, and without workers."""

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

Serve = Callable[..., BackgroundServer]
ENDLESS = "(a+)+b"
"""Takes 2^n steps on n letters a: with 60 of them longer than anybody lives."""
VOCAB = Vocab.from_tokens([b"a" * 20, b" fine", b"\n"])
NO_WORKERS = "window.Worker = class { constructor() { throw new Error('not here'); } };"


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    ids = np.tile(np.array([0, 0, 0, 2, 1]), (8, 1))
    wide = np.ones(ids.shape)
    step = make_step(
        responses=ids,
        entropies=wide,
        influence=wide,
        advantage=wide,
        log_probs=-wide,
        response_mask=wide > 0,
        prompts=[[1]] * 8,
    )
    write_trace(tmp_path / "endless" / "influence_trace", {1: step}, vocab=VOCAB)
    return tmp_path / "endless"


def assert_survives(page: Page) -> None:
    """The expression is given up on with a sentence, the page works meanwhile and searches again after."""
    page.get_by_role("button", name="Regular expression").click()
    page.locator("#search").fill(ENDLESS)
    expect(page.locator(".matches")).to_have_text("searching …")
    page.locator("#theme").click()
    page.wait_for_function("() => document.documentElement.dataset.theme === 'dark'")
    expect(page.locator(".matches")).to_contain_text("takes longer than")
    expect(page.locator("#search")).to_have_attribute("aria-invalid", "true")
    page.locator("#search").fill("fi[mn]e")
    expect(page.locator(".matches")).to_have_text("1 match")
    expect(page.locator("#search")).to_have_attribute("aria-invalid", "false")


def test_an_endless_expression_costs_a_worker_not_the_page(serve: Serve, page: Page, endless: Path) -> None:
    go(page, serve(endless).url(), "#1/0/0")
    shown(page, "0/1/0/0")
    assert_survives(page)


def test_an_exported_page_survives_it_as_well(page: Page, endless: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    write_group(TracedRun(endless), 1, 0, out)
    page.goto(out.as_uri() + "#1/0/0")
    shown(page, "0/1/0/0")
    assert_survives(page)


def test_another_question_ends_the_one_before(serve: Serve, page: Page, endless: Path) -> None:
    """Typed in one go: the endless beginning must not delay what it grows into."""
    go(page, serve(endless).url(), "#1/0/0?regex=1")
    shown(page, "0/1/0/0")
    page.evaluate(
        """([endless, good]) => { const field = document.getElementById('search');
          for (const text of [endless, good]) { field.value = text;
            field.dispatchEvent(new Event('input', { bubbles: true })); } }""",
        [ENDLESS, "fine$"],
    )
    expect(page.locator(".matches")).to_have_text("1 match")


@pytest.mark.parametrize(
    "place", ["#1?regex=1", "#1/0?regex=1", "#1/0?regex=1&vs=0:1", "#1/0/0?regex=1&scope=step"]
)
def test_every_page_that_searches_survives_an_endless_expression(
    serve: Serve, page: Page, endless: Path, place: str
) -> None:
    go(page, serve(endless).url(), place)
    page.wait_for_function("() => document.documentElement.dataset.shown")
    page.locator("#search").fill(ENDLESS)
    expect(page.locator(".matches")).to_contain_text("takes longer than")
    page.locator("#search").fill("f.ne")
    expect(page.locator(".matches")).to_contain_text("match")


def test_where_workers_are_forbidden_expressions_are_refused_and_plain_search_works(
    serve: Serve, page: Page, endless: Path
) -> None:
    page.add_init_script(NO_WORKERS)
    go(page, serve(endless).url(), f"#1/0/0?regex=1&q={ENDLESS.replace('+', '%2B')}")
    shown(page, "0/1/0/0")
    expect(page.locator(".matches")).to_contain_text("cannot be run safely here")
    page.get_by_role("button", name="Regular expression").click()
    page.locator("#search").fill("fine")
    expect(page.locator(".matches")).to_have_text("1 match")


def test_the_whole_step_is_searched_and_filtered_on_its_own_page(page: Page, small: str) -> None:
    go(page, small, "#2?table=list&k=50")
    page.locator(".stepview .tokenpanel tbody tr").first.wait_for()
    page.keyboard.press("/")
    page.keyboard.type("maybe")
    expect(page.locator(".stepview .matches")).to_have_text("8 matches")
    expect(page.locator(".stepview .tokenpanel tbody tr")).to_have_count(8)
    page.get_by_role("button", name="Regular expression").click()
    page.locator("#search").fill(r"\d\d")
    expect(page.locator(".stepview .matches")).to_have_text("8 matches")
    expect(page.locator(".stepview .panelbody")).to_contain_text("of 15 tokens")
    page.get_by_label("Metric of the range").select_option("entropy")
    page.locator("#lo").fill("99")
    expect(page.locator(".stepview .panelbody")).to_contain_text("Nothing passes the filters.")


def test_a_comparison_is_searched_on_both_sides(page: Page, small: str) -> None:
    go(page, small, "#2/0?vs=0:5/0")
    shown(page, "0/2/0/null")
    page.locator("#search").fill("maybe")
    expect(page.locator(".compareview .matches")).to_have_text("8 matches")
    expect(page.locator(".compareview > .datatable").last.locator("tbody tr")).to_have_count(1)


def test_what_is_typed_while_the_address_is_on_its_way_is_kept(page: Page, small: str) -> None:
    """The browser tells of a new address later; a second field may have been filled in between."""
    go(page, small, "#2/0/0?table=list&k=50&by=influence")
    shown(page, "0/2/0/0")
    page.evaluate(
        """() => {
          const type = (id, text) => {
            const field = document.getElementById(id);
            field.value = text;
            field.dispatchEvent(new Event("input"));
          };
          type("lo", "-2");
          // The address is written 150 ms later. This comes directly after it, before the browser's event.
          setTimeout(() => type("hi", "0"), 150);
          for (const begun = performance.now(); performance.now() < begun + 300; );
        }"""
    )
    expect(page.locator(".panelbody")).to_contain_text("2 of 2 tokens")
    expect(page.locator("#hi")).to_have_value("0")


def test_a_range_may_be_typed_as_the_page_writes_numbers(page: Page, small: str) -> None:
    """The page shows a minus sign, which is no hyphen."""
    go(page, small, "#2/0/0?table=list&k=50&by=influence")
    shown(page, "0/2/0/0")
    page.locator("#lo").fill("−2")
    page.locator("#hi").fill("0")
    expect(page.locator(".panelbody")).to_contain_text("2 of 2 tokens")
    page.locator("#hi").fill("nonsense")
    expect(page.locator(".toolbar")).to_have_class("toolbar unreadable")
