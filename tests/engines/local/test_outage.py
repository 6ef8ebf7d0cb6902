"""Faults of a reward function injected at a step of a real run: what stops, what stays, what is left out."""

import io
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from archer.config import compose
from archer.data.builtin import arithmetic_rows
from archer.errors import ArcherError
from archer.evaluation.choice import choose_model
from archer.evaluation.plan import EvalOptions, make_plan
from archer.evaluation.run import evaluate
from archer.trace.check import check_trace
from archer.trace.reader import TraceReader
from archer.train import make_run

SMALL = (
    "data.train_batch_size=4",
    "data.val_max_samples=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
    "trainer.total_training_steps=4",
    "trainer.save_freq=2",
    "trainer.val_before_train=False",
    "trainer.test_freq=-1",
    "engine.threads=1",
    "engine.device=cpu",
)
REWARD = """
import json, time, zlib
from pathlib import Path

def compute_score(data_source, solution_str, ground_truth, extra_info):
    fault = json.loads(Path(__file__).with_name("fault.json").read_text())
    number = zlib.crc32(solution_str.encode()) % 100
    logged = Path(__file__).with_name("run") / "metrics.jsonl"
    steps = len(logged.read_text().splitlines()) if logged.exists() else 0
    meant = fault["source"] in (None, data_source)
    if meant and steps >= fault["after"] and number < fault["percent"]:
        if fault["hangs"]:
            time.sleep(600)
        raise ConnectionError("the judge is down")
    return float(number % 3 == 0)
"""
HELD_OUT = "held-out"
TRACES = ("entropy_trace", "influence_trace")


@dataclass(frozen=True)
class Faulty:
    """A run in `folder/run` whose reward function fails as it is told to."""

    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def fault(
        self, after: int = 10**9, percent: int = 100, hangs: bool = False, source: str | None = None
    ) -> None:
        """From then on: fail for a share of responses once so many steps are logged."""
        what = {"after": after, "percent": percent, "hangs": hangs, "source": source}
        (self.folder / "fault.json").write_text(json.dumps(what))

    def train(self, *overrides: str) -> str:
        """Run; what it said."""
        said = io.StringIO()
        reward = f"reward.custom_reward_function.path={self.folder / 'reward.py'}"
        config = compose([*SMALL, reward, f"trainer.default_local_dir={self.run}", *overrides])
        make_run(config, Console(file=said, width=200)).execute()
        return said.getvalue()

    def metrics(self) -> list[dict[str, float]]:
        return [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]

    def numbers(self) -> list[dict[str, float]]:
        """The metrics that a second run repeats."""
        timed = ("timing_s/", "perf/")
        return [{k: v for k, v in line.items() if not k.startswith(timed)} for line in self.metrics()]

    def weights(self, step: int) -> bytes:
        return (self.run / f"checkpoints/global_step_{step}/model.safetensors").read_bytes()


@pytest.fixture
def make_faulty(tmp_path):
    def make(name: str) -> Faulty:
        (tmp_path / name).mkdir()
        (tmp_path / name / "reward.py").write_text(REWARD)
        faulty = Faulty(tmp_path / name)
        faulty.fault()
        return faulty

    return make


HANGS = (  # four responses, four workers: one wait for all of them
    "data.train_batch_size=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.rollout.n=2",
    "reward.num_workers=4",
    "reward.timeout_s=5",
)


@pytest.mark.parametrize(
    ("hangs", "options", "told"),
    [
        (False, (), "16 of 16 responses of step 4 could not be judged; .*ConnectionError: the judge is down"),
        (True, HANGS, r"4 of 4 responses of step 4 .* failure: timeout\. Please raise reward.timeout_s=5, "),
    ],
    ids=["raises", "hangs"],
)
def test_an_outage_at_a_late_step_stops_the_run_and_nothing_is_lost(make_faulty, hangs, options, told):
    whole, broken = make_faulty("whole"), make_faulty("broken")
    whole.train(*options)
    broken.fault(after=3, hangs=hangs)
    with pytest.raises(ArcherError, match=told):
        broken.train(*options)
    assert broken.numbers() == whole.numbers()[:3]
    assert broken.weights(2) == whole.weights(2)
    assert not (broken.run / "checkpoints/global_step_4").exists()
    for trace in TRACES:
        report = check_trace(broken.run / trace)
        assert report.whole and report.steps == (1, 2, 3), report.render()

    broken.fault()
    assert "resuming from step 2" in broken.train(*options)
    assert broken.numbers() == whole.numbers()
    assert broken.weights(4) == whole.weights(4)


