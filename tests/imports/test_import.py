"""`archer trace import`: what verl, TRL and prime-rl wrote; `check`, `show` and the viewer open it."""

import json

import numpy as np
import pytest
from source_files import prime_rl_record, write_prime_rl, write_trl
from typer.testing import CliRunner

from archer.cli import app
from archer.data.builtin import tiny_reasoner_path
from archer.imports.command import import_source
from archer.trace.check import check_trace
from archer.trace.reader import TraceReader
from archer.viewer import queries
from archer.viewer.runs import Library
from archer.viewer.steps import load_step


def opened(run):
    return TraceReader(run / "entropy_trace")


def texts(reader, step):
    arrays = reader.read(step).arrays
    return [
        (
            reader.vocab.decode(arrays.prompt(row)).text,
            reader.vocab.decode(arrays.responses[row][arrays.response_mask[row]]).text,
        )
        for row in range(arrays.rows)
    ]


@pytest.fixture(params=["ray_trainer", "v1.trainer_base"])
def verl_dump(request, tmp_path):
    """A dump by verl's own function, of its older and newer trainer."""
    module = pytest.importorskip(f"verl.trainer.ppo.{request.param}")
    kind = next(
        value
        for value in vars(module).values()
        if isinstance(value, type) and "_write_generations" in vars(value)
    )
    extra = {"acc": [True, False, True, False], "pred": ["2", "3", "4", "5"], "reward": [1.0, 1.0, 0.5, -1.0]}
    if request.param != "ray_trainer":
        extra["uid"] = ["p_0_0", "p_1_0", "q_0_0", "q_1_0"]
    kind._write_generations(
        ["1+1=", "1+1=", "1+1=" if "uid" in extra else "2+2=", "2+2="],
        ["It is \\boxed{2}.", "é 3", "  4\n", ""],
        ["2", "2", None, ["4", "four"]],
        [1.0, 1.0, 0.5, -1.0],
        extra,
        str(tmp_path / "rollouts"),
        7,
    )
    return tmp_path / "rollouts"


def test_a_dump_of_verl_becomes_a_trace(verl_dump, tmp_path):
    made, notes = import_source(verl_dump, tmp_path / "run")
    assert (made.steps, made.rows, made.arrays) == (1, 4, ())
    reader = opened(tmp_path / "run")
    arrays = reader.read(7).arrays
    assert texts(reader, 7)[0] == ("1+1=", "It is \\boxed{2}.")
    assert [response for _, response in texts(reader, 7)] == ["It is \\boxed{2}.", "é 3", "  4\n", ""]
    assert arrays.group_id.tolist() == [0, 0, 1, 1], "by uid where there is one, else by prompt"
    assert arrays.reward.tolist() == [1.0, 1.0, 0.5, -1.0]
    assert arrays.accepted.tolist() == [True, False, True, False], "acc says it"
    assert arrays.ground_truth.tolist() == ["2", "2", "", "['4', 'four']"]
    assert arrays.extracted_answer.tolist() == ["2", "3", "4", "5"]
    assert arrays.log_probs is None and np.isnan(arrays.entropies[arrays.response_mask]).all()
    assert any("not computed" in note for note in notes) and any("words" in note for note in notes)
    metadata = reader.summary.metadata
    assert (metadata["imported_from"], metadata["tokenizer"]) == ("verl", "words")
    assert metadata["not_computed"] == ["entropies"]


def test_a_threshold_overrules_the_verdicts_of_the_source(verl_dump, tmp_path):
    import_source(verl_dump, tmp_path / "run", accepted_above=0.75)
    assert opened(tmp_path / "run").read(7).arrays.accepted.tolist() == [True, True, False, False]


def test_with_the_models_tokenizer_the_tokens_are_its_own(verl_lines, tmp_path):
    source = verl_lines(1, {"input": "12+34=", "output": "2+4+0=6\n", "score": 1.0, "step": 1})
    import_source(source, tmp_path / "run", tokenizer=tiny_reasoner_path())
    reader = opened(tmp_path / "run")
    assert texts(reader, 1) == [("12+34=", "2+4+0=6\n")]
    assert reader.read(1).arrays.lengths.tolist() == [8]
    assert reader.summary.metadata["tokenizer"] == "tiny_reasoner"


def test_a_score_that_is_no_number_of_a_reward_is_no_verdict(verl_lines, tmp_path):
    row = {"input": "a", "output": "b", "step": 1}
    source = verl_lines(1, row | {"score": None}, row | {"score": float("nan")}, row | {"score": 0.5})
    import_source(source, tmp_path / "run")
    arrays = opened(tmp_path / "run").read(1).arrays
    assert arrays.unjudged.tolist() == [True, True, False] and arrays.accepted.tolist() == [
        False,
        False,
        True,
    ]


def test_completions_of_trl_become_a_trace(tmp_path):
    user = [{"role": "user", "content": "1+1?"}]
    for step, answer in ((5, "2"), (10, "3")):
        write_trl(
            tmp_path / "out" / "completions",
            step,
            {
                "prompt": [user, user, [{"role": "user", "content": "hi"}]],
                "completion": [[{"role": "assistant", "content": text}] for text in (answer, "4", "")],
                "accuracy_reward": [1.0, 0.0, float("nan")],
                "format_reward": [0.25, 0.0, float("nan")],
                "answer": ["2", "2", None],
                "advantage": [0.5, -0.5, 0.0],
            },
        )
    made, notes = import_source(tmp_path / "out", tmp_path / "run")
    assert (made.steps, made.rows, made.arrays) == (2, 6, ("advantage",))
    assert "reward: accuracy_reward + format_reward" in notes
    reader = opened(tmp_path / "run")
    assert texts(reader, 10)[0] == ("[user]\n1+1?", "3")
    arrays = reader.read(5).arrays
    assert arrays.reward.tolist() == [1.25, 0.0, 0.0] and arrays.unjudged.tolist() == [False, False, True]
    assert arrays.group_id.tolist() == [0, 0, 1] and arrays.accepted.tolist() == [True, False, False]
    assert arrays.advantage[1][arrays.response_mask[1]].tolist() == [-0.5]
    assert arrays.said(0) == {"accuracy_reward": "1", "format_reward": "0.25", "answer": "2"}


