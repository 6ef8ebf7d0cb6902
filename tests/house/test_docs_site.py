"""The documentation as a site: without a warning, searchable, in both colours, from its own files alone."""

import functools
import http.server
import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "build_docs.py"
SITE = ROOT / "build" / "site"


def module(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


build_docs = module(SCRIPT)


@pytest.fixture(scope="module")
def site() -> Path:
    """The site, built as `make docs` builds it: with an error for every warning."""
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "arning" not in done.stdout + done.stderr
    return SITE


def test_a_dead_link_or_anchor_is_an_error(tmp_path):
    pages = tmp_path / "pages"
    pages.mkdir()
    (tmp_path / "mkdocs.yml").write_text("site_name: x\ndocs_dir: pages\ntheme: {name: material}\n")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(tmp_path / "mkdocs.yml")]
    found = {}
    for link in ("#here", "other.md", "#nowhere"):
        (pages / "index.md").write_text(f"# Here\n\n[a link]({link})\n")
        found[link] = subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert found == {"#here": True, "other.md": False, "#nowhere": False}


def test_links_to_files_beside_the_site_keep_their_text_and_dead_ones_stay(tmp_path):
    for name in ("a.md", "b.md", "beside.py"):
        (tmp_path / name).touch()
    shown = {tmp_path / "a.md", tmp_path / "b.md"}
    text = "[b](b.md#x), [code](beside.py), [dead](c.md), [web](https://a.b), [here](#y), ![p](p.png)"
    assert build_docs.kept_links(text, tmp_path, shown) == text.replace("[code](beside.py)", "code")


def test_the_pages_are_there_with_what_is_written_by_the_code(site):
    api = (site / "docs/api.html").read_text()
    for name in ("capture", "watch", "select", "scores"):
        assert f'id="archer.influence.tracer.InfluenceTracer.{name}"' in api
    assert 'id="archer.influence.layout.Layout.packed"' in api
    settings = (site / "docs/configuration.html").read_text()
    assert "hessian_mode" in settings and "&lt;G_r, H^-1 g_t&gt;" in settings
    assert (site / "examples/influence_in_your_loop.py").is_file()


@pytest.fixture(scope="module")
def served(site) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def page(served) -> Iterator[Page]:
    chromium = module(ROOT / "scripts" / "headless_chromium.py")
    with sync_playwright() as playwright:
        browser = chromium.launch(playwright)
        page = browser.new_page(color_scheme="light", base_url=served)
        page.set_default_timeout(30_000)
        yield page
        browser.close()


def test_search_leads_to_the_page_of_a_setting(page):
    page.goto("/index.html")
    page.get_by_role("button", name="Search").first.click()
    page.get_by_role("combobox").fill("proportionality_tolerance")
    for _ in range(100):  # results are in a closed shadow root: only that Enter opens the first can be seen
        page.keyboard.press("Enter")
        page.wait_for_timeout(100)
        if "configuration.html" in page.url:
            break
    assert "/docs/configuration.html" in page.url


def test_the_colours_of_the_page_choose_those_of_its_pictures(page):
    page.goto("/index.html")
    picture = page.locator("picture img").first
    shown = "() => document.querySelector('picture img').currentSrc.split('/').pop()"
    picture.wait_for()
    assert page.evaluate(shown) == "viewer-response-light.png"
    page.get_by_title("Dark").click()
    page.wait_for_function(f"({shown})() === 'viewer-response-dark.png'")
    assert page.locator("body").get_attribute("data-md-color-scheme") == "slate"
    page.get_by_title("Light").click()
    page.wait_for_function(f"({shown})() === 'viewer-response-light.png'")


def test_nothing_is_asked_of_other_hosts(page, served):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for path in ("/index.html", "/docs/tutorial.html", "/docs/api.html"):
        page.goto(path)
        page.wait_for_load_state("networkidle")
    assert asked and not [url for url in asked if not url.startswith((served, "data:", "blob:"))]