def test_below_the_share_a_step_learns_from_what_was_judged_and_says_what_it_left_out(make_faulty):
    faulty = make_faulty("faulty")
    faulty.fault(after=0, percent=25)
    said = faulty.train("reward.max_failed_share=0.8", "trainer.total_training_steps=2")
    entropy, influence = (TraceReader(faulty.run / trace) for trace in TRACES)
    failed = 0
    for step, line in enumerate(faulty.metrics(), start=1):
        arrays = entropy.read(step).arrays
        rows = range(arrays.rows)
        unjudged = [row for row in rows if arrays.unjudged[row]]
        judged = [row for row in rows if not arrays.unjudged[row]]
        failed += len(unjudged)
        assert all(arrays.verdict(row) == "unjudged" and arrays.reward[row] == 0 for row in unjudged)
        assert line["reward/unjudged"] == line["reward/crashes"] == len(unjudged)
        right = sum(float(arrays.reward[row]) for row in judged)
        assert line["reward/accuracy"] == pytest.approx(right / len(judged))
        assert line["critic/score/mean"] == pytest.approx(right / len(judged))
        if unjudged:
            assert f"step {step}: {len(unjudged)} of 16 responses could not be judged and are left" in said
        traced = influence.read(step).arrays
        place = {int(index): row for row, index in enumerate(traced.response_index)}
        assert place.keys().isdisjoint(unjudged)
        for row in judged:
            group = [float(arrays.reward[r]) for r in judged if arrays.group_id[r] == arrays.group_id[row]]
            mean = sum(group) / len(group)
            mixed = 0 < mean < 1
            assert (row in place) == mixed
            if mixed:
                std = math.sqrt(sum((r - mean) ** 2 for r in group) / (len(group) - 1))
                wanted = (float(arrays.reward[row]) - mean) / (std + 1e-6)
                assert traced.advantage[place[row], 0] == pytest.approx(wanted, rel=1e-5)
                assert np.isfinite(traced.influence[place[row]][traced.response_mask[place[row]]]).all()
    assert failed, "the fault was injected"


@pytest.mark.parametrize(
    ("after", "told", "saved"), [(0, "before training", []), (2, "after step 2", [1, 2])]
)
def test_an_outage_in_a_validation_stops_the_run_too(make_faulty, after, told, saved):
    faulty = make_faulty("faulty")
    held_out = faulty.folder / "val.jsonl"
    rows = [row | {"data_source": HELD_OUT} for row in arithmetic_rows("val", size=4)]
    held_out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    faulty.fault(after=after, source=HELD_OUT)
    with pytest.raises(ArcherError, match=f"4 of 4 responses of the validation {told} .*judge is down"):
        faulty.train(
            f"data.val_files=[{held_out}]",
            "trainer.val_before_train=True",
            "trainer.test_freq=1",
            "trainer.save_freq=1",
            "actor_rollout_ref.rollout.val_kwargs.n=1",
        )
    steps = sorted(int(path.name.removeprefix("global_step_")) for path in faulty.run.glob("checkpoints/g*"))
    assert steps == saved, "the checkpoint that was due is written all the same"
    assert [line["step"] for line in faulty.metrics()][1:] == saved
    for trace in TRACES:
        assert check_trace(faulty.run / trace).whole


def test_an_evaluation_shows_and_stores_what_it_could_not_judge_and_refuses_an_outage(make_faulty):
    faulty = make_faulty("faulty")
    faulty.train("trainer.total_training_steps=2")
    out, said = faulty.folder / "out", io.StringIO()

    def evaluated(overwrite: bool):
        overrides = ("engine.threads=1", "engine.device=cpu", "reward.max_failed_share=0.9")
        options = EvalOptions(n=4, overrides=overrides)
        plan = make_plan(choose_model(str(faulty.run)), options)
        return evaluate(plan, Console(file=said, width=200), out, overwrite)

    faulty.fault(after=0)
    with pytest.raises(ArcherError, match=r"16 of 16 responses of the evaluation .* --overwrite\."):
        evaluated(overwrite=False)
    faulty.fault(after=0, percent=40)
    overall = evaluated(overwrite=True).summary.overall
    samples = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    failures = [sample["failure"] for sample in samples if sample["failure"]]
    assert 0 < len(failures) < 16, "the fault was injected, and did not hit all"
    stored = json.loads((out / "summary.json").read_text())["overall"]
    assert stored["failures"] == overall.failures == len(failures)
    assert stored["first_failure"] == failures[0]
    shares = []
    for index in dict.fromkeys(sample["prompt_index"] for sample in samples):
        mine = [s["correct"] for s in samples if s["prompt_index"] == index and not s["failure"]]
        shares += [sum(mine) / len(mine)] if mine else []
    assert stored["avg@4"] == pytest.approx(sum(shares) / len(shares))
