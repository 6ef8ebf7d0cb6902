import io
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from archer.errors import ArcherError, visible
from archer.trace.check import check_trace
from archer.trace.commands import app
from archer.trace.npz import write_npz
from archer.trace.reader import TraceReader
from archer.trace.schema import TraceStep
from archer.trace.show import colour, render_step
from archer.trace.vocab import Vocab
from archer.trace.writer import TraceWriter

EVIL = "\x1b[31mred\x07\x9b2J\u202egnp\u200b"
VOCAB = Vocab.from_tokens(
    [f"t{index} ".encode() for index in range(48)] + [EVIL.encode(), b"[bold]line\nnext"]
)


@pytest.fixture
def run_folder(tmp_path, batch) -> Path:
    """A run with both traces, steps 1 and 2; the first response begins with hostile tokens."""
    for kind in ("entropy", "influence"):
        given = batch(influence=kind == "influence")
        given["responses"][0, :2] = (48, 49)
        given["prompts"][0] = [48, 1, 2]
        given["uid"][0] = EVIL
        with TraceWriter(tmp_path / f"{kind}_trace", kind=kind, vocab=VOCAB) as writer:
            for step in (1, 2):
                writer.write(step, TraceStep.from_batch(**given))
    return tmp_path


def shown(folder: Path, **options) -> str:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    render_step(console, TraceReader(folder), 1, **{"metric": "entropy", **options})
    return console.file.getvalue()


def rewrite(folder: Path, step: int, **changes: np.ndarray) -> None:
    arrays = {**TraceReader(folder).read(step).arrays.arrays(), **changes}
    with (folder / f"steps/step_{step:06d}.npz").open("wb") as file:
        write_npz(file, arrays)


def test_a_whole_trace_is_reported_with_its_figures(run_folder):
    report = check_trace(run_folder / "influence_trace")
    arrays = TraceReader(run_folder / "influence_trace").read(1).arrays
    assert report.whole
    assert (report.steps, report.rows) == ((1, 2), 8)
    assert report.tokens == report.influence_tokens == 2 * int(arrays.response_mask.sum())
    assert report.problems == report.remarks == report.nonfinite == ()
    assert report.render().splitlines()[-1].strip() == "whole"


def test_nan_where_a_value_is_expected_is_counted_and_damage(run_folder):
    folder = run_folder / "influence_trace"
    entropies = TraceReader(folder).read(1).arrays.entropies.copy()
    entropies[0, :2] = (np.nan, np.inf)
    rewrite(folder, 1, entropies=entropies)
    report = check_trace(folder)
    assert report.nonfinite == (("entropies", 2),)
    assert not report.whole
    assert "DAMAGED" in report.render()


def test_influence_that_was_not_computed_is_counted_and_no_damage(run_folder):
    folder = run_folder / "influence_trace"
    influence = TraceReader(folder).read(1).arrays.influence.copy()
    influence[0, 0] = np.nan
    rewrite(folder, 1, influence=influence)
    report = check_trace(folder)
    assert report.whole
    assert report.influence_tokens == report.tokens - 1


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("influence", lambda a: np.zeros_like(a.influence), "outside the mask"),
        ("prompt_length", lambda a: a.prompt_length + 1, "prompt_length disagrees"),
        ("response_mask", lambda a: a.response_mask & (np.arange(a.response_mask.shape[1]) < 2), "wide"),
    ],
)
def test_arrays_of_a_step_that_contradict_each_other_are_damage(run_folder, name, change, reason):
    folder = run_folder / "influence_trace"
    rewrite(folder, 2, **{name: change(TraceReader(folder).read(2).arrays)})
    report = check_trace(folder)
    assert any(problem.startswith("step 2") and reason in problem for problem in report.problems)


def test_leftovers_of_a_kill_are_mentioned_and_accepted(run_folder):
    folder = run_folder / "entropy_trace"
    (folder / "steps/.step_000003.npz.tmp").write_bytes(b"half")
    report = check_trace(folder)
    assert report.whole
    assert any(".step_000003.npz.tmp" in remark for remark in report.remarks)


def test_a_damaged_vocabulary_is_damage(run_folder):
    (run_folder / "entropy_trace/vocab.npz").write_bytes(b"no table")
    assert not check_trace(run_folder / "entropy_trace").whole


def test_a_long_list_of_problems_is_cut(run_folder, step):
    folder = run_folder / "influence_trace"
    for number in range(3, 40):
        (folder / f"steps/step_{number:06d}.npz").write_bytes(b"")
    report = check_trace(folder)
    assert len(report.problems) == 37
    assert len(report.render().splitlines()) < 20
    assert "27 more problems" in report.render()


@pytest.mark.parametrize("metric", ["entropy", "influence"])
def test_nothing_in_a_trace_reaches_the_terminal_as_a_control_sequence(run_folder, metric):
    text = shown(run_folder / "influence_trace", metric=metric, group=0)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u200b]", text)
    assert "␛[31mred␇\\x9b2J\\u202egnp\\u200b" in text
    assert "[bold]line␊" in text


def test_colour_codes_are_the_only_escapes_on_a_colour_terminal(run_folder):
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="truecolor")
    render_step(console, TraceReader(run_folder / "influence_trace"), 1, metric="influence", group=0)
    text = console.file.getvalue()
    assert "\x1b[" in text
    assert "\x1b" not in re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "\x1b[31m" not in text


