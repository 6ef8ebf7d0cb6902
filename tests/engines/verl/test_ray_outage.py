"""Real Ray and verl with a reward function that fails: for some responses of two steps, then for all.

The same run imports a module of the user's in every process and shows responses of its validation.
"""

import json
import math
import os
import sys
from pathlib import Path

import pytest

from archer.trace.check import check_trace
from archer.trace.reader import TraceReader
from archer.tracking.jsonl import read_metrics

sys.path.insert(0, str(Path(__file__).parent))

from ray_runs import SETTINGS, archer, finish

pytestmark = pytest.mark.slow

REWARD = """
import zlib
from pathlib import Path

def compute_score(data_source, solution_str, ground_truth, extra_info):
    logged = Path(__file__).with_name("run") / "metrics.jsonl"
    lines = len(logged.read_text().splitlines()) if logged.exists() else 0  # the first is the validation
    number = zlib.crc32(solution_str.encode()) % 100
    if number < (25 if lines < 3 else 100):
        raise ConnectionError("the judge is down")
    return {"score": float(number % 3 == 0), "number": f"crc {number}"}
"""

MODULE = """
import os
from pathlib import Path

(Path(__file__).with_name("imported") / str(os.getpid())).touch()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("outage")


@pytest.fixture(scope="module")
def output(folder) -> str:
    (folder / "reward.py").write_text(REWARD)
    (folder / "imported").mkdir()
    (folder / "module_of_the_user.py").write_text(MODULE)
    process = archer(
        "train",
        *SETTINGS,
        f"reward.custom_reward_function.path={folder / 'reward.py'}",
        "reward.max_failed_share=0.8",
        f"trainer.default_local_dir={folder / 'run'}",
        "trainer.total_training_steps=4",
        "trainer.val_before_train=True",
        "trainer.log_val_generations=2",
        "actor_rollout_ref.model.external_lib=module_of_the_user",
        PYTHONPATH=os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
    )
    return finish(process, code=2)


def test_the_outage_stops_the_run_with_the_workers_own_words(output, folder):
    told = " ".join(output.split())
    assert "16 of 16 responses of step 3 could not be judged" in told
    assert "The first failure: crash: ConnectionError: the judge is down" in told
    assert "Traceback" not in output
    assert json.loads((folder / "run/checkpoints/global_step_2/archer.json").read_text())
    assert not (folder / "run/checkpoints/global_step_3").exists()
    for trace in ("entropy_trace", "influence_trace"):
        report = check_trace(folder / "run" / trace)
        assert report.whole and report.steps == (1, 2)


def test_a_module_of_the_users_is_imported_in_the_worker_processes(output, folder):
    assert len(list((folder / "imported").iterdir())) >= 2


def test_responses_of_the_validation_are_shown(output):
    assert output.count("validation at step 0, ") == 2


def test_steps_before_learnt_from_what_was_judged(output, folder):
    entropy = TraceReader(folder / "run/entropy_trace")
    influence = TraceReader(folder / "run/influence_trace")
    failed = 0
    for line in read_metrics(folder / "run/metrics.jsonl")[1:]:
        step = int(line["step"])
        arrays, traced = entropy.read(step).arrays, influence.read(step).arrays
        judged = [row for row in range(arrays.rows) if arrays.judged[row]]
        failed += arrays.rows - len(judged)
        assert (arrays.lengths > 0).all(), "also of those that were left out"
        assert line["reward/unjudged"] == arrays.rows - len(judged)
        assert all(arrays.said(row)["number"].startswith("crc ") for row in judged)
        assert all(
            "judge is down" in arrays.said(row)["failure"] for row in set(range(arrays.rows)) - {*judged}
        )
        right = sum(float(arrays.reward[row]) for row in judged)
        assert line["reward/accuracy"] == pytest.approx(right / len(judged))
        place = {int(index): row for row, index in enumerate(traced.response_index)}
        for row in judged:
            group = [float(arrays.reward[r]) for r in judged if arrays.group_id[r] == arrays.group_id[row]]
            mean = sum(group) / len(group)
            assert (row in place) == (0 < mean < 1)
            if row in place:
                std = math.sqrt(sum((r - mean) ** 2 for r in group) / (len(group) - 1))
                wanted = (float(arrays.reward[row]) - mean) / (std + 1e-6)
                assert traced.advantage[place[row], 0] == pytest.approx(wanted, rel=1e-4)
        assert not any(int(index) not in judged for index in traced.response_index)
    assert failed, "the fault was injected"
