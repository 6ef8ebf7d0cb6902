"""Waiting for the viewer's page and finding things on it."""

from playwright.sync_api import Page


def shown(page: Page, place: str) -> None:
    """Wait until a place (run/step/group/response) is on the screen and painted."""
    page.wait_for_function("place => document.documentElement.dataset.shown === place", arg=place)
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def token_box(page: Page, token: int, pane: int = 0) -> dict[str, float]:
    """Where a token stands on the screen."""
    box = page.locator(f'.workview .textpane[data-pane="{pane}"] [data-token="{token}"]').first.bounding_box()
    assert box is not None
    return box  # type: ignore[return-value]


def go(page: Page, url: str, place: str = "") -> None:
    """Open a place of a viewer as from outside."""
    page.goto("about:blank")
    page.goto(url + place)
