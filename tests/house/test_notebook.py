"""examples/read_a_trace.ipynb runs from top to bottom, and each cell shows what it is there for."""

import ast
import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "read_a_trace.ipynb"


def cells(kind: str) -> Iterator[str]:
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == kind:
            yield "".join(cell["source"])


def executed(source: str, names: dict[str, Any]) -> tuple[str, Any]:
    """What a cell prints, and the value of its last line, which a notebook displays."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, NOTEBOOK.name, "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names)
    return printed.getvalue(), value


@pytest.fixture(scope="module")
def shown() -> Iterator[list[tuple[str, Any]]]:
    """All cells, one after the other, in one set of names."""
    matplotlib.use("Agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    yield [executed(source, names) for source in cells("code")]
    import matplotlib.pyplot as plt

    plt.close("all")


def test_it_is_stored_without_outputs_as_a_notebook_of_format_4():
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])


def test_it_loads_the_shipped_trace(shown):
    assert shown[0][1] == [1, 20, 40, 60]
    assert shown[1][0].startswith("56 responses of 7 groups")


def test_the_plot_has_every_token_once(shown):
    tokens = int(re.search(r"([\d,]+) tokens", shown[1][0])[1].replace(",", ""))
    (axes,) = shown[2][1].axes
    assert sum(len(points.get_offsets()) for points in axes.collections) == tokens


def test_a_lowest_token_is_the_one_the_viewer_opens_at(shown):
    line = next(line for line in shown[4][0].splitlines() if line.startswith("response 111"))
    assert "-298." in line and ">> +<<" in line


def test_the_group_stands_in_the_notebook_itself(shown):
    page = shown[5][1]._repr_html_()
    assert page.startswith("<iframe srcdoc=") and len(page) > 100_000 and "http://127.0.0.1" not in page
