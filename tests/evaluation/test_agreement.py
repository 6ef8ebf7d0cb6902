"""A saved checkpoint evaluates to exactly what training logged; an evaluation can be stopped and go on."""

import json
import sys
from pathlib import Path

import pytest

from archer.errors import ArcherError
from archer.evaluation.summary import EXACT

sys.path.insert(0, str(Path(__file__).parent))

from small_evals import Stop, evaluated, interrupted_after, train

ONE_THREAD = ("engine.threads=1", "engine.device=cpu")
GREEDY = ("actor_rollout_ref.rollout.val_kwargs.n=1", "actor_rollout_ref.rollout.val_kwargs.do_sample=False")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("sampled") / "run")


@pytest.fixture(scope="module")
def greedy_run(tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("greedy") / "run", *GREEDY, "trainer.total_training_steps=1")


def logged(run: Path, step: int) -> dict[str, float]:
    """What training wrote about its validation after a step."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    line = next(line for line in lines if line["step"] == step)
    return {name: value for name, value in line.items() if name.startswith("val-")}


@pytest.mark.parametrize("step", [1, 2])
def test_a_checkpoint_evaluates_to_exactly_what_training_logged_at_its_step(run, tmp_path, step):
    done = evaluated(run / "checkpoints" / f"global_step_{step}", tmp_path / "out")
    assert done.summary.metrics() == logged(run, step)


def test_greedy_validation_agrees_too(greedy_run, tmp_path):
    done = evaluated(greedy_run / "checkpoints" / "global_step_1", tmp_path / "out")
    assert done.summary.metrics() == logged(greedy_run, 1)
    assert "val-core/arithmetic/acc/mean@1" in logged(greedy_run, 1)


def test_products_in_bfloat16_agree_too(tmp_path):
    run = train(tmp_path / "run", "engine.dtype=bfloat16", "trainer.total_training_steps=1")
    found, expected = evaluated(run, tmp_path / "out").summary.metrics(), logged(run, 1)
    exact = found.pop(EXACT)
    assert exact == pytest.approx(expected.pop(EXACT), rel=2e-2)  # of the float32 weights in training
    assert found == expected


def test_a_run_stands_for_its_newest_checkpoint(run, tmp_path):
    assert evaluated(run, tmp_path / "out").summary.metrics() == logged(run, 2)


def test_the_folder_holds_every_sample_and_the_figures(run, tmp_path):
    done = evaluated(run, tmp_path / "out")
    lines = [json.loads(line) for line in (done.folder / "samples.jsonl").read_text().splitlines()]
    assert [(line["prompt_index"], line["sample"]) for line in lines] == [
        (prompt, sample) for prompt in range(7) for sample in range(3)
    ]
    assert all(line["correct"] == (line["answer"] == line["ground_truth"]) for line in lines)
    figures = json.loads((done.folder / "summary.json").read_text())
    assert figures["overall"]["avg@3"] == sum(line["correct"] for line in lines) / 21
    assert figures["metrics"] == done.summary.metrics()
    assert figures["step"] == 2


def test_by_default_results_go_into_the_run(run):
    done = evaluated(run / "checkpoints" / "global_step_1", None)
    assert done.folder == run / "evaluation" / "validation@3" / "global_step_1"


def test_options_change_what_they_name_and_nothing_else(run, tmp_path):
    done = evaluated(run, tmp_path / "out", n=1, temperature=0.0, limit=2)
    settings = json.loads((done.folder / "settings.json").read_text())
    assert settings["sampling"]["params"]["do_sample"] is False
    assert settings["sampling"]["n"] == 1 and settings["sampling"]["max_num_seqs"] == 9
    assert done.summary.overall.prompts == 2


@pytest.mark.parametrize("whole", [True, False], ids=["between chunks", "within a chunk"])
def test_a_stopped_evaluation_goes_on_with_the_samples_it_would_have_drawn(run, tmp_path, monkeypatch, whole):
    straight = evaluated(run, tmp_path / "straight")
    with monkeypatch.context() as patch:
        interrupted_after(1, patch, whole)
        with pytest.raises(Stop):
            evaluated(run, tmp_path / "stopped")
    assert not (tmp_path / "stopped" / "samples.jsonl").exists()
    kept = (tmp_path / "stopped" / ".samples.jsonl.partial").read_text()
    resumed = evaluated(run, tmp_path / "stopped")
    assert resumed.summary == straight.summary
    whole_file = (resumed.folder / "samples.jsonl").read_text()
    assert whole_file == (straight.folder / "samples.jsonl").read_text()
    assert whole_file.startswith("\n".join(kept.split("\n")[:9]))  # the first chunk was not drawn again


def test_a_complete_evaluation_is_shown_and_not_done_again(run, tmp_path, monkeypatch):
    first = evaluated(run, tmp_path / "out")
    interrupted_after(0, monkeypatch)
    again = evaluated(run, tmp_path / "out")
    assert again.summary == first.summary and not again.fresh
    with pytest.raises(Stop):
        evaluated(run, tmp_path / "out", overwrite=True)


def test_figures_without_their_samples_are_made_again(run, tmp_path):
    first = evaluated(run, tmp_path / "out")
    (first.folder / "samples.jsonl").unlink()
    assert evaluated(run, tmp_path / "out").fresh


def test_a_folder_with_another_evaluation_is_refused_with_what_differs(run, tmp_path):
    evaluated(run, tmp_path / "out")
    with pytest.raises(ArcherError, match=r"sampling.seed: 42 there, 7 now\n.*--overwrite"):
        evaluated(run, tmp_path / "out", seed=7)
    assert evaluated(run, tmp_path / "out", overwrite=True, seed=7).fresh


def test_a_folder_of_other_files_is_refused(run, tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(ArcherError, match="no evaluation"):
        evaluated(run, tmp_path)


def test_a_model_from_elsewhere_answers_once_greedily_or_n_times_sampled(tmp_path):
    data = ("builtin:arithmetic/val?size=4",)
    once = evaluated("builtin:tiny_reasoner", tmp_path / "a", data=data, max_tokens=48, overrides=ONE_THREAD)
    assert once.summary.overall.n == 1
    often = evaluated(
        "builtin:tiny_reasoner", tmp_path / "b", data=data, max_tokens=48, n=4, overrides=ONE_THREAD
    )
    responses = [json.loads(line)["response"] for line in (often.folder / "samples.jsonl").open()]
    assert len(set(responses[:4])) > 1
    settings = json.loads((often.folder / "settings.json").read_text())
    assert settings["prompts"]["max_prompt_length"] < 20  # fits the data, since nothing limits it


def test_responses_at_the_limit_count_as_truncated(tmp_path):
    data = ("builtin:arithmetic/val?size=4",)
    done = evaluated("builtin:tiny_reasoner", tmp_path, data=data, max_tokens=3, overrides=ONE_THREAD)
    figures = done.summary.overall
    assert (figures.truncated, figures.tokens, figures.avg) == (1.0, 3.0, 0.0)
