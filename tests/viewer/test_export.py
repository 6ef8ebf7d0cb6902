"""A group as one file, the joined script, the commands and the other hosts."""

import base64
import gzip
import hashlib
import importlib
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from small_traces import make_step, unpack, write_trace
from typer.testing import CliRunner

from archer.errors import ArcherError
from archer.viewer import app, commands, show
from archer.viewer.client import BundleError, bundle
from archer.viewer.export import export_group, write_group
from archer.viewer.runs import TracedRun


@pytest.fixture
def cli() -> typer.Typer:
    application = typer.Typer()
    application.command("view")(commands.view)
    application.command("export")(commands.export)
    return application


def block(page: str, name: str) -> bytes:
    match = re.search(f'id="data-{name}">([^<]*)<', page)
    assert match
    return gzip.decompress(base64.b64decode(match[1]))


def test_the_page_holds_one_group_and_nothing_of_the_others(run_folder: Path) -> None:
    page = export_group(TracedRun(run_folder), 3, 1)
    header, _ = unpack(block(page, "tokens"))
    assert header["rows"] == [4, 5, 6, 7]
    head = json.loads(block(page, "head"))
    assert head["row_numbers"] == [4, 5, 6, 7]
    held = [column for column in head["rows"].values() if column is not None]
    assert len(held) > 5 and all(len(column) == 4 for column in held)
    assert json.loads(block(page, "timeline"))["steps"] == [3]
    assert str(run_folder) not in page
    assert str(run_folder) not in json.dumps(json.loads(block(page, "library")))


def test_the_pages_policy_allows_exactly_its_own_script_and_style(run_folder: Path) -> None:
    page = export_group(TracedRun(run_folder), 3, 0)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    style = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert len(script) == len(style) == 1
    for text in (script[0], style[0]):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"sha256-{digest}" in policy[1]
    assert "unsafe" not in policy[1]
    assert "static/" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_a_hostile_run_name_stays_text(tmp_path: Path) -> None:
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    write_trace(folder / "influence_trace", {1: make_step()})
    page = export_group(TracedRun(folder), 1, 0)
    assert "<img" not in page


def test_modules_are_joined_dependencies_first() -> None:
    modules = {
        "main.js": 'import { twice as double } from "./math.js";\nconst out = double(4);\n',
        "math.js": "const factor = 2;\nexport function twice(x) {\n  return factor * x;\n}\n",
    }
    joined = bundle(modules)
    assert joined.index('modules["math.js"]') < joined.index('modules["main.js"]')
    assert "import" not in joined and "export" not in joined
    assert "twice: double" in joined


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ({"main.js": 'import x from "./a.js";', "a.js": ""}, "cannot join"),
        ({"main.js": "export default 3;"}, "cannot join"),
        ({"main.js": 'import { x } from "./gone.js";'}, "not there"),
        ({"main.js": 'import { x } from "./a.js";', "a.js": 'import { y } from "./main.js";'}, "circle"),
        ({"main.js": 'const x = await import("./a.js");'}, "cannot join"),
    ],
)
def test_what_cannot_be_joined_is_refused(modules: dict[str, str], said: str) -> None:
    with pytest.raises(BundleError, match=said):
        bundle(modules)


def test_the_export_command_writes_a_file(cli: typer.Typer, run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "group.html"
    arguments = ["export", "--trace-dir", str(run_folder), "--step", "2", "--group", "1", str(out)]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert "step 2, group 1" in result.output
    assert out.read_text().startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == [out]


def test_places_that_cannot_be_written_are_named(run_folder: Path, tmp_path: Path) -> None:
    run = TracedRun(run_folder)
    with pytest.raises(ArcherError, match="is a folder"):
        write_group(run, 1, 0, tmp_path)
    with pytest.raises(ArcherError, match="is not a folder"):
        write_group(run, 1, 0, tmp_path / "gone" / "x.html")
    with pytest.raises(ArcherError, match="no group 9"):
        write_group(run, 1, 9, tmp_path / "x.html")


def test_view_serves_folders_given_either_way_and_the_demo(
    cli: typer.Typer, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Any] = []
    monkeypatch.setattr(
        "archer.viewer.serve.serve", lambda make, access, ready: (served.append(access), ready(access))
    )
    folder = str(run_folder)
    result = CliRunner().invoke(
        cli, ["view", folder, "--trace-dir", folder, "--demo"], catch_exceptions=False
    )
    assert "http://127.0.0.1:7862/" in result.output
    assert result.output.startswith("Viewing small, small (2), gsm8k-qwen2.5-coder-0.5b, demo")
    many = tmp_path / "runs"
    for name in ("good", "bad"):
        shutil.copytree(run_folder, many / name)
    (many / "bad/influence_trace/summary.json").write_text("{")
    result = CliRunner().invoke(cli, ["view", str(many)], catch_exceptions=False)
    assert result.output.startswith(f"Viewing small\nLeft out: {many}/bad: ")
    assert "is not valid JSON" in result.output
    result = CliRunner().invoke(
        cli, ["view", folder, "--host", "0.0.0.0", "--port", "0"], catch_exceptions=False
    )
    assert f"?token={served[2].token}" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["view"], "--demo"),
        (["view", "/nowhere/at/all"], "not a folder"),
        (["view", "--demo", "--gradio"], r"pip install .*\[gradio\]"),
    ],
)
def test_view_says_what_is_missing(
    cli: typer.Typer, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.setattr("archer.viewer.serve.serve", lambda make, access, ready: make(access))
    with pytest.raises(ArcherError, match=said):
        CliRunner().invoke(cli, arguments, catch_exceptions=False)


def test_a_taken_port_is_said_plainly(run_folder: Path) -> None:
    from archer.viewer.serve import bind

    first = bind("127.0.0.1", 0)
    first.listen()
    with pytest.raises(ArcherError, match="Choose another with --port"):
        bind("127.0.0.1", first.getsockname()[1])
    first.close()


def test_a_notebook_gets_a_frame_and_can_close_it(run_folder: Path) -> None:
    import httpx

    shown = show(run_folder, step=2, group=1)
    assert shown.url is not None
    assert shown.url in shown._repr_html_()
    address = shown.url.split("#")[0]
    answer = httpx.get(address)
    assert "http://localhost:*" in answer.headers["content-security-policy"]
    shown.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)


def test_an_embedded_notebook_page_needs_no_server(run_folder: Path) -> None:
    shown = show(run_folder, embed=True)
    assert shown.url is None
    assert "srcdoc=" in shown._repr_html_()
    assert "data-tokens" in shown._repr_html_()


@pytest.mark.parametrize(
    ("folder", "most"), [(app.demo_folder(), 500_000), (app.real_demo_folder(), 1_500_000)]
)
def test_the_demos_are_small_whole_and_have_influence(folder: Path, most: int) -> None:
    from archer.trace.check import check_trace
    from archer.trace.reader import find_traces

    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < most
    reports = [check_trace(path) for path in find_traces(folder)]
    assert [report.kind for report in reports] == ["entropy", "influence"]
    assert all(report.whole for report in reports)
    assert reports[1].influence_tokens


def test_the_viewer_room_imports_without_its_extra() -> None:
    """`archer` must start where FastAPI is not installed; only the viewer itself may ask for it."""
    module = importlib.import_module("archer.viewer.commands")
    assert not {"fastapi", "uvicorn"} & set(vars(module))
