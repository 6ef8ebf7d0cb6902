"""Tasks on the group page, with the clicks they take: which step is wrong, why was it rejected."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pages import go, shown, token_box
from playwright.sync_api import Page, expect
from small_traces import TEXT, entropy_part, make_step, write_trace

from archer.trace.schema import TraceStep
from archer.viewer.app import REAL_DEMO_START, app_maker, demo_folder, real_demo_folder
from archer.viewer.runs import Library
from archer.viewer.security import Access
from archer.viewer.serve import BackgroundServer

Serve = Callable[..., BackgroundServer]
WRONG = r"\[ 4K - 4 + K = 92 \]"


@pytest.fixture(scope="module")
def demo() -> Iterator[str]:
    """What `archer view --demo` serves."""
    make = app_maker(Library.open([real_demo_folder(), demo_folder()]), start=REAL_DEMO_START)
    with BackgroundServer(make, Access.of("127.0.0.1", 0)) as server:
        yield server.url()


class Clicks:
    """Counts the clicks of a task."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, target: object) -> None:
        target.click()  # type: ignore[attr-defined]
        self.made += 1


def judged() -> TraceStep:
    rows = 8
    step = make_step(
        ground_truth=["42"] * rows,
        extracted_answer=["42", "24", "42", "", "42", "7", "42", "7"],
        reason=["", "expected 42, found 24", "", "no \\boxed{} in the response"] * 2,
        data_source=["gsm8k"] * rows,
        truncated=np.arange(rows) == 3,
    )
    return replace(step, seed=np.arange(rows) + 2**60)


def test_the_demo_opens_at_the_wrong_step_of_a_real_model(page: Page, demo: str) -> None:
    """No click: the rejected response, the accepted one beside it, the token that influence marks."""
    go(page, demo)
    shown(page, "0/40/13/111")
    expect(page.locator(".pair .responsetitle").nth(0)).to_contain_text("Response 111 rejected")
    expect(page.locator(".pair .responsetitle").nth(1)).to_contain_text("accepted")
    expect(page.locator(".inspector .chosen")).to_have_text("·+")
    expect(page.get_by_role("heading", level=1)).to_be_in_viewport()
    assert page.evaluate("scrollY") == 0, "head, strips and the marked token fit one screen"
    facts = page.locator(".inspector dl").inner_text()
    assert "−298.2" in facts and "0.2693" in facts
    box = token_box(page, 148)
    assert 0 < box["y"] < 900 - box["height"], "the token is in sight"
    expect(page.locator(".meaning").nth(1)).to_contain_text(
        "Red: raising this token's probability also raises that of the accepted responses"
    )
    page.reload()
    shown(page, "0/40/13/111")
    page.locator(".brand").click()
    page.locator(".runview").wait_for()
    page.locator(".runview").get_by_role("heading").first.wait_for()


def test_a_narrow_window_has_both_legends_of_two_responses_and_one_of_one(
    new_page: Callable[..., Page], demo: str
) -> None:
    page = new_page(width=1000)
    go(page, demo, "#40/13/111?beside=nearest")
    shown(page, "0/40/13/111")
    heads = [page.locator(f'.panehead[data-pane="{pane}"]') for pane in (0, 1)]
    boxes = [head.bounding_box() for head in heads]
    assert boxes[0] and boxes[1]
    assert boxes[0]["x"] == boxes[1]["x"] and boxes[1]["y"] >= boxes[0]["y"] + boxes[0]["height"]
    assert all(box["width"] > 700 and box["height"] < 90 for box in boxes if box)
    page.get_by_role("button", name="Two metrics").click()
    expect(heads[1]).to_be_hidden()
    expect(heads[0]).to_be_visible()


def test_a_list_of_tokens_keeps_its_verdicts_in_a_narrow_window(
    new_page: Callable[..., Page], demo: str
) -> None:
    page = new_page(width=1000)
    go(page, demo, "#40?look=lowest")
    table = page.locator(".stepview table").first
    expect(table.locator("tbody tr").first.locator("td").last).to_have_text("rejected")
    assert table.evaluate("node => node.offsetWidth <= node.parentElement.clientWidth")


def test_which_sentence_is_wrong_takes_one_click(page: Page, demo: str) -> None:
    click = Clicks()
    go(page, demo, "#40/13")
    page.locator(".pair .textpane").first.wait_for()
    click(page.get_by_role("button", name="Sentences & lines"))
    expect(page.locator(".halves .lowest tbody tr").first).to_contain_text(WRONG)
    assert click.made == 1
    click(page.locator(".halves .lowest tbody tr").first.locator("button"))
    shown(page, "0/40/13/111")
    expect(page.locator(".inspector .chosen")).to_have_text("·+")
    expect(page.locator(".pair .textpane").first).to_be_in_viewport()
    assert click.made == 2


def test_why_rejected_takes_no_click(serve: Serve, page: Page, tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: judged()})
    go(page, serve(folder).url(), "#1/0")
    first = page.locator(".pair .responsetitle").first
    expect(first).to_contain_text("Response 1 rejected")
    expect(first).to_contain_text("answer 24")
    expect(first).to_contain_text("reason expected 42, found 24")
    expect(page.locator(".truth")).to_have_text("ground truth 42")
    labels = page.locator(".striplabel")
    assert [label.inner_text().split() for label in labels.all()] == [
        ["✓", "0", "42", "14"],
        ["✕", "1", "24", "14"],
        ["✓", "2", "42", "13"],
        ["✕", "3", "no", "answer", "✂", "12"],
    ]
    go(page, serve(folder).url(), "#1/0/3")
    shown(page, "0/1/0/3")
    title = page.locator(".responsetitle")
    expect(title).to_contain_text("cut off the response hit the length limit")
    expect(title).to_contain_text(f"gsm8k · seed {2**60 + 3}")


