"""Figures of an evaluation, per data source and in all."""

import io
import json
import re

import pytest
from rich.console import Console

from archer.config import compose
from archer.evaluation.report import as_json, describe_sampling, summary_table
from archer.evaluation.summary import Sample, pass_at_k, summarise


@pytest.fixture
def samples(make_sample):
    """Two easy prompts and one hard one, two responses each."""
    verdicts = {0: ("easy", [True, True]), 1: ("easy", [True, False]), 2: ("hard", [False, False])}
    lengths = iter([1, 2, 3, 4, 10, 20])
    return [
        make_sample(
            index,
            i,
            data_source=source,
            correct=right,
            score=2.0 * right,
            tokens=next(lengths),
            finished=source == "easy",
            majority={0: 1.0, 1: 0.5, 2: 0.0}[index],
        )
        for index, (source, rights) in verdicts.items()
        for i, right in enumerate(rights)
    ]


def test_every_prompt_counts_the_same(samples):
    summary = summarise(samples)
    assert summary.overall.avg == pytest.approx((1 + 0.5 + 0) / 3)
    assert summary.overall.pass_at == pytest.approx({1: 0.5, 2: 2 / 3})
    assert summary.overall.majority == pytest.approx(0.5)
    assert summary.overall.score == pytest.approx(1.0)
    assert summary.overall.stderr == pytest.approx(0.5 / 3**0.5)
    assert list(summary.sources) == ["easy", "hard"]
    easy, hard = summary.sources.values()
    assert (easy.prompts, easy.avg, easy.tokens, easy.truncated) == (2, 0.75, 2.5, 0.0)
    assert (hard.prompts, hard.avg, hard.tokens, hard.truncated) == (1, 0.0, 15.0, 1.0)
    assert hard.stderr is None


def test_metrics_have_verls_names(samples):
    assert summarise(samples).metrics() == pytest.approx(
        {
            "val-core/easy/acc/mean@2": 0.75,
            "val-core/easy/acc/pass@2": 1.0,
            "val-core/easy/acc/maj@2/mean": 0.75,
            "val-aux/easy/response_length/mean": 2.5,
            "val-aux/easy/response_length/clip_ratio": 0.0,
            "val-aux/easy/unjudged": 0.0,
            "val-core/hard/acc/mean@2": 0.0,
            "val-core/hard/acc/pass@2": 0.0,
            "val-core/hard/acc/maj@2/mean": 0.0,
            "val-aux/hard/response_length/mean": 15.0,
            "val-aux/hard/response_length/clip_ratio": 1.0,
            "val-aux/hard/unjudged": 0.0,
        }
    )


def test_the_pass_rates_between_one_and_n_are_reported_beside_the_main_figures(make_sample):
    metrics = summarise([make_sample(0, i, correct=i == 0) for i in range(4)]).metrics()
    assert metrics["val-aux/math/acc/pass@2"] == pytest.approx(0.5)
    assert metrics["val-core/math/acc/pass@4"] == 1.0


def test_a_source_judged_by_a_function_has_no_majority(make_sample):
    summary = summarise([make_sample(0, 0, majority=None), make_sample(0, 1, majority=None)])
    assert summary.sources["math"].majority is None
    assert not any("maj@" in name for name in summary.metrics())


@pytest.fixture
def partly_judged(make_sample):
    """Prompt 0 has three verdicts, one of them wrong; prompt 1 has one; prompt 2, alone in its source, none.

    What an unjudged response says of itself (verdict, score, vote) is nonsense, and must not matter.
    """
    marks = {0: "+-+?", 1: "?+??", 2: "????"}
    return [
        make_sample(
            index,
            i,
            data_source="lost" if index == 2 else "math",
            correct=mark == "+",
            score={"+": 1.0, "-": 0.0, "?": -9.0}[mark],
            failure=f"crash: {index}.{i}" if mark == "?" else None,
            majority={0: 1.0, 1: 1.0, 2: 0.0}[index],
        )
        for index, line in marks.items()
        for i, mark in enumerate(line)
    ]


def test_accuracy_is_over_the_judged_responses_and_the_others_are_counted(partly_judged):
    summary = summarise(partly_judged)
    figures, lost = summary.overall, summary.sources["lost"]
    assert summary.accuracy == figures.avg == pytest.approx((2 / 3 + 1) / 2)
    assert figures.score == pytest.approx(3 / 4)
    assert figures.majority == 1.0
    # pass@2 needs two verdicts, which prompt 0 alone has; pass@4 has no prompt
    assert figures.pass_at == pytest.approx({1: (2 / 3 + 1) / 2, 2: pass_at_k(3, 2, 2)})
    assert (figures.prompts, figures.failures, figures.first_failure) == (3, 8, "crash: 0.3")
    assert (lost.avg, lost.score, lost.majority, lost.failures) == (None, None, None, 4)
    metrics = summary.metrics()
    assert (metrics["val-aux/math/unjudged"], metrics["val-aux/lost/unjudged"]) == (4, 4)
    assert not any(name.startswith("val-core/lost") for name in metrics)


def test_the_table_and_the_stored_figures_show_what_was_not_judged(partly_judged, samples):
    def shown(summary) -> str:
        console = Console(file=io.StringIO(), width=100)
        console.print(summary_table(summary))
        return console.file.getvalue()

    summary = summarise(partly_judged)
    assert re.search(r"unjudged +4 +4 +8", shown(summary))
    assert re.search(r"avg@4 +83.3%.* - ", shown(summary))
    assert "unjudged" not in shown(summarise(samples))
    stored = json.loads(json.dumps(as_json(summary), allow_nan=False))["overall"]
    assert (stored["failures"], stored["first_failure"]) == (8, "crash: 0.3")


def test_unequal_groups_are_a_mistake_of_the_caller(make_sample):
    with pytest.raises(ValueError, match="same number of samples"):
        summarise([make_sample(0, 0), make_sample(0, 1), make_sample(1, 0)])


def test_a_sample_survives_its_line(make_sample):
    sample = make_sample(3, 1, response="line\nbreak \u2028 \U0001f600", score=0.1)
    line = sample.to_line()
    assert line.endswith("\n") and line.count("\n") == 1
    assert Sample.from_line(line) == sample


def test_the_sampling_is_told_with_one_response_or_several():
    def told(number: int) -> str:
        return describe_sampling(compose([f"actor_rollout_ref.rollout.val_kwargs.n={number}"]))

    assert told(1).startswith("1 response a prompt, ")
    assert told(4).startswith("4 responses a prompt, ")
