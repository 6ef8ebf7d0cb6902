"""How fast the viewer is in a real browser, beside the span-per-token page of the original design.

    python benchmarks/viewer.py

Makes a trace of 16 responses x 8192 tokens and one of 1000 steps, starts the viewer in a process of its own,
drives Chromium, and prints a table. Times run from the click to the second frame after the answer is on the
screen; each is the median of several, with the worst beside it, and it is the worst that must meet the goal.
The scroll figure is the 95th percentile of the time between frames.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import psutil
from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from headless_chromium import launch
from viewer_pages import SpanPages
from viewer_traces import make_step, make_vocab, write_trace

FRAMES = "await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));"
UNTIL = (
    "while (document.documentElement.dataset.shown !== place) await new Promise(done => setTimeout(done));"
)
CLICK = f"""async ([selector, place]) => {{ const start = performance.now();
  document.querySelector(selector).click(); {UNTIL} {FRAMES} return performance.now() - start; }}"""
PRESS = f"""async ([key, place]) => {{ const start = performance.now();
  document.dispatchEvent(new KeyboardEvent('keydown', {{ key, bubbles: true }})); {UNTIL} {FRAMES}
  return performance.now() - start; }}"""
GAMMA = f"""async (value) => {{ const node = document.getElementById('gamma'); node.value = value;
  const start = performance.now(); node.dispatchEvent(new Event('input')); {FRAMES}
  return performance.now() - start; }}"""
SCROLL = """async (selector) => { const node = document.querySelector(selector); const times = [];
  node.scrollTop = 0; await new Promise(done => setTimeout(done, 400)); let last = performance.now();
  for (let i = 0; i < 240; i++) { node.scrollTop += 120; await new Promise(requestAnimationFrame);
    const now = performance.now(); times.push(now - last); last = now; }
  return times.sort((a, b) => a - b)[Math.floor(0.95 * times.length)]; }"""
SPANS = f"""async (path) => {{ const start = performance.now();
  const parts = (await (await fetch(path)).text()).split('\\0');
  document.querySelectorAll('.pane').forEach((pane, index) => {{ pane.innerHTML = parts[index]; }});
  {FRAMES} return performance.now() - start; }}"""


@dataclass(frozen=True)
class Figure:
    """Several measurements of one thing, in milliseconds."""

    name: str
    goal: float
    values: tuple[float, ...]
    spans: float | None = None

    def cells(self) -> tuple[str, ...]:
        """Columns of the table."""
        met = "yes" if max(self.values) < self.goal else "NO"
        other = "-" if self.spans is None else f"{self.spans:,.0f}"
        return (
            self.name,
            f"< {self.goal:,.0f}",
            f"{median(self.values):,.0f}",
            f"{max(self.values):,.0f}",
            met,
            other,
        )


@contextmanager
def viewer(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """The viewer in a process of its own: its address and the process."""
    code = "import typer; from archer.viewer import commands; typer.run(commands.view)"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder), "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    url = next(line.strip() for line in process.stdout if line.strip().startswith("http://"))
    try:
        yield url, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def measure_large(page: Page, url: str, steps: int, text: int) -> dict[str, list[float]]:
    """Times on a trace of 16 x 8192 tokens whose text is shown in `text` panes."""
    found: dict[str, list[float]] = {
        name: [] for name in ("strip", "response", "metrics", "recolour", "scroll")
    }
    for step in range(1, steps + 1):
        page.goto("about:blank")
        page.goto(f"{url}#{step}")
        page.locator(".groupcard").wait_for()
        page.wait_for_timeout(700)
        found["strip"].append(page.evaluate(CLICK, [".groupcard", f"0/{step}/0/null"]))
        page.wait_for_timeout(900)
    for row in range(8):
        found["response"].append(page.evaluate(PRESS, ["j", f"0/{steps}/0/{row}"]))
        page.wait_for_timeout(500)
    page.locator("[aria-label=Text] [data-key=single]").click()
    page.wait_for_timeout(900)
    panes = page.locator(".workview .textpane:visible").count()
    assert panes == text, f"the text is shown in {panes} panes, expected {text}"
    for row in range(8, 16):
        found["metrics"].append(page.evaluate(PRESS, ["j", f"0/{steps}/0/{row}"]))
        page.wait_for_timeout(500)
    for value in (0.5, -0.5, 1.0, -1.0, 0.25, 0):
        found["recolour"].append(page.evaluate(GAMMA, str(value)))
        page.wait_for_timeout(300)
    found["scroll"] += [page.evaluate(SCROLL, ".workview .heatmap") for _ in range(3)]
    return found


def measure_long(page: Page, url: str) -> list[float]:
    """Times from asking for the page to the second frame with the charts of 1000 steps."""
    times = []
    for _ in range(5):
        page.goto("about:blank")
        page.goto(url, wait_until="commit")
        page.locator(".runview .chart canvas").first.wait_for()
        times.append(page.evaluate(f"async () => {{ {FRAMES} return performance.now(); }}"))
    return times


def walk(page: Page, url: str, steps: int, process: psutil.Process) -> tuple[float, float]:
    """Memory of the server in MiB before and after every step was opened."""
    before = process.memory_info().rss
    page.goto(url)
    page.evaluate(
        """async (steps) => { for (let step = 1; step <= steps; step++)
          await (await fetch(`api/runs/0/steps/${step}`)).text(); }""",
        steps,
    )
    return before / 2**20, process.memory_info().rss / 2**20


def measure_spans(page: Page) -> dict[str, float]:
    """The same on the span-per-token page: in Gradio where it is installed, else on a plain page."""
    pages = SpanPages(make_step(16, 8192, seed=1), make_vocab())
    if find_spec("gradio"):
        from viewer_gradio import PANE, SHOW, gradio_pages

        with gradio_pages(pages) as server:
            page.goto(server.url())
            page.locator("#group").wait_for()
            page.wait_for_timeout(1000)
            found = {"response": median(page.evaluate(SHOW, f"response-{row}") for row in (0, 1, 2))}
            found["scroll"] = page.evaluate(SCROLL, PANE)
            found["strip"] = page.evaluate(SHOW, "group")
            found["scroll_group"] = page.evaluate(SCROLL, PANE)
    else:
        page.goto(pages.url)
        found = {"response": median(page.evaluate(SPANS, f"response/{row}") for row in (0, 1, 2))}
        found["scroll"] = page.evaluate(SCROLL, ".pane")
        found["strip"] = page.evaluate(SPANS, "group")
        found["scroll_group"] = page.evaluate(SCROLL, ".pane")
    pages.close()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000, help="steps of the long trace")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        write_trace(folder / "large", steps=5, rows=16, length=8192)
        write_trace(folder / "paid", steps=5, rows=16, length=8192, credit=True)
        write_trace(folder / "long", steps=args.steps, rows=8, length=40, group_size=4)
        browser = launch(playwright)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        with viewer(folder / "large") as (url, _):
            large = measure_large(page, url, steps=5, text=2)
        with viewer(folder / "paid") as (url, _):
            paid = measure_large(browser.new_page(viewport={"width": 1440, "height": 900}), url, 5, text=3)
        with viewer(folder / "long") as (url, process):
            opening = measure_long(page, url)
            before, after = walk(page, url, args.steps, process)
        spans = measure_spans(browser.new_page(viewport={"width": 1440, "height": 900}))
        browser.close()
    figures = [
        Figure("first group strip after the click, 16 x 8192", 150, tuple(large["strip"]), spans["strip"]),
        Figure("switching response, 8192 tokens, two beside each other", 100, tuple(large["response"])),
        Figure("switching response, two metrics", 100, tuple(large["metrics"]), spans["response"]),
        Figure("recolouring, two metrics", 50, tuple(large["recolour"]), spans["response"]),
        Figure("scroll frame p95, two metrics", 25, tuple(large["scroll"]), spans["scroll"]),
        Figure("first group strip, with what was paid", 150, tuple(paid["strip"])),
        Figure("switching response, two beside each other, with it", 100, tuple(paid["response"])),
        Figure("switching response, three metrics", 100, tuple(paid["metrics"])),
        Figure("recolouring, three metrics", 50, tuple(paid["recolour"])),
        Figure("scroll frame p95, three metrics", 25, tuple(paid["scroll"])),
        Figure(f"opening a run of {args.steps} steps", 1000, tuple(opening)),
    ]
    table = Table(title="the viewer in Chromium, milliseconds")
    for column in ("", "goal", "median", "worst", "met", "span per token"):
        table.add_column(column, justify="left" if not column else "right")
    for figure in figures:
        table.add_row(*figure.cells())
    console = Console(width=110)
    console.print(table)
    console.print(f"span page with all 16 responses: scroll frame p95 {spans['scroll_group']:,.0f} ms")
    console.print(
        f"server memory before and after reading all {args.steps} steps: {before:.0f} and {after:.0f} MiB"
    )
    if find_spec("gradio"):
        console.print("the last column is a Gradio page: two gr.HTML panes, one span per token.")
    else:
        console.print(
            "Gradio is not installed: the last column is a plain page with one span per token, markup set as "
            "gr.HTML sets it, without Gradio's own transport and front end."
        )
    console.print(f"load average while measuring: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
