"""Watching a run: whole checkpoints only, in order, until the run ends. Each wait brings the next event."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from archer.config import compose
from archer.config.compose import to_yaml
from archer.data.builtin import tiny_reasoner_path
from archer.errors import ArcherError
from archer.evaluation.choice import is_complete
from archer.evaluation.plan import EvalOptions
from archer.evaluation.watch import Watch, watch, watched_folder

OPTIONS = EvalOptions(n=1, temperature=0.0, limit=2, device="cpu", overrides=("engine.threads=1",))


class FakeRun:
    """A run folder that is written to step by step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        self.configure(total=None)
        (folder / "metrics.jsonl").write_text("")

    def configure(self, total: int | None) -> None:
        steps = [] if total is None else [f"trainer.total_training_steps={total}"]
        (self.folder / "config.yaml").write_text(to_yaml(compose(["recipe=arithmetic", *steps])))

    def save(self, step: int) -> None:
        target = self.folder / "checkpoints" / f"global_step_{step}"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(tiny_reasoner_path(), target)

    def save_half(self, step: int) -> None:
        self.save(step)
        weights = self.folder / "checkpoints" / f"global_step_{step}" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1000])

    def remove(self, step: int) -> None:
        shutil.rmtree(self.folder / "checkpoints" / f"global_step_{step}")

    def finish(self, step: int) -> None:
        (self.folder / "metrics.jsonl").write_text(json.dumps({"step": step}) + "\n")
        (self.folder / "result.json").write_text(json.dumps({"steps": step}))


@pytest.fixture
def run(tmp_path) -> FakeRun:
    return FakeRun(tmp_path / "run")


def watched(run: FakeRun, events: list[Callable[[], None]], **changes) -> list[int]:
    """The steps evaluated while one event happens at each wait; one wait too many is an error."""
    remaining = iter(events)
    plan = Watch(watched_folder(run.folder), OPTIONS, **changes)
    return [step for step, _ in watch(plan, Console(quiet=True), wait=lambda: next(remaining)())]


def test_each_checkpoint_is_evaluated_once_it_is_there_until_the_run_is_done(run):
    run.configure(total=2)
    events = [lambda: run.save(1), lambda: None, lambda: run.save(2), lambda: run.finish(2)]
    assert watched(run, events) == [1, 2]
    history = run.folder / "evaluation" / "validation@1" / "history.jsonl"
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["prompts"] == 2 and "avg@1" in line for line in lines)


def test_a_half_written_checkpoint_waits_until_it_is_whole(run):
    run.configure(total=1)
    events = [lambda: run.save_half(1), lambda: run.save(1), lambda: run.finish(1)]
    assert watched(run, events) == [1]


def test_the_last_checkpoint_is_not_missed_when_it_comes_with_the_end(run):
    run.configure(total=3)

    def ends() -> None:
        run.save(3)
        run.finish(3)

    assert watched(run, [ends]) == [3]


def test_a_result_of_an_earlier_part_does_not_end_the_watch_of_a_run_that_goes_on(run):
    run.configure(total=2)
    run.save(1)
    run.finish(1)  # an earlier call trained one step; the configuration now asks for two
    events = [lambda: run.save(2), lambda: run.finish(2)]
    assert watched(run, events) == [1, 2]


def test_until_step_ends_the_watch_and_leaves_later_checkpoints(run):
    for step in (4, 2, 6):
        run.save(step)
    assert watched(run, [], until_step=4) == [2, 4]
    assert watched(run, [], until_step=5) == [2, 4]  # there is no checkpoint 5, but a later one


def test_the_end_waits_for_checkpoints_that_are_still_arriving(run):
    run.configure(total=2)
    run.finish(2)
    run.save_half(2)
    assert watched(run, [lambda: run.save(2)]) == [2]
    run.save_half(3)
    run.save(4)
    assert watched(run, [lambda: run.save(3)], until_step=3) == [2, 3]


def test_a_second_watch_does_nothing_again(run):
    run.save(1)
    run.finish(1)
    run.configure(total=1)
    assert watched(run, []) == [1]
    plan = Watch(watched_folder(run.folder / "checkpoints"), OPTIONS)
    assert [done.fresh for _, done in watch(plan, Console(quiet=True))] == [False]


def test_a_checkpoint_removed_while_it_is_read_is_passed_over(run, monkeypatch):
    run.save(1)
    run.save(2)
    run.finish(2)
    run.configure(total=2)

    def removed_then_complete(folder: Path) -> bool:
        complete = is_complete(folder)
        if folder.name == "global_step_1" and complete:
            run.remove(1)
        return complete

    monkeypatch.setattr("archer.evaluation.watch.is_complete", removed_then_complete)
    assert watched(run, []) == [2]


def test_a_folder_that_does_not_exist_is_an_error_and_not_an_endless_wait(tmp_path):
    with pytest.raises(ArcherError, match="Start the run first"):
        watched_folder(tmp_path / "typo" / "run")
