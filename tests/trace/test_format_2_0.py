"""Traces of format 2.0 still open. `format_2_0/` was written by the last version that wrote it."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from archer.trace.arrays import ARRAYS
from archer.trace.check import check_trace
from archer.trace.convert import convert_trace
from archer.trace.reader import TraceReader
from archer.trace.writer import TraceWriter

OLD = Path(__file__).parent / "format_2_0"
NEW = {
    *("data_source", "ground_truth", "extracted_answer", "reason", "truncated", "seed"),
    *("rollout_log_probs", "ratio", "clipped", "loss_weight", "credit", "credit_score", "paid"),
}
LENGTHS = {"entropy": [8, 8, 8, 5, 8, 8], "influence": [5, 8]}


@pytest.mark.parametrize("kind", ["entropy", "influence"])
def test_it_opens_with_what_it_holds(kind):
    reader = TraceReader(OLD / f"{kind}_trace")
    assert reader.summary.format_version == "2.0" and reader.summary.refers_to is None
    arrays = reader.read(3).arrays
    own = set() if kind == "influence" else {"influence", "advantage"}
    assert arrays.arrays().keys() == {spec.name for spec in ARRAYS} - NEW - own
    assert all(getattr(arrays, name) is None for name in NEW)
    assert arrays.lengths.tolist() == LENGTHS[kind]
    assert reader.read_arrays(3, ["ratio", "reward"]).keys() == {"reward"}
    assert check_trace(OLD / f"{kind}_trace").whole


def test_its_influence_stands_alone(tmp_path):
    shutil.copytree(OLD / "influence_trace", tmp_path / "influence_trace")
    arrays = TraceReader(tmp_path / "influence_trace").read(3).arrays
    assert arrays.response_index.tolist() == [13, 11]
    assert np.isfinite(arrays.influence[arrays.response_mask]).all()


def test_it_converts_and_can_be_continued(tmp_path, step):
    convert_trace(OLD / "influence_trace", tmp_path / "new")
    assert TraceReader(tmp_path / "new").summary.format_version == "2.1"
    shutil.copytree(OLD, tmp_path / "run")
    with TraceWriter(tmp_path / "run/entropy_trace", kind="entropy") as writer:
        writer.write(4, step(influence=False))
    reader = TraceReader(tmp_path / "run/entropy_trace")
    assert [(found.step, found.arrays.reason is None) for found in reader] == [(3, True), (4, False)]
