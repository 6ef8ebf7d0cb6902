"""docs/findings.md: its links lead to tokens of the shipped trace, whose numbers its first table holds."""

import re
from pathlib import Path

import numpy as np
import pytest

import archer
from archer.trace.reader import LoadedStep, TraceReader

PAGE = (Path(__file__).parents[2] / "docs" / "findings.md").read_text(encoding="utf-8")
LINKS = [tuple(map(int, link)) for link in re.findall(r"#(\d+)/(\d+)/(\d+)/(\d+)", PAGE)]
ROW = re.compile(
    r"#(\d+)/\d+/(\d+)/(\d+)\) \| \d+ \| `(.)` \| (-\d+) \| (\d+)\w+ of (\d+) \| (\d+)\w+ \|", re.M
)


@pytest.fixture(scope="module")
def reader() -> TraceReader:
    return TraceReader(Path(archer.__file__).parent / "viewer" / "demo_real" / "influence_trace")


@pytest.fixture(scope="module")
def steps(reader) -> dict[int, LoadedStep]:
    return {step.step: step for step in reader if isinstance(step, LoadedStep)}


def row_of(step: LoadedStep, response: int) -> int:
    return int(np.flatnonzero(step.arrays.response_index == response)[0])


def test_every_link_leads_to_a_token_of_its_group(steps):
    assert len(LINKS) == 8
    for step, group, response, token in LINKS:
        arrays = steps[step].arrays
        row = row_of(steps[step], response)
        assert arrays.group_id[row] == group and arrays.response_mask[row, token]


def test_the_table_of_slips_holds_what_the_trace_holds(reader, steps):
    rows = ROW.findall(PAGE)
    assert len(rows) == 4
    for step, response, token, text, influence, lowest, length, unlikely in rows:
        arrays = steps[int(step)].arrays
        row, place = row_of(steps[int(step)], int(response)), int(token)
        mask = arrays.response_mask[row]
        assert reader.vocab.decode([int(arrays.responses[row, place])]).text == text
        assert int(mask.sum()) == int(length)
        scores, log_probs = arrays.influence[row][mask], arrays.log_probs[row][mask]
        assert round(float(scores[place])) == int(influence)
        assert int((scores < scores[place]).sum()) + 1 == int(lowest)
        assert int((log_probs < log_probs[place]).sum()) + 1 == int(unlikely)
