"""The three linked levels in a real browser: moving by mouse, by keyboard and by address."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pages import go, shown, token_box
from playwright.sync_api import Page, expect
from small_traces import make_step, write_trace

from archer.viewer.serve import BackgroundServer

Serve = Callable[..., BackgroundServer]


def test_the_run_shows_its_timeline_and_steps(page: Page, small: str) -> None:
    go(page, small)
    expect(page.get_by_role("heading", level=1)).to_have_text("small")
    titles = page.locator(".runview .chart figcaption span:first-child")
    for title in (
        "Mean reward",
        "Accepted share",
        "Mean entropy (nats)",
        "Mean |influence|",
        "Mean response length",
    ):
        expect(titles.get_by_text(title, exact=True)).to_be_visible()
    expect(page.locator(".runview tbody tr")).to_have_count(5)


def test_a_click_on_the_timeline_goes_to_the_step(page: Page, small: str) -> None:
    go(page, small)
    chart = page.locator(".runview .chart canvas").first
    box = chart.bounding_box()
    assert box
    chart.click(position={"x": box["width"] - 5, "y": 40})
    expect(page.get_by_role("heading", level=1)).to_have_text("Step 5")
    assert page.url.endswith("#5?run=small")


def test_the_step_lists_groups_responses_statistics_and_its_manifest_line(page: Page, small: str) -> None:
    go(page, small, "#2")
    cards = page.locator(".groupcard")
    expect(cards).to_have_count(2)
    expect(cards.first).to_contain_text("2 of 4 accepted")
    expect(cards.first).to_contain_text("The answer is The")
    expect(page.locator("table.stats")).to_contain_text("influence")
    rows = page.locator(".stepview > .datatable tbody tr")
    expect(rows).to_have_count(8)
    page.get_by_role("button", name="rejected", exact=True).click()
    expect(rows).to_have_count(4)
    expect(rows.first).to_contain_text("rejected")
    expect(rows.first).to_contain_text("0.25")
    page.get_by_text("Manifest line of this step").click()
    expect(page.locator(".manifest")).to_contain_text("mean_abs_influence")


def test_group_and_response_are_reached_by_clicks_and_shown_together(page: Page, small: str) -> None:
    go(page, small, "#2")
    page.locator(".groupcard").nth(1).click()
    shown(page, "0/2/1/null")
    labels = page.locator(".striplabel")
    expect(labels).to_have_count(4)
    expect(labels.first).to_have_attribute("aria-label", "Response 4, accepted, reward 1, 15 tokens")
    labels.nth(1).click()
    shown(page, "0/2/1/5")
    title = page.locator(".responsetitle").first
    expect(title).to_contain_text("Response 5")
    expect(title).to_contain_text("rejected · reward 0.25 · 14 tokens")
    expect(page.locator(".path")).to_contain_text("response 5")
    page.locator(".prompt summary").click()
    expect(page.locator(".prompt pre")).to_have_text("The answer is  answer")


def test_a_click_on_the_strip_opens_the_response_at_the_token(page: Page, small: str) -> None:
    go(page, small, "#2/0")
    shown(page, "0/2/0/null")
    box = page.locator(".strippane canvas").first.bounding_box()
    assert box
    page.mouse.click(box["x"] + box["width"] * 10.5 / 15, box["y"] + box["height"] * 0.5 / 4)
    shown(page, "0/2/0/0")
    page.wait_for_function("() => location.hash.startsWith('#2/0/0/10')")


def test_the_address_restores_place_and_settings(new_page: Callable[..., Page], small: str) -> None:
    page = new_page()
    go(page, small, "#3/0/2/4?left=log_prob&q=answer&gamma=2&scale=response&table=list&order=descending")
    shown(page, "0/3/0/2")
    expect(page.locator("#left-metric")).to_have_value("log_prob")
    expect(page.locator("#search")).to_have_value("answer")
    expect(page.locator(".inspector .chosen")).to_have_text("4")
    expect(page.get_by_label("Order", exact=True)).to_have_value("descending")
    other = new_page()
    go(other, page.url)
    shown(other, "0/3/0/2")
    assert other.url == page.url


def test_back_returns_to_the_place_before(page: Page, small: str) -> None:
    go(page, small, "#2/0")
    shown(page, "0/2/0/null")
    page.keyboard.press("j")
    shown(page, "0/2/0/0")
    page.go_back()
    shown(page, "0/2/0/null")


def test_keys_move_through_steps_groups_responses_and_tokens(page: Page, small: str) -> None:
    go(page, small)
    page.get_by_role("heading", level=1).wait_for()
    page.keyboard.press("n")
    expect(page.get_by_role("heading", level=1)).to_have_text("Step 1")
    page.keyboard.press("n")
    page.keyboard.press("p")
    page.keyboard.press("l")
    expect(page.get_by_role("heading", level=1)).to_have_text("Step 5")
    page.keyboard.press("Shift+N")
    shown(page, "0/5/0/null")
    page.keyboard.press("Shift+N")
    shown(page, "0/5/1/null")
    page.keyboard.press("Shift+P")
    shown(page, "0/5/0/null")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    shown(page, "0/5/0/0")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".inspector dd").first).to_have_text("1")
    expect(page.locator(".inspector .chosen")).to_have_text("·answer")
    expect(page.locator(".tooltip")).to_be_hidden()  # it would cover the text
    page.keyboard.press("ArrowDown")
    expect(page.locator(".inspector .chosen")).to_have_text("·maybe")
    page.keyboard.press("u")
    page.keyboard.press("u")
    shown(page, "0/5/0/null")


def test_slash_searches_question_mark_helps_and_typing_moves_nothing(page: Page, small: str) -> None:
    go(page, small, "#2/0/0")
    shown(page, "0/2/0/0")
    page.keyboard.press("/")
    page.keyboard.type("njk")
    expect(page.locator("#search")).to_have_value("njk")
    shown(page, "0/2/0/0")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next, previous response")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_hover_is_linked_over_both_panes_and_tells_every_value(page: Page, small: str) -> None:
    go(page, small, "#2/0/0")
    shown(page, "0/2/0/0")
    box = token_box(page, 10)
    page.mouse.move(box["x"] + 5, box["y"] + 10)
    tooltip = page.locator(".tooltip")
    expect(tooltip).to_be_visible()
    facts = dict(
        zip(tooltip.locator("dt").all_inner_texts(), tooltip.locator("dd").all_inner_texts(), strict=True)
    )
    assert facts == {
        "position": "10",
        "id": "10",
        "entropy": "2.5",
        "influence": "3",
        "log-prob": "−1.25",
        "advantage": "1",
    }
    outlined = """([x, y]) => { const c = document.querySelectorAll('.workview .textpane canvas')[1];
      const r = c.width / c.clientWidth;
      return Array.from(c.getContext('2d').getImageData(x * r, y * r, 1, 1).data); }"""
    pane = page.locator('.workview .textpane[data-pane="1"]').bounding_box()
    twin = token_box(page, 10, pane=1)
    assert pane
    edge = [twin["x"] - pane["x"] + 8, twin["y"] - pane["y"] + 2.5]
    page.wait_for_function(f"(edge) => ({outlined})(edge)[3] > 60", arg=edge)
    page.mouse.move(5, 5)
    expect(tooltip).to_be_hidden()


def test_selecting_a_token_marks_it_in_strip_text_and_inspector(page: Page, small: str) -> None:
    go(page, small, "#2/0/0")
    shown(page, "0/2/0/0")
    box = token_box(page, 7, pane=1)
    page.mouse.click(box["x"] + 4, box["y"] + 10)
    expect(page.locator(".inspector .chosen")).to_have_text("·so")
    expect(page.locator(".stripcursor").first).to_be_visible()
    page.wait_for_function("() => location.hash === '#2/0/0/7?run=small'")


def test_selected_text_is_copied_as_the_response_wrote_it(page: Page, small: str) -> None:
    go(page, small, "#2/0/0")
    shown(page, "0/2/0/0")
    token_box(page, 0)
    copied = page.evaluate(
        """() => { const pane = document.querySelector('.workview .textwindow');
          const spans = pane.querySelectorAll('span'); const range = document.createRange();
          range.setStart(spans[0].firstChild, 0); range.setEnd(spans[10].firstChild, 1);
          const selection = getSelection(); selection.removeAllRanges(); selection.addRange(range);
          const event = new ClipboardEvent('copy', {clipboardData: new DataTransfer(), bubbles: true});
          pane.dispatchEvent(event); return event.clipboardData.getData('text/plain'); }"""
    )
    assert copied == "The answer is 42\n so∑ maybe"


def test_the_dom_never_holds_more_than_a_window_of_tokens(serve: Serve, page: Page, tmp_path: Path) -> None:
    import numpy as np

    length = 6000
    step = make_step()
    ids = np.resize(step.responses[0], length)
    wide = np.ones((2, length))
    long = make_step(
        rows=2,
        entropies=wide,
        influence=wide,
        advantage=wide,
        log_probs=-wide,
        response_mask=wide > 0,
        responses=np.stack([ids, ids]),
    )
    folder = write_trace(tmp_path / "long" / "influence_trace", {1: long})
    go(page, serve(folder).url(), "#1/0/0")
    shown(page, "0/1/0/0")
    token_box(page, 0)
    page.locator(".workview .heatmap").evaluate("node => { node.scrollTop = node.scrollHeight / 2 }")
    page.wait_for_function(
        "() => Number(document.querySelector('.workview .textwindow span').dataset.token) > 1000"
    )
    spans = page.locator(".workview .textpane").first.locator("span").count()
    assert 0 < spans <= 2000


def test_a_narrow_window_shows_one_pane_and_lets_one_choose(
    new_page: Callable[..., Page], small: str
) -> None:
    page = new_page(width=520)
    go(page, small, "#2/0/0")
    shown(page, "0/2/0/0")
    panes = page.locator(".workview .textpane")
    expect(panes.nth(0)).to_be_visible()
    expect(panes.nth(1)).to_be_hidden()
    page.get_by_label("Panes").select_option("right")
    expect(panes.nth(0)).to_be_hidden()
    expect(panes.nth(1)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_an_unknown_place_says_so_and_leaves_a_way_out(page: Page, small: str) -> None:
    go(page, small, "#77")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("has no step 77")
    expect(alert).to_contain_text("Choose a step in the timeline")
    page.keyboard.press("n")
    expect(page.get_by_role("heading", level=1)).to_have_text("Step 1")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("#2/9", "has no group 9"),
        ("#2/0/99", "has no response 99"),
        ("#2/0/5", "belongs to group 1: open #2/1/5"),
        ("#2?vs=0:99", "has no step 99"),
        ("#2?vs=7:1", "press c to choose one"),
        ("#2?run=5", "no run 5"),
    ],
)
def test_a_wrong_address_says_what_is_wrong_with_it(page: Page, small: str, place: str, said: str) -> None:
    go(page, small, place)
    expect(page.get_by_role("alert")).to_contain_text(said)


def test_a_step_without_responses_says_so_on_every_page(serve: Serve, page: Page, tmp_path: Path) -> None:
    from archer.trace.schema import TraceStep

    held = make_step().arrays()
    rows = {name: array[:0] for name, array in held.items() if not name.startswith(("prompt_", "uid"))}
    empty = TraceStep.from_batch(**rows, uid=[], prompts=[])  # type: ignore[arg-type]
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: empty, 2: make_step()})
    url = serve(folder).url()
    go(page, url, "#1")
    expect(page.locator(".stepview .notice")).to_contain_text("holds no responses")
    go(page, url, "#2?vs=0:1")
    expect(page.get_by_role("alert")).to_contain_text("Step 1 holds no responses to compare")
    page.keyboard.press("c")
    expect(page.get_by_role("heading", level=1)).to_have_text("Step 2")


def test_what_the_reward_said_and_that_it_could_not_judge_is_told(
    serve: Serve, page: Page, tmp_path: Path
) -> None:
    said = ['{"detail": "expected 42", "extra": {"length": 12, "tone": "polite"}}', '{"failure": "timeout"}']
    unjudged = np.arange(8) == 1
    step = make_step(judgement=[*said, *[""] * 6], unjudged=unjudged)
    write_trace(tmp_path / "run/influence_trace", {1: step})
    url = serve(tmp_path / "run").url()
    go(page, url, "#1/0/0")
    expect(page.locator(".said")).to_have_text(["detail expected 42", "length 12", "tone polite"])
    go(page, url, "#1/0/1")
    expect(page.locator(".said")).to_have_text(["failure timeout"])
    expect(page.locator(".responsetitle")).to_contain_text("unjudged")
    expect(page.locator(".responsetitle .verdict")).to_have_text("?")
    go(page, url, "#1/0/2")
    expect(page.locator(".responsetitle")).to_contain_text("accepted")
    expect(page.locator(".said")).to_have_count(0)


def test_a_response_without_tokens_can_be_opened(serve: Serve, page: Page, tmp_path: Path) -> None:
    mask = make_step().response_mask.copy()
    mask[1] = False
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step(response_mask=mask)})
    go(page, serve(folder).url(), "#1/0/1/5?grain=word&q=x")
    shown(page, "0/1/0/1")
    for key in ("ArrowRight", "End", "ArrowDown", "j"):
        page.keyboard.press(key)
    shown(page, "0/1/0/2")


def test_a_damaged_step_is_reported_in_place(serve: Serve, page: Page, tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step(1), 2: make_step(2)})
    (folder / "steps" / "step_000002.npz").write_bytes(b"PK nonsense")
    go(page, serve(folder).url(), "#2")
    expect(page.get_by_role("alert")).to_contain_text("Step 2 cannot be read")
    page.keyboard.press("p")
    expect(page.get_by_role("heading", level=1)).to_have_text("Step 1")


def test_a_run_without_steps_says_what_to_do(serve: Serve, page: Page, tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "run" / "influence_trace", {})
    go(page, serve(folder).url())
    expect(page.locator(".runview .notice")).to_contain_text("--follow")


@pytest.mark.parametrize("place", ["", "#2", "#2/0/0/3"])
def test_every_control_has_a_name_and_is_a_real_control(page: Page, small: str, place: str) -> None:
    go(page, small, place)
    page.get_by_role("heading", level=1).wait_for()
    nameless = page.evaluate(
        """() => Array.from(document.querySelectorAll('button, select, input'))
          .filter(node => node.checkVisibility())
          .filter(node => !(node.textContent.trim() || node.getAttribute('aria-label')))
          .map(node => node.outerHTML)"""
    )
    assert nameless == []
    clickable = page.evaluate("() => document.querySelectorAll('div[onclick], span[onclick]').length")
    assert clickable == 0


def test_a_choice_made_by_keyboard_keeps_the_focus(page: Page, small: str) -> None:
    go(page, small, "#2/0/0")
    shown(page, "0/2/0/0")
    page.locator("#left-metric").focus()
    page.locator("#left-metric").select_option("log_prob")
    page.wait_for_function("() => location.hash.includes('left=log_prob')")
    assert page.evaluate("document.activeElement.id") == "left-metric"