def test_the_view_holds_facts_tokens_and_the_most_extreme_ones(run_folder):
    arrays = TraceReader(run_folder / "influence_trace").read(1).arrays
    number = int(arrays.response_index[1])  # its number in the step, which has more responses than this trace
    assert number != 1
    text = shown(run_folder / "influence_trace", metric="influence", response=number, top=2)
    verdict = "accepted" if arrays.accepted[1] else "rejected"
    assert f"step 1 · response {number} · group 0 · {verdict} · reward {arrays.reward[1]:g}" in text
    valid = arrays.influence[1][arrays.response_mask[1]]
    rows = [line for line in text.splitlines() if "│ top" in line or "│ bottom" in line]
    assert len(rows) == min(2, valid.size) * 2
    assert f"{valid.max():#.4g}" in rows[0]
    assert f"{valid.min():#.4g}" in next(row for row in rows if "bottom" in row)
    assert len({row.rindex(".") for row in rows}) == 1, "points are below each other"
    for token_id in arrays.responses[1][arrays.response_mask[1]]:
        assert f"t{token_id}" in text


def test_a_group_is_listed_with_what_is_known_of_its_responses(run_folder):
    arrays = TraceReader(run_folder / "influence_trace").read(1).arrays
    text = shown(run_folder / "influence_trace", metric="influence", group=0, top=0)
    rows = np.flatnonzero(arrays.group_id == 0)
    lines = text.splitlines()[4 : 4 + len(rows)]
    for row, line in zip(rows, lines, strict=True):
        values = np.abs(arrays.influence[row][arrays.response_mask[row]].astype(np.float64))
        mean = values[np.isfinite(values)].mean()
        verdict = "accepted" if arrays.accepted[row] else "rejected"
        cells = [
            str(arrays.response_index[row]),
            verdict,
            f"{arrays.reward[row]:g}",
            str(arrays.lengths[row]),
            f"{mean:#.4g}",
        ]
        assert [cell.strip() for cell in line.strip("│").split("│")] == cells


def test_a_trace_without_vocabulary_shows_ids(run_folder):
    (run_folder / "entropy_trace/vocab.npz").unlink()
    assert "⟨48⟩" in shown(run_folder / "entropy_trace")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "influence"}, "no influence"),
        ({"metric": "loss"}, "metric"),
        ({"response": 4}, "no response 4"),
        ({"response": -1}, "no response -1"),
        ({"group": 7}, "no group 7"),
        ({"group": 1, "response": 0}, "no response 0"),
        ({"top": -1}, "top"),
    ],
)
def test_what_is_not_there_is_refused_by_name(run_folder, options, message):
    with pytest.raises(ArcherError, match=message):
        shown(run_folder / "entropy_trace", **options)


def test_influence_is_coloured_white_at_zero_and_alike_on_both_sides():
    assert colour(0.0, 2.0, "influence").bgcolor.triplet == (247, 247, 247)
    negative, positive = (colour(sign * 2.0, 2.0, "influence").bgcolor.triplet for sign in (-1, 1))
    assert negative.blue > negative.red
    assert positive.red > positive.blue
    assert colour(99.0, 2.0, "influence") == colour(2.0, 2.0, "influence")


def test_what_tokens_were_paid_is_shown_where_the_step_holds_it(run_folder):
    folder = run_folder / "influence_trace"
    mask = TraceReader(folder).read(1).arrays.response_mask
    credit = np.where(np.arange(mask.shape[1]) < 2, 0.5, 0.0) * mask
    rewrite(folder, 1, credit=credit.astype(np.float16), paid=(-credit).astype(np.float16))
    text = shown(folder, metric="paid", top=1)
    assert "top and bottom tokens by paid" in text and "-0.5000" in text
    assert "-0.000" not in text, "what was paid nothing is zero"
    assert "credit 0 " in shown(folder, metric="credit") and " 1   99th" in shown(folder, metric="credit")
    with pytest.raises(ArcherError, match="holds no credit_score"):
        shown(folder, metric="credit_score")


def test_entropy_grows_lighter():
    lightness = [sum(colour(value, 1.0, "entropy").bgcolor.triplet) for value in np.linspace(0, 1, 9)]
    assert lightness == sorted(lightness)


def test_ordinary_text_of_any_script_stays_as_it_is():
    assert visible("x² ≥ 数学 🙂 é") == "x² ≥ 数学 🙂 é"


def test_check_exits_zero_when_whole_one_when_damaged_two_when_there_is_nothing(run_folder):
    runner = CliRunner()
    whole = runner.invoke(app, ["check", str(run_folder)])
    assert whole.exit_code == 0
    assert whole.output.count("whole") == 2
    (run_folder / "entropy_trace/steps/step_000002.npz").write_bytes(b"")
    damaged = runner.invoke(app, ["check", str(run_folder)])
    assert damaged.exit_code == 1
    assert "step 2" in damaged.output
    assert runner.invoke(app, ["check", str(run_folder / "nowhere")]).exit_code == 2
    assert runner.invoke(app, ["check"]).exit_code == 2


def test_errors_begin_like_those_of_other_commands_and_quote_nothing_raw(run_folder):
    refused = CliRunner().invoke(app, ["check", f"{run_folder}/\x1b[31m"])
    assert refused.stderr.startswith("error: ")
    assert "\x1b" not in refused.stderr


def test_show_prefers_influence_and_obeys_the_metric(run_folder):
    runner = CliRunner()
    preferred = runner.invoke(app, ["show", str(run_folder), "--step", "1"])
    assert preferred.exit_code == 0
    assert "by influence" in preferred.output
    assert "Red: " in preferred.output and "blue: the opposite" in preferred.output
    chosen = runner.invoke(app, ["show", str(run_folder), "--step", "2", "--metric", "entropy", "--top", "1"])
    assert chosen.exit_code == 0
    assert "by entropy" in chosen.output and "Red: " not in chosen.output
    assert runner.invoke(app, ["show", str(run_folder), "--step", "9"]).exit_code == 2
    assert runner.invoke(app, ["show", str(run_folder), "--step", "1", "--metric", "loss"]).exit_code == 2
