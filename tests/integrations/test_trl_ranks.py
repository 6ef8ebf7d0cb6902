"""Two processes of TRL's trainer, a prompt's responses on both: the numbers of one."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from fixed import Fixed
from test_trl import assert_close, assert_same_rows
from transformers import AutoTokenizer

from archer.data.builtin import tiny_reasoner_path
from archer.trace.check import check_trace
from archer.trace.reader import TraceReader
from archer.trace.schema import TraceStep

pytestmark = pytest.mark.slow

# Twelve responses of three prompts: six on each process, so that the second prompt's lie on both.
SHARES = {1: {"per_device_train_batch_size": 4}, 2: {"per_device_train_batch_size": 2}}
CREDIT = {"mode": "influence", "projection_dim": 16, "module_name_filter": ["_proj"]}
RUNS = {
    "reading": {},
    "head": {"archer": {"credit": {"mode": "nthr"}}},
    "modules": {"archer": {"credit": CREDIT}},
    "permuted": {"archer": {"credit": {"mode": "spare_confident", "permute": True, "threshold": 0.9}}},
}


@dataclass(frozen=True)
class Ranks:
    folder: Path

    def trace(self, ranks: int, name: str) -> TraceStep:
        return TraceReader(self.folder / str(ranks) / name / "influence_trace").read(1).arrays


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, trl_runs) -> Ranks:
    folder = tmp_path_factory.mktemp("ranks")
    fixed = Fixed.make(AutoTokenizer.from_pretrained(tiny_reasoner_path()))
    file = fixed.write(folder / "fixed.json")
    for number, share in SHARES.items():
        out = folder / str(number)
        out.mkdir()
        args = {**share, "gradient_accumulation_steps": 3, "steps_per_generation": 3}
        every = {**RUNS, "supervised": {"class": "supervised"}}
        runs = [{"out": str(out / name), "args": args, **given} for name, given in every.items()]
        trl_runs(out, file, runs, ranks=number)
    return Ranks(folder)


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_trace_what_one_does(ranks, name):
    one, two = ranks.trace(1, name), ranks.trace(2, name)
    assert len(two.response_index) == 8  # two of the three prompts have a contrast
    assert_same_rows(two, one)
    assert_close(two.influence, one.influence)
    assert np.array_equal(one.uid, two.uid)
    if one.credit_score is not None:
        assert_close(two.credit_score, one.credit_score)
    if one.credit is not None:
        assert 0 < (two.credit < 1)[two.response_mask].mean() < 1
        assert np.array_equal(two.credit, one.credit)


@pytest.mark.parametrize("name", RUNS)
def test_both_traces_are_whole(ranks, name):
    for kind in ("entropy", "influence"):
        assert not check_trace(ranks.folder / "2" / name / f"{kind}_trace").problems


def test_a_step_of_transformers_trainer_is_scored_as_on_one_process(ranks):
    """DDP divides gradients by the number of processes after the backward that is captured."""
    one, two = ranks.trace(1, "supervised"), ranks.trace(2, "supervised")
    assert len(one.response_index) == 12
    order = [np.flatnonzero((two.responses == line).all(1)).item() for line in one.responses]
    assert_close(two.influence[order], one.influence)


def test_a_group_crossed_the_processes(ranks):
    log = json.loads((ranks.folder / "2/reading/log.json").read_text())
    assert log["history"][0]["influence_trace/debug_cross_rank_groups"] == 1
    assert log["history"][0]["influence_trace/rows_emitted"] == 8
