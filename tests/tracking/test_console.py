"""What a person sees while training."""

import io

from rich.console import Console

from archer.generation.config import ValKwargs
from archer.tracking.console import ConsoleProgress, accuracy_text, duration, sampled_how, sparkline

METRICS = {
    "critic/rewards/mean": 0.5,
    "reward/accuracy": 0.5,
    "actor/entropy": 0.123,
    "response_length/mean": 31.5,
    "perf/throughput": 1234.0,
}


def shown(**options) -> str:
    out = io.StringIO()
    console = Console(file=out, width=120, **options)
    with ConsoleProgress(console, 0, 4) as progress:
        progress.update(1, METRICS)
        progress.update(2, METRICS | {"critic/rewards/mean": 0.9})
    return out.getvalue()


def test_without_a_terminal_every_step_is_one_line():
    lines = shown().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(
        "step 1/4  reward 0.500  accuracy 50.0%  entropy 0.123  length 31.5  tok/s 1,234  eta"
    )


def test_on_a_terminal_a_panel_shows_progress_values_and_the_rewards_course():
    text = shown(force_terminal=True)
    for part in ("step 2/4", "accuracy", "entropy", "length", "tok/s", "left", "▁█"):
        assert part in text


def test_a_step_without_any_response_is_shown_too():
    out = io.StringIO()
    with ConsoleProgress(Console(file=out), 0, 2) as progress:
        progress.update(1, {})
    assert "step 1/2" in out.getvalue()


def test_sparkline_spans_lowest_to_highest_and_fits_the_width():
    assert sparkline([0, 1, 2], 10) == "▁▅█"
    assert len(sparkline(list(range(100)), 20)) == 20
    assert sparkline([1, 1], 5) == "▁▁"
    assert sparkline([], 5) == ""


def test_durations_read_well():
    assert [duration(s) for s in (8.4, 65, 7380)] == ["8s", "1m05s", "2h03m"]


def test_an_accuracy_says_how_it_was_sampled():
    assert accuracy_text(0.355, sampled_how(ValKwargs(n=4, do_sample=True))) == (
        "35.5% (4 samples a prompt, temperature 1)"
    )
    assert accuracy_text(1.0, sampled_how(ValKwargs(n=4))) == "100.0% (greedy)"
    picky = ValKwargs(do_sample=True, temperature=0.6, top_p=0.95, top_k=20)
    assert sampled_how(picky) == "1 sample a prompt, temperature 0.6, top_p 0.95, top_k 20"
