"""Takes the pictures of README and docs/viewer.md, light and dark, from the real trace in the package.

    python scripts/make_screenshots.py docs/images --only response sentences rendered metrics

Needs Chromium (`scripts/ensure_chromium.sh` finds or installs it). Each picture waits until the viewer says
that what it asks for is painted, so that two runs over the same trace make the same pictures.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headless_chromium import launch
from playwright.sync_api import Browser, Page, sync_playwright

from archer.viewer.app import app_maker, real_demo_folder
from archer.viewer.runs import Library
from archer.viewer.security import Access
from archer.viewer.serve import BackgroundServer

Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")


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
    library = Library.open([args.trace_dir])
    with (
        BackgroundServer(app_maker(library), Access.of("127.0.0.1", 0)) as server,
        sync_playwright() as playwright,
    ):
        browser = launch(playwright)
        for shot in shots(args.step, args.group, args.response, args.token, args.other):
            if args.only and shot.name not in args.only:
                continue
            for scheme in SCHEMES:
                print(take(browser, server.url(), shot, scheme, args.out))
        browser.close()


if __name__ == "__main__":
    main()
