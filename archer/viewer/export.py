"""A group of a step as one HTML file that opens anywhere, also from a disk: the same client, with its data
inside.
"""

import base64
import gzip
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

from archer.errors import ArcherError
from archer.files import replace_atomically
from archer.viewer import queries
from archer.viewer.client import INDEX, bundle, client_assets
from archer.viewer.runs import Library, TracedRun
from archer.viewer.steps import StepData, load_step

WORKER = "searchworker.js"
"""The client's script that is no module of the page: it runs in a thread of its own."""
_STYLESHEET = re.compile(r'<link rel="stylesheet" href="static/([\w.-]+)">')
_SERVED_ONLY = re.compile(r"\s*(<link [^>]*>|<script [^>]*></script>)")


def export_group(run: TracedRun, step: int, group: int) -> str:
    """The page for one group; raises `ArcherError` when the step or the group is not there."""
    data = load_step(run, step)
    rows = data.rows_of_group(group)
    head = queries.step_json(run, data)
    head["groups"] = [entry for entry in head["groups"] if entry["group"] == group]
    library = queries.library_json(Library([run]), follow=False) | {"static": True}
    for trace in library["runs"][0]["traces"]:
        trace["folder"] = Path(trace["folder"]).name  # where it lay is nobody else's business
    timeline = _only_step(queries.timeline_json(run), step)
    files: dict[str, bytes] = {
        "library": json.dumps(library).encode(),
        "timeline": json.dumps(timeline).encode(),
        "head": json.dumps(_only_rows(head, rows.tolist())).encode(),
        "pairs": json.dumps(_pairs(data, group, rows.tolist())).encode(),
        "tokens": queries.rows_packed(run, data, rows, None, text=True),
        "searchworker": client_assets()[WORKER].content,
    }
    return _page(files, title=f"Archer · {run.name} · step {step} · group {group}")


def _pairs(data: StepData, group: int, rows: list[int]) -> dict[str, Any]:
    """The pair to open with, and for every response the one to lay beside it."""
    first = queries.pair_json(data, group, None)
    return {"first": first, "of": {row: queries.pair_json(data, group, row) for row in rows}}


def write_group(run: TracedRun, step: int, group: int, path: Path) -> int:
    """Write the page, whole or not at all; returns its size in bytes."""
    content = export_group(run, step, group).encode()
    if not path.parent.is_dir():
        raise ArcherError(f"{path.parent} is not a folder; make it first or choose another place.")
    try:
        return replace_atomically(path, lambda file: file.write(content), fsync=False)
    except OSError as error:
        raise ArcherError(f"{path} cannot be written: {error}.") from error


def _page(files: dict[str, bytes], title: str) -> str:
    assets = {name: asset.content.decode() for name, asset in client_assets().items()}
    page = assets[INDEX]
    styles = "\n".join(assets[name] for name in _STYLESHEET.findall(page))
    script = bundle({name: text for name, text in assets.items() if name.endswith(".js")})
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(styles)}'; "
        "worker-src blob:; img-src data:; base-uri 'none'; form-action 'none'"
    )
    blocks = "\n".join(
        f'<script type="application/x-archer" id="data-{name}">{_encoded(content)}</script>'
        for name, content in files.items()
    )
    page = _SERVED_ONLY.sub("", page)
    meta = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">'
    page = page.replace("<head>", f"<head>\n{meta}", 1)
    page = re.sub(r"<title>.*?</title>", lambda _: f"<title>{html.escape(title)}</title>", page, count=1)
    page = page.replace("</head>", f"<style>{styles}</style>\n</head>", 1)
    return page.replace("</body>", f"{blocks}\n<script>{script}</script>\n</body>", 1)


def _encoded(content: bytes) -> str:
    """Base64 has no character that could end the element it stands in."""
    return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode()


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _only_step(timeline: dict[str, Any], step: int) -> dict[str, Any]:
    place = timeline["steps"].index(step)
    columns = {name: [timeline[name][place]] for name in ("steps", "bytes", "seconds", "time")}
    series = {name: [column[place]] for name, column in timeline["series"].items()}
    problems = {key: value for key, value in timeline["problems"].items() if key == step}
    return {**columns, "series": series, "problems": problems}


def _only_rows(head: dict[str, Any], rows: list[int]) -> dict[str, Any]:
    """Facts of other responses stay home; the rows keep their numbers through `row_numbers`."""

    def chosen(column: list[Any] | None) -> list[Any] | None:
        return None if column is None else [column[row] for row in rows]

    metrics = [
        metric | {name: chosen(metric[name]) for name in ("row_mean", "row_mean_abs", "row_failed")}
        for metric in head["metrics"]
    ]
    return head | {
        "rows": {name: chosen(column) for name, column in head["rows"].items()},
        "row_numbers": rows,
        "metrics": metrics,
    }