def test_one_reward_column_of_trl_can_be_chosen(tmp_path):
    source = write_trl(tmp_path, 1, {"prompt": ["a"], "completion": ["b"], "x": [1.0], "y": [4.0]})
    _, notes = import_source(source, tmp_path / "run", rewards=["y"])
    assert "reward: y" in notes
    assert opened(tmp_path / "run").read(1).arrays.reward.tolist() == [4.0]


def test_a_token_export_of_prime_rl_becomes_a_trace_with_its_entropies(tmp_path):
    tool = prime_rl_record([1, 2], [3, 4, 5], rewards=[0.0] * 5)
    tool["loss_mask"] = [False, False, True, False, True]
    write_prime_rl(tmp_path / "out", 3, {1: [tool], 0: [prime_rl_record([1, 2], [6, 7])]})
    made, notes = import_source(tmp_path / "out", tmp_path / "run")
    assert set(made.arrays) == {
        "entropies",
        "log_probs",
        "rollout_log_probs",
        "ratio",
        "clipped",
        "advantage",
    }
    assert not any("STABLE" in note or "not computed" in note for note in notes)
    arrays = opened(tmp_path / "run").read(3).arrays
    assert arrays.responses.tolist() == [[6, 7, 0], [3, 4, 5]]
    assert arrays.response_mask.tolist() == [[True, True, False], [True, False, True]]
    assert arrays.entropies[0].tolist() == [0.0, 0.25, 0.0]
    assert arrays.log_probs[0].tolist() == [-0.25, -0.375, 0.0]
    assert arrays.rollout_log_probs[0].tolist() == [-0.5, -0.625, 0.0]
    assert arrays.clipped[0].tolist() == [-1, 1, 0]
    assert arrays.ratio[0].tolist() == [1.25, 1.25, 0.0]
    assert arrays.prompt(1).tolist() == [1, 2] and arrays.group_id.tolist() == [0, 0]
    assert arrays.accepted.tolist() == [True, False] and arrays.data_source.tolist() == ["math", "math"]


def test_a_step_that_prime_rl_has_not_finished_is_told(tmp_path):
    write_prime_rl(tmp_path / "out", 3, {0: [prime_rl_record([1], [2])]}, stable=False)
    _, notes = import_source(tmp_path / "out" / "token_exports", tmp_path / "run")
    assert "step 3 is not marked STABLE: it may be incomplete" in notes


@pytest.fixture(params=["verl", "trl", "prime-rl"])
def imported(request, tmp_path, verl_lines):
    """The run folder that the command makes of each format, and its step."""
    if request.param == "verl":
        source = verl_lines(4, {"input": "a b", "output": "wait, 4", "score": 1.0, "gts": "4", "step": 4})
    elif request.param == "trl":
        source = write_trl(tmp_path / "c", 4, {"prompt": ["a"], "completion": ["b c"], "r": [1.0]})
    else:
        source = write_prime_rl(tmp_path / "o", 4, {0: [prime_rl_record([1, 2], [3, 4])]})
    arguments = ["trace", "import", str(source), str(tmp_path / "run")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "1 step, 1 response\n" in result.output and "archer view" in result.output
    return tmp_path / "run"


def test_check_and_show_open_an_import(imported):
    report = check_trace(imported / "entropy_trace")
    assert report.whole, report.render()
    shown = CliRunner().invoke(app, ["trace", "show", str(imported), "--step", "4"])
    assert shown.exit_code == 0 and "reward" in shown.output


def test_the_viewer_opens_an_import(imported):
    run = Library.open([imported]).run(0)
    assert queries.timeline_json(run)["steps"] == [4]
    data = load_step(run, 4)
    step = queries.step_json(run, data)
    (entropy,) = [metric for metric in step["metrics"] if metric["name"] == "entropy"]
    assert step["rows"]["accepted"] == [True] and len(step["groups"]) == 1
    assert json.dumps(step, allow_nan=False)
    assert queries.rows_packed(run, data, np.array([0]), None, text=True)
    computed = data.arrays.log_probs is not None
    assert (entropy["spread"]["all"]["count"] > 0) == computed


def test_a_step_of_trl_may_be_written_as_a_text(tmp_path):
    source = write_trl(tmp_path, 7, {"prompt": ["a"], "completion": ["b"], "step": ["7"], "x": [1.0]})
    made, _ = import_source(source, tmp_path / "run")
    assert (made.steps, made.rows) == (1, 1)


def test_a_reward_of_trl_that_the_first_row_lacks_is_told(tmp_path):
    table = {"prompt": ["a", "a"], "completion": ["b", "c"], "x": [1.0, 1.0], "late": [None, 0.5]}
    _, notes = import_source(write_trl(tmp_path, 7, table), tmp_path / "run")
    assert "reward: x + late" in notes
    assert opened(tmp_path / "run").read(7).arrays.reward.tolist() == [1.0, 1.5]