def test_a_group_opens_with_text_and_where_the_two_part(serve: Serve, page: Page, tmp_path: Path) -> None:
    ids = np.tile(np.array(TEXT), (8, 1))
    ids[1, 4] = 5  # `22` in place of `42`
    ids[3] = 7
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step(responses=ids)})
    go(page, serve(folder).url(), "#1/0")
    expect(page.locator(".pairsummary")).to_contain_text("They part at token 4: “2” here, “4” there.")
    expect(page.locator(".pair .textpane")).to_have_count(2)
    page.locator("#next-difference").click()
    shown(page, "0/1/0/1")
    expect(page.locator(".inspector .chosen")).to_have_text("2")
    page.get_by_role("button", name="Two metrics").click()
    shown(page, "0/1/0/1")
    expect(page.locator(".pair")).to_have_count(0)
    expect(page.locator(".workview .positionchart")).to_have_count(2)


def test_a_group_that_is_not_mixed_opens_with_text_too(serve: Serve, page: Page, tmp_path: Path) -> None:
    step = make_step(accepted=np.ones(8, bool))
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: step})
    go(page, serve(folder).url(), "#1/1")
    expect(page.locator(".pair .responsetitle").nth(0)).to_contain_text("Response 4")
    expect(page.locator(".pair .responsetitle").nth(1)).to_contain_text("Response 5")


def test_alignment_is_the_longest_common_subsequence(page: Page, small: str) -> None:
    go(page, small)
    assert (
        page.evaluate(
            """async () => { const { difference } = await import('./static/difference.js');
          const longest = (a, b) => { const row = new Array(b.length + 1).fill(0);
            for (const x of a) { let before = 0; for (let j = 1; j <= b.length; j += 1) { const old = row[j];
              row[j] = x === b[j - 1] ? before + 1 : Math.max(row[j], row[j - 1]); before = old; } }
            return row[b.length]; };
          let seed = 7; const random = n => (seed = (seed * 48271) % 2147483647) % n;
          for (let trial = 0; trial < 200; trial += 1) {
            const make = () => Int32Array.from({ length: random(40) }, () => random(2 + trial % 6));
            const [a, b] = [make(), make()]; const { partner } = difference(a, b);
            let matched = 0, last = -1;
            for (const [i, j] of partner[0].entries()) if (j >= 0) {
              if (a[i] !== b[j] || j <= last || partner[1][j] !== i) return 'not aligned';
              last = j; matched += 1; }
            if (matched !== longest(a, b)) return `${matched} of ${longest(a, b)}`; }
          const long = () => Int32Array.from({ length: 131072 }, () => random(50000));
          const began = performance.now();
          difference(long(), long()); return performance.now() - began < 5000 ? 'right' : 'slow'; }"""
        )
        == "right"
    )


def test_numbers_that_failed_are_shown_as_failures(serve: Serve, page: Page, tmp_path: Path) -> None:
    whole = make_step()
    entropies = np.array(whole.entropies)
    entropies[0, :2] = np.nan, np.inf
    entropies[0, 4] = -4.6e-5
    folder = tmp_path / "run"
    step = make_step(entropies=np.pad(entropies, ((0, 0), (0, len(TEXT) - entropies.shape[1]))))
    write_trace(folder / "influence_trace", {1: step})
    go(page, serve(folder).url(), "#1/0/0/0")
    shown(page, "0/1/0/0")
    facts = dict(
        zip(
            page.locator(".inspector dt").all_inner_texts(),
            page.locator(".inspector dd").all_inner_texts(),
            strict=True,
        )
    )
    assert facts["entropy"] == "NaN: failed"
    legend = page.locator(".panehead").first
    expect(legend).to_contain_text("2 failed")
    expect(legend.locator(".ticks")).not_to_contain_text("−")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".inspector")).to_contain_text("+inf: failed")
    expect(page.locator(".workview > .hint")).to_be_hidden()


def test_the_marks_of_the_loss_can_be_shown(serve: Serve, page: Page, tmp_path: Path) -> None:
    shape = (8, len(TEXT))
    marks = {
        "rollout_log_probs": np.full(shape, -1.0),
        "ratio": np.full(shape, 1.25),
        "clipped": np.ones(shape, np.int8),
        "loss_weight": np.full(shape, 0.5),
        "credit": np.full(shape, 2.0),
    }
    step = make_step(log_probs=np.full(shape, -0.75), **marks)
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: step})
    go(page, serve(folder).url(), "#1/0/0/2?left=clipped&right=ratio_change")
    shown(page, "0/1/0/0")
    facts = page.locator(".inspector dl").inner_text().replace("\n", " ")
    for said in (
        "rollout log-prob −1",
        "log-prob difference 0.25",
        "ratio change 0.25",
        "clipped 1",
        "credit 2",
    ):
        assert said in facts
    expect(page.locator("#left-metric")).to_have_value("clipped")
    expect(page.locator(".meaning").first).to_contain_text("clipped at the high side")


def test_a_trace_without_influence_opens_with_text(serve: Serve, page: Page, tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "run" / "entropy_trace", {1: entropy_part(make_step())}, kind="entropy")
    go(page, serve(folder).url(), "#1/0")
    expect(page.locator(".pair .textpane")).to_have_count(2)
