import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from archer.rewards import RewardConfig, RewardScorer
from archer.rewards.config import CustomRewardConfig


@pytest.fixture(scope="session")
def scorer() -> Iterator[RewardScorer]:
    with RewardScorer(RewardConfig(num_workers=2, timeout_s=5.0)) as shared:
        yield shared


@pytest.fixture
def custom(tmp_path: Path) -> Iterator[Callable[..., RewardScorer]]:
    """Return a maker of scorers whose custom function is given as source text; closed after the test."""
    made: list[RewardScorer] = []

    def make(
        source: str,
        timeout_s: float = 30.0,
        num_workers: int = 2,
        function: dict[str, object] | None = None,
        **config: object,
    ) -> RewardScorer:
        path = tmp_path / f"reward_{len(made)}.py"
        path.write_text(textwrap.dedent(source))
        custom = CustomRewardConfig(path=str(path), **(function or {}))
        made.append(
            RewardScorer(
                RewardConfig(
                    num_workers=num_workers, timeout_s=timeout_s, custom_reward_function=custom, **config
                )
            )
        )
        return made[-1]

    yield make
    for scorer in made:
        scorer.close()


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def wait_until_gone() -> Callable[[int], bool]:
    """Return a function that waits, up to a generous limit, for a process to end."""

    def wait(pid: int, limit_s: float = 30.0) -> bool:
        end = time.monotonic() + limit_s
        while is_running(pid) and time.monotonic() < end:
            time.sleep(0.02)
        return not is_running(pid)

    return wait
