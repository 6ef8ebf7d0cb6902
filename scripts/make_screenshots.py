"""Takes the pictures of README and docs/viewer.md, light and dark, from the real trace in the package.

    python scripts/make_screenshots.py docs/images --only response sentences rendered metrics
    python scripts/make_screenshots.py docs/images --only paid

The picture of what tokens were paid is of a run that this script trains first, for some seconds.

Needs Chromium (`scripts/ensure_chromium.sh` finds or installs it). Each picture waits until the viewer says
that what it asks for is painted, so that two runs over the same trace make the same pictures.
"""

import argparse
import io
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headless_chromium import launch
from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console

from archer.config import compose
from archer.train import make_run
from archer.viewer.app import app_maker, real_demo_folder
from archer.viewer.runs import Library
from archer.viewer.security import Access
from archer.viewer.serve import BackgroundServer

Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
PAID = "paid"
CREDIT_RUN = (
    "trainer.total_training_steps=2",
    "algorithm.token_credit.mode=nthr",
    "trainer.entropy_trace.enable=True",
    "trainer.influence_trace.enable=True",
    "engine.threads=1",
    "data.val_files=[]",
)
"""Settings of the run that the picture of what tokens were paid is of."""


@dataclass(frozen=True)
class Shot:
    """One picture: where in the viewer, and how large."""

    name: str
    place: str
    painted: str
    """CSS selector of the last thing to appear."""
    width: int = 1440
    height: int = 900
    hover: int | None = None
    """Token to point at."""
    scroll: str | None = None
    """CSS selector of what to bring to the top."""


def shots(step: int, group: int, response: int, token: int, other: int) -> list[Shot]:
    """The pictures of one trace."""
    at = f"#{step}/{group}/{response}"
    chosen = f"{at}/{token}"
    last = ".workview .tokenpanel tbody tr"
    return [
        Shot("run", "", ".runview .chart canvas[data-painted]"),
        Shot("step", f"#{step}?gorder=disagreement&mixed=1", ".groupcard"),
        Shot("scatter", f"#{step}?look=scatter", "canvas.scatter[aria-label]"),
        Shot("search", "#?page=search&sq=therefore", ".runsearchview tbody button"),
        Shot("response", f"{chosen}?beside=nearest", last),
        Shot("metrics", chosen, last, hover=token),
        Shot("sentences", f"{at}?table=units&k=10&grain=sentence", last, scroll=".tokenpanel"),
        Shot("rendered", f"{chosen}?rendered=1", ".rendered[data-done]", scroll=".response"),
        Shot("distinct", f"#{step}/{group}?table=distinct", last),
        Shot(
            "compare",
            f"{at}?vs=0:{other}/{group}",
            ".compareview .datatable tbody tr",
        ),
        Shot("narrow", at, last, width=520),
    ]


def take(browser: Browser, url: str, shot: Shot, scheme: Scheme, folder: Path) -> Path:
    """Write one picture."""
    size = {"width": shot.width, "height": shot.height}
    page: Page = browser.new_page(viewport=size, color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    page.goto(url + shot.place)
    page.locator(shot.painted).first.wait_for()
    if shot.scroll is not None:
        page.locator(shot.scroll).first.evaluate(
            "node => scrollTo(0, node.getBoundingClientRect().top - 170)"
        )
    if shot.hover is not None:
        box = page.locator(f'[data-pane="1"] [data-token="{shot.hover}"]').first.bounding_box()
        if box is not None:
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            page.locator(".tooltip").wait_for()
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    path = folder / f"viewer-{shot.name}-{scheme}.png"
    page.screenshot(path=path)
    page.close()
    return path


def credit_run(folder: Path) -> Path:
    """A run of two steps in which token credit weighed the tokens."""
    settings = [*CREDIT_RUN, f"trainer.default_local_dir={folder}"]
    make_run(compose(settings), Console(file=io.StringIO())).execute()
    return folder


def take_all(trace: Path, wanted: list[Shot], out: Path) -> None:
    """Write the pictures of one trace, light and dark."""
    with (
        BackgroundServer(app_maker(Library.open([trace])), Access.of("127.0.0.1", 0)) as server,
        sync_playwright() as playwright,
    ):
        browser = launch(playwright)
        for shot in wanted:
            for scheme in SCHEMES:
                print(take(browser, server.url(), shot, scheme, out))
        browser.close()


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder for the pictures")
    parser.add_argument("--trace-dir", type=Path, default=real_demo_folder(), help="trace to show")
    parser.add_argument("--step", type=int, default=40)
    parser.add_argument("--group", type=int, default=13)
    parser.add_argument("--response", type=int, default=111)
    parser.add_argument("--token", type=int, default=148, help="token to point at")
    parser.add_argument("--other", type=int, default=60, help="step to compare with")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="take these pictures only")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    every = shots(args.step, args.group, args.response, args.token, args.other)
    take_all(args.trace_dir, [shot for shot in every if not args.only or shot.name in args.only], args.out)
    if not args.only or PAID in args.only:
        with tempfile.TemporaryDirectory() as folder:
            shot = Shot(PAID, "#2/0/3", ".workview .tokenpanel tbody tr")
            take_all(credit_run(Path(folder) / "run"), [shot], args.out)


if __name__ == "__main__":
    main()
