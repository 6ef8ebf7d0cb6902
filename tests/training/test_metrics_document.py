"""docs/metrics.md lists what a run writes: every name, and no other."""

import io
import itertools
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from archer.config import compose
from archer.train import make_run

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
SMALL = (
    "data.train_batch_size=4",
    "data.val_max_samples=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.val_kwargs.n=4",
    "trainer.total_training_steps=1",
    "trainer.test_freq=1",
    "engine.threads=1",
    "engine.device=cpu",
)
EVERYTHING = (
    "actor_rollout_ref.actor.ppo_epochs=2",
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.actor.entropy_coeff=0.001",
    "algorithm.use_kl_in_reward=True",
    "algorithm.rollout_correction.rollout_is=token",
    "algorithm.rollout_correction.rollout_is_batch_normalize=True",
    "trainer.log_step_responses=1",
    "trainer.diagnose=True",
    "algorithm.token_credit.mode=nthr",
    "trainer.influence_trace.enable=False",
)
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    right = len(solution_str) % 2 == 0
    return {"score": float(right), "acc": right, "characters": float(len(solution_str))}
"""


def documented() -> dict[str, re.Pattern[str]]:
    """Each name of the tables with its braces expanded -> what it matches."""
    found = {}
    for row in re.findall(r"^\| `([^`]+)` \|", DOCUMENT.read_text(), flags=re.MULTILINE):
        parts = [part.split(",") for part in re.split(r"[{}]", row)]
        for name in map("".join, itertools.product(*parts)):
            assert name not in found, f"{name} is listed twice"
            found[name] = re.compile(re.sub(r"<\w+>", "[^/]+", re.escape(name)))
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> set[str]:
    """The names two small runs write: the embedded default, and one with every option that adds a metric."""
    folder = tmp_path_factory.mktemp("metrics")
    (folder / "reward.py").write_text(REWARD)
    own_reward = f"reward.custom_reward_function.path={folder / 'reward.py'}"
    names: set[str] = set()
    for run, options in (("plain", ()), ("everything", (*EVERYTHING, own_reward))):
        config = compose([*SMALL, f"trainer.default_local_dir={folder / run}", *options])
        make_run(config, Console(file=io.StringIO())).execute()
        for line in (folder / run / "metrics.jsonl").read_text().splitlines():
            names |= json.loads(line).keys()
    return names - {"step"}


def test_every_metric_that_is_written_is_documented_once(written):
    patterns = documented()
    for name in written:
        exact = [name] if name in patterns else []
        matches = exact or [key for key, pattern in patterns.items() if pattern.fullmatch(name)]
        assert len(matches) == 1, f"{name} is documented by {matches}"


def test_every_documented_metric_is_written(written):
    patterns = documented()
    other = written - patterns.keys()  # what only a name with a part that varies can stand for
    for name, pattern in patterns.items():
        assert any(map(pattern.fullmatch, other)) if "<" in name else name in written, name
