"""The tasks of a researcher on the step, prompt and search pages, with the number of clicks each takes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pages import go, shown
from playwright.sync_api import Locator, Page, expect
from small_traces import TEXT, make_step, write_trace

from archer.viewer.serve import BackgroundServer

Serve = Callable[..., BackgroundServer]


class Clicks:
    """Counts what a person clicks or chooses."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, target: Locator, **options: object) -> None:
        target.click(**options)  # type: ignore[arg-type]
        self.count += 1


@pytest.fixture
def varied(tmp_path: Path) -> Path:
    """Two steps of four groups: all accepted, all rejected, one of two, one accepted with an unjudged one."""
    accepted = [True, True, False, False, True, False, True, True]
    changes = {
        "accepted": accepted,
        "reward": np.where(accepted, 1.0, 0.0),
        "group_id": np.arange(8) // 2,
        "sample_index": np.arange(8) // 2 + 10,
        "unjudged": np.arange(8) == 7,
        "truncated": np.arange(8) == 3,
        "prompts": [[0, 1, 2, row // 2, 10, 7] for row in range(8)],
    }
    write_trace(tmp_path / "varied/influence_trace", {step: make_step(step, **changes) for step in (1, 2)})
    return tmp_path / "varied"


def test_the_prompts_with_most_disagreement_take_two_clicks(serve: Serve, page: Page, varied: Path) -> None:
    go(page, serve(varied).url(), "#1")
    cards = page.locator(".groupcard")
    expect(cards).to_have_count(4)
    expect(cards.nth(0)).to_contain_text("all accepted")
    expect(cards.nth(1)).to_contain_text("all rejected")
    expect(cards.nth(1)).to_contain_text("1 truncated")
    expect(cards.nth(3)).to_contain_text("1 unjudged")
    click = Clicks()
    page.locator("#grouporder").select_option("disagreement")
    click.count += 1
    expect(cards.first).to_contain_text("Group 2")
    click(page.locator("#mixed"))
    expect(cards).to_have_count(1)
    expect(page.locator(".stepview .sectionhead .amount")).to_have_text("1 of 4")
    assert click.count == 2
    page.wait_for_function(
        "() => location.hash.includes('gorder=disagreement') && location.hash.includes('mixed=1')"
    )


def text_is_on_screen(page: Page, token: int) -> bool:
    box = page.locator(f'.workview .textpane[data-pane="0"] [data-token="{token}"]').first.bounding_box()
    height = page.evaluate("innerHeight")
    return box is not None and box["y"] >= 0 and box["y"] + box["height"] <= height


def test_the_most_negative_token_of_a_step_takes_two_clicks_and_is_on_the_screen(
    serve: Serve, new_page: Callable[..., Page], tmp_path: Path
) -> None:
    rows = 48
    influence = np.random.default_rng(0).normal(size=(rows, len(TEXT)))
    influence[37, 4] = -99.0
    write_trace(tmp_path / "run/influence_trace", {1: make_step(1, rows=rows, influence=influence)})
    page = new_page(height=600)
    go(page, serve(tmp_path / "run").url(), "#1")
    click = Clicks()
    click(page.get_by_role("button", name="Most negative tokens"))
    first = page.locator(".stepplots tbody tr").first
    expect(first).to_contain_text("−99")
    assert page.locator(".stepplots tbody tr").first.bounding_box()["y"] < 600  # type: ignore[index]
    click(first.locator("button"))
    shown(page, "0/1/1/37")
    expect(page.locator(".inspector .chosen")).to_have_text("4")
    page.wait_for_function("() => scrollY > 0")
    assert text_is_on_screen(page, 4)
    assert click.count == 2


def test_a_row_of_the_table_below_brings_the_text_back_on_the_screen(
    new_page: Callable[..., Page], small: str
) -> None:
    page = new_page(height=420)
    go(page, small, "#2/0/0")
    shown(page, "0/2/0/0")
    row = page.locator(".tokenpanel tbody tr button").last
    row.scroll_into_view_if_needed()
    row.click()
    page.wait_for_function("() => /^#2\\/0\\/0\\/\\d+/.test(location.hash)")
    token = int(page.url.split("#2/0/0/")[1].split("?")[0])
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert text_is_on_screen(page, token)


def test_a_rectangle_in_the_scatter_lists_its_tokens_and_a_row_opens_one(page: Page, small: str) -> None:
    go(page, small, "#2?look=scatter")
    expect(page.locator(".stepplots > .empty")).to_contain_text("All 106 tokens with both values")
    canvas = page.locator(".stepplots canvas")
    box = canvas.bounding_box()
    assert box
    page.mouse.move(box["x"] + 60, box["y"] + 3)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 3, box["y"] + box["height"] - 20)
    page.mouse.up()
    expect(page.locator(".stepplots h3")).to_contain_text("106 tokens with entropy")
    expect(page.locator(".stepplots tbody tr")).to_have_count(20)
    page.locator(".stepplots tbody button").first.click()
    expect(page.locator(".inspector .chosen")).to_be_visible()


def test_reward_and_length_are_plotted_and_a_point_opens_its_response(page: Page, small: str) -> None:
    go(page, small, "#2?look=lengths")
    expect(page.locator(".stepplots > .empty")).to_contain_text("8 responses")
    box = page.locator(".stepplots canvas").bounding_box()
    assert box
    left, right = 58, box["width"] - 10  # the axes; lengths 12 to 15 lie a little inside them
    at = left + (right - left) * (0.03 / 1.06)
    page.mouse.click(box["x"] + at, box["y"] + 320 - 30 - (320 - 40) * (0.03 / 1.06))
    expect(page.locator(".responsetitle")).to_contain_text("12 tokens")
    expect(page.locator(".responsetitle")).to_contain_text("reward 0.25")


def test_the_whole_prompt_is_searched_not_its_end(serve: Serve, page: Page, tmp_path: Path) -> None:
    prompts = [[10 if row < 4 else 11, *([7] * 400), 0, 1] for row in range(8)]
    write_trace(tmp_path / "run/influence_trace", {1: make_step(1, prompts=prompts)})
    go(page, serve(tmp_path / "run").url(), "#1?find=maybe")
    expect(page.locator(".stepview > .datatable tbody tr")).to_have_count(4)
    cards = page.locator(".groupcard .promptline")
    expect(cards.nth(0)).to_contain_text("maybe")
    expect(cards.nth(1)).to_contain_text("so")


def test_failed_values_are_a_failure_not_an_absence(serve: Serve, page: Page, tmp_path: Path) -> None:
    entropies = make_step().entropies.copy()
    entropies[5, 2] = np.nan
    write_trace(tmp_path / "run/influence_trace", {1: make_step(entropies=entropies)})
    go(page, serve(tmp_path / "run").url(), "#1")
    notice = page.locator(".stepview .notice.damaged")
    expect(notice).to_contain_text(
        "1 token in 1 response have NaN or infinite entropy: the computation failed"
    )
    notice.get_by_role("button", name="response 5").click()
    shown(page, "0/1/1/5")


def test_a_prompt_through_training_takes_one_click_from_its_group(
    serve: Serve, page: Page, varied: Path
) -> None:
    go(page, serve(varied).url(), "#1/2")
    shown(page, "0/1/2/null")
    click = Clicks()
    click(page.locator("#course"))
    shown(page, "prompt")
    expect(page.locator(".promptview .lead")).to_have_text("sample 12 · 2 groups at 2 of 2 steps")
    rows = page.locator(".promptview tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("50 %")
    expect(page.locator(".promptview .chart:visible")).to_have_count(4)
    assert click.count == 1
    box = page.locator(".promptview .chart canvas").first.bounding_box()
    assert box
    page.mouse.click(box["x"] + box["width"] - 6, box["y"] + 60)
    shown(page, "0/2/2/null")
    page.go_back()
    shown(page, "prompt")
    page.keyboard.press("u")
    shown(page, "0/1/2/null")


def test_a_word_over_the_whole_run_takes_two_clicks(page: Page, small: str) -> None:
    go(page, small)
    click = Clicks()
    click(page.locator("#search-run"))
    click(page.get_by_role("group", name="Often asked").get_by_role("button", name="so", exact=True))
    status = page.locator(".runsearchview .lead")
    expect(status).to_contain_text("40 matches in 40 of 40 responses · 5 steps · mean entropy")
    assert click.count == 2
    expect(page.locator(".runsearchview .chart:visible")).to_have_count(4)
    expect(page.locator(".spelling")).to_have_text(["so 40"])
    page.locator(".runsearchview tbody button").first.click()
    shown(page, "0/1/0/0")
    expect(page.locator(".inspector .chosen")).to_have_text("·so")


def test_a_word_that_is_nowhere_counts_zero_not_half_of_minus_one(page: Page, small: str) -> None:
    go(page, small, "#?page=search&sq=zebra")
    expect(page.locator(".runsearchview .lead")).to_contain_text("No match in 40 responses")
    chart = page.locator(".runsearchview .chart canvas").first
    expect(chart).to_have_attribute("aria-label", "Matches, 5 steps, from 0 to 0")


def test_expressions_are_searched_refused_and_ended(page: Page, small: str) -> None:
    go(page, small, "#?page=search&smode=regex")
    field = page.locator("#runsearch")
    field.fill(r"is \d+")
    field.press("Enter")
    status = page.locator(".runsearchview .lead")
    expect(status).to_contain_text("40 matches")
    field.fill("(")
    field.press("Enter")
    expect(status).to_contain_text("not a regular expression")
    field.fill(r"([\s\S]+)+#")
    field.press("Enter")
    expect(status).to_contain_text("takes longer than 2 s")
    page.get_by_role("button", name="text", exact=True).click()
    field.fill("42")
    page.locator("#runsearch-go").click()
    expect(status).to_contain_text("40 matches")


def test_a_search_can_be_stopped_and_its_address_starts_it_again(
    new_page: Callable[..., Page], small: str
) -> None:
    page = new_page()
    held: list[object] = []
    page.route("**/search?*after=1", lambda route: held.append(route))
    page.route("**/search?*after=-1", lambda route: route.fulfill(json=cut_answer(route.fetch().json())))
    go(page, small, "#?page=search&sq=maybe")
    status = page.locator(".runsearchview .lead")
    expect(status).to_contain_text("Searching … 1 of 5 steps")
    page.locator("#runsearch-stop").click()
    expect(status).to_contain_text("stopped after 1 step")
    other = new_page()
    go(other, small, "#?page=search&sq=maybe")
    expect(other.locator(".runsearchview .lead")).to_contain_text("40 matches")


def cut_answer(answer: dict[str, object]) -> dict[str, object]:
    """An answer as a slow server would give it: the first step only."""
    results = answer["results"]
    assert isinstance(results, list)
    return answer | {"results": results[:1], "next": 1}


def test_hostile_text_stays_text_on_all_three_pages(serve: Serve, page: Page, tmp_path: Path) -> None:
    from archer.trace.vocab import Vocab

    evil = b"<img src=x onerror=alert(1)>\xe2\x80\xae"
    ids = np.zeros((8, 3), dtype=int)
    wide = np.ones(ids.shape)
    step = make_step(
        responses=ids, entropies=wide, influence=wide, advantage=wide, log_probs=-wide,
        response_mask=wide > 0, prompts=[[0]] * 8,
    )  # fmt: skip
    write_trace(tmp_path / "run/influence_trace", {1: step}, vocab=Vocab.from_tokens([evil]))
    url = serve(tmp_path / "run").url()
    for place in ("#1?look=lowest", "#?page=search&smode=text&sq=img", "#?page=prompt&prompt=sample:0"):
        go(page, url, place)
        expect(page.locator("main tbody tr").first).to_be_visible()
        expect(page.locator("main")).to_contain_text("onerror")
        assert page.locator("main img").count() == 0
        assert "\u202e" not in page.locator("main").inner_text()
