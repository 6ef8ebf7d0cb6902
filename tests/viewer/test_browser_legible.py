"""What a reader needs beside the data: axes, keys of colours, a word while something is on its way."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from pages import go, shown
from playwright.sync_api import Page, Route, expect
from small_traces import make_step, write_trace
from test_run_routes import make_run

from archer.viewer.serve import BackgroundServer

Serve = Callable[..., BackgroundServer]
RECORDER = """(() => { window.texts = []; window.boxes = [];
  const draw = CanvasRenderingContext2D.prototype, { fillText, fillRect } = draw;
  draw.fillText = function (text, x, y) { texts.push({ text, x, y }); fillText.call(this, text, x, y); };
  draw.fillRect = function (x, y, width, height) {
    boxes.push({ of: this.canvas.className, width, height, colour: this.fillStyle });
    fillRect.call(this, x, y, width, height); }; })()"""
"""What canvases are made of, kept as it is drawn."""
NUMBERS = """async () => {
  const { logTicks, roundTicks, tickText } = await import('./static/chart.js');
  const { number, percent, count, spoken } = await import('./static/format.js');
  return [
    roundTicks([31.8, 32.7]).map((tick) => tickText(tick, number)),
    roundTicks([0.2, 0.3]).map((tick) => tickText(tick, percent)),
    logTicks([Math.log10(0.03), Math.log10(0.4)]).map((tick) => number(10 ** tick)),
    logTicks([-3.5, 1.2]).map((tick) => number(10 ** tick)),
    [100000, 4.3e-7, 5e-4].map((value) => number(value)),
    [count(-3728), spoken('rollout_log_prob')],
  ]; }"""


def test_charts_number_their_steps_below_the_plot(serve: Serve, page: Page, tmp_path: Path) -> None:
    page.add_init_script(RECORDER)
    go(page, serve(make_run(tmp_path / "run", 4)).url())
    expect(page.locator('.chart canvas[data-painted="1"]').first).to_be_visible()
    below = page.evaluate("texts.filter(({ y }) => y === 165).map(({ text }) => text)")
    assert {"2", "3"} <= set(below)


def test_ticks_are_told_to_all_their_digits(page: Page, small: str) -> None:
    go(page, small)
    assert page.evaluate(NUMBERS) == [
        ["31.75", "32", "32.25", "32.5", "32.75"],
        ["20 %", "22.5 %", "25 %", "27.5 %", "30 %"],
        ["0.02", "0.05", "0.1", "0.2", "0.5"],
        ["1e−4", "0.001", "0.01", "0.1", "1", "10", "100"],
        ["100,000", "4.3e−7", "5e−4"],
        ["−3,728", "rollout log-prob"],
    ]


def test_a_value_that_never_changes_is_shown_against_zero(serve: Serve, page: Page, tmp_path: Path) -> None:
    page.add_init_script(RECORDER)
    step = make_step(reward=np.ones(8))
    write_trace(tmp_path / "run/influence_trace", {1: step, 2: step})
    go(page, serve(tmp_path / "run").url())
    expect(page.locator('.chart canvas[data-painted="1"]').first).to_be_visible()
    assert page.evaluate("texts.slice(0, 5).map(({ text }) => text)") == ["0", "0.25", "0.5", "0.75", "1"], (
        "the mean reward"
    )


def test_a_logarithmic_axis_leaves_out_what_has_no_logarithm(
    serve: Serve, page: Page, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run")
    (run / "metrics.jsonl").write_text('{"step": 1, "a/none": 0}\n{"step": 2, "a/none": 0}\n')
    go(page, serve(run).url(), "#?charts=a%2F&log=1")
    expect(page.locator('.chart[data-metric="a/none"] .readout')).to_have_text("– · step 2")


def test_a_note_leaves_the_row_of_a_response_as_it_is(serve: Serve, page: Page, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    go(page, serve(run).url(), "#2/0/1")
    shown(page, "0/2/0/1")
    numbers = (
        "Array.from(document.querySelectorAll('.striplabel b'), (node) => node.getBoundingClientRect().y)"
    )
    before = page.evaluate(numbers)
    page.keyboard.press("m")
    page.keyboard.type("look")
    page.get_by_role("button", name="Keep note").click()
    expect(page.locator(".striplabel[data-noted]")).to_have_count(1)
    assert page.evaluate(numbers) == before


def test_a_scatter_says_what_its_colours_are_and_hides_neither(page: Page, small: str) -> None:
    page.add_init_script(RECORDER)
    go(page, small, "#2?look=scatter")
    expect(page.locator(".scatterkey").first).to_have_text("acceptedrejected")
    dots = "boxes.filter(({ of, width, height }) => of === 'scatter' && width === 6 && height === 6)"
    points = page.evaluate(f"{dots}.map(({{ colour }}) => colour)")
    first, last = points.index(points[-1]), len(points) - 1
    assert len(set(points[first:last])) == 2, "points of both kinds are painted in turn"


def test_the_first_look_says_what_red_and_blue_mean(serve: Serve, page: Page, tmp_path: Path) -> None:
    write_trace(tmp_path / "run/influence_trace", {1: make_step()})
    go(page, serve(tmp_path / "run").url())
    expect(page.locator(".telling > .lead")).to_contain_text("Coloured by influence. Red: ")
    expect(page.locator(".telling > .lead")).to_contain_text("blue: the opposite")


def test_a_group_on_its_way_says_so_instead_of_bare_parts(page: Page, small: str) -> None:
    held: list[Route] = []
    page.route("**/groups/**", lambda route: held.append(route))
    go(page, small, "#2/0")
    expect(page.locator(".workview.pending")).to_be_attached()
    expect(page.locator(".workview .legend").first).to_be_hidden()
    for route in held:
        route.continue_()
    page.unroute("**/groups/**")
    shown(page, "0/2/0/null")
    expect(page.locator(".workview .legend").first).to_be_visible()


def test_what_fails_at_the_same_tokens_is_told_once(serve: Serve, page: Page, tmp_path: Path) -> None:
    entropies, log_probs = make_step().entropies.copy(), make_step().log_probs.copy()
    entropies[1, 2], log_probs[1, 2], entropies[2, 1] = np.nan, np.nan, 0.5
    write_trace(tmp_path / "run/influence_trace", {1: make_step(entropies=entropies, log_probs=log_probs)})
    go(page, serve(tmp_path / "run").url(), "#1")
    expect(page.locator(".notice.damaged")).to_have_count(1)
    expect(page.locator(".notice.damaged")).to_contain_text(
        "NaN or infinite entropy, log-prob: the computation failed"
    )


def test_legends_below_each_other_leave_the_text_its_room(new_page: Callable[..., Page], small: str) -> None:
    page = new_page(width=420)
    go(page, small, "#2/0/1?beside=0")
    shown(page, "0/2/0/1")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    box = page.locator(".stickyhead").bounding_box()
    assert box and box["y"] + box["height"] < 0


def test_a_comparison_says_what_its_colours_mean(page: Page, small: str) -> None:
    go(page, small, "#1?vs=0:2")
    expect(page.locator(".compareview .meaning")).to_contain_text("Red: ")
    page.get_by_label("Metric", exact=True).select_option("entropy")
    expect(page.locator(".compareview .meaning")).to_contain_text("less sure")


def test_a_value_of_another_step_is_told_with_its_step(serve: Serve, page: Page, tmp_path: Path) -> None:
    write_trace(tmp_path / "all/influence_trace", {step: make_step(step) for step in range(1, 6)})
    write_trace(tmp_path / "few/influence_trace", {step: make_step(step) for step in (1, 5)})
    go(page, serve(tmp_path / "all", tmp_path / "few").url())
    expect(page.locator('.runview .chart canvas[data-painted="2"]').first).to_be_visible()
    box = page.locator(".runview .chart canvas").first.bounding_box()
    assert box
    page.mouse.move(box["x"] + 0.55 * box["width"], box["y"] + 60)
    expect(page.locator(".charttip:visible")).to_contain_text("step 3")
    expect(page.locator(".charttip:visible")).to_contain_text("few, step 1")


def test_a_run_of_metrics_alone_is_not_told_to_wait(serve: Serve, page: Page, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").write_text('{"step": 1, "actor/entropy": 0.5}\n')
    go(page, serve(tmp_path / "run").url())
    expect(page.locator(".runview > .notice")).to_contain_text("no trace, only metrics")
    expect(page.locator(".runview > .lead")).to_have_text("metrics only, no trace")
    expect(page.locator(".runview .chart")).to_have_count(1)
