"""The examples run, and leave what they promise."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from archer.trace.check import check_trace
from archer.trace.reader import TraceReader

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_trl(in_trl, tmp_path):
    said = in_trl(ROOT / "examples/trl_grpo.py", tmp_path)
    assert "influence: 28 linear modules traced" in said
    for kind in ("entropy", "influence"):
        assert not check_trace(tmp_path / f"{kind}_trace").problems
    sampled = [step.arrays for step in TraceReader(tmp_path / "entropy_trace")]
    assert [step.accepted.any() and not step.accepted.all() for step in sampled] == [True, True]
    scored = [step.arrays for step in TraceReader(tmp_path / "influence_trace")]
    assert len(scored) == 2
    assert all(np.abs(step.influence[step.response_mask]).max() > 0 for step in scored)
    assert "token_credit/spared_share" in said


def test_which_training_tokens_help_the_validation_set(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "examples/sft_validation.py", tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    worst = [line for line in done.stdout.splitlines() if "+321=" in line]
    assert len(worst) == 5 and all(line.startswith("-") for line in worst)
    assert not check_trace(tmp_path / "influence_trace").problems
