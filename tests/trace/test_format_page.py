"""docs/trace-format.md says what the code writes, and its programs run."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import archer.viewer
from archer.trace.arrays import ARRAYS, FORMAT_VERSION
from archer.trace.files import TraceSummary
from archer.trace.reader import TraceReader

PAGE = (Path(__file__).parents[2] / "docs" / "trace-format.md").read_text()
DEMO = Path(archer.viewer.__file__).parent / "demo"
SHAPES = {"token": "[N, L]", "row": "[N]", "flat": "[sum of prompt lengths]", "offsets": "[N + 1]"}


def program(number: int) -> dict[str, object]:
    """Run a program of the page on the demo's run; return its names."""
    source = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[number]
    assert "output/archer/arithmetic" in source
    names: dict[str, object] = {}
    exec(source.replace("output/archer/arithmetic", str(DEMO)), names)
    return names


def test_the_table_is_the_schema():
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (\[.*?\]) \| .* \| (\w+) \|$", PAGE, re.MULTILINE)
    expected = [
        (
            spec.name,
            "text" if spec.dtype == "U" else spec.dtype,
            SHAPES[spec.layout],
            "influence" if spec.required_in == ("influence",) else "both",
        )
        for spec in ARRAYS
    ]
    assert rows == expected
    absent = re.findall(r"^\| `(\w+)` .* may be absent \|", PAGE, re.MULTILINE)
    assert absent == [spec.name for spec in ARRAYS if not spec.required_in]
    assert f"format {FORMAT_VERSION} " in PAGE


@pytest.mark.parametrize("kind", ["entropy", "influence"])
def test_every_key_of_manifest_and_summary_is_named(kind):
    line = json.loads((DEMO / f"{kind}_trace" / "manifest.jsonl").read_text().splitlines()[0])
    others = PAGE.split("## The other files")[1]
    for key in [*line, *TraceSummary.__dataclass_fields__]:
        assert f"`{key}`" in others, key


def test_the_numpy_program_finds_the_most_negative_token(capsys):
    names = program(0)
    reader = TraceReader(DEMO / "influence_trace")
    step = reader.read(names["step"]).arrays
    assert names["step"] == reader.entries[-1].step
    assert step.influence[names["row"], names["place"]] == np.nanmin(step.influence)
    valid = step.responses[names["row"]][step.response_mask[names["row"]]]
    assert names["text"] == reader.vocab.decode(valid).text
    assert names["text"] in capsys.readouterr().out
    entries = TraceReader(DEMO / "entropy_trace").entries
    assert names["mean_entropy"] == {e.step: e.line.statistics.mean_entropy for e in entries}


def test_the_reader_program_prints_every_step_and_decodes(capsys):
    names = program(1)
    entries = names["reader"].entries
    printed = capsys.readouterr().out.splitlines()
    assert [int(line.split()[0]) for line in printed[: len(entries)]] == [entry.step for entry in entries]
    assert names["prompt"] and "".join(names["decoded"].tokens()) == names["decoded"].text
    assert set(names["some"]) == {"reward", "accepted"}
