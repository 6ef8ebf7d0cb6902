"""`archer diagnose` on run folders: the exit code, what is printed, and files nobody should trust."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from made_up_runs import columns
from typer.testing import CliRunner

from archer.cli import app
from archer.diagnosis.trace_facts import looping_rows, row_metrics
from archer.trace.schema import TraceStep
from archer.trace.vocab import Vocab
from archer.trace.writer import TraceWriter

HEALTHY = columns(actor__entropy=[0.3] * 8, actor__lr=[1e-6] * 8, reward__accuracy=[0.4] * 8)
DEAD = columns(actor__entropy=[0.3] * 8, actor__lr=[1e-6] * 4 + [0.0] * 4)
WORDS = Vocab.from_tokens([b"so", b" 12", b" 13", b"\x1b[31m", "‮".encode()])


def ran(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["diagnose", *arguments])
    return done.exit_code, done.output


def write_steps(folder: Path, steps: dict[int, TraceStep]) -> Path:
    with TraceWriter(folder / "entropy_trace", kind="entropy", vocab=WORDS) as writer:
        for number, step in steps.items():
            writer.write(number, step)
    return folder


def made(tokens: list[int], rows: int = 8, prompts: int = 2, **more) -> TraceStep:
    responses = np.tile(tokens, (rows, 1))
    groups = np.arange(rows) // 2
    return TraceStep.from_batch(
        entropies=np.full(responses.shape, 0.3),
        response_mask=np.ones(responses.shape, bool),
        responses=responses,
        response_index=np.arange(rows),
        log_probs=np.full(responses.shape, -0.3),
        reward=np.arange(rows) % 2,
        accepted=np.arange(rows) % 2 == 1,
        group_id=groups,
        uid=[f"group {group}" for group in groups],
        prompts=[[int(group) % prompts] for group in groups],
        **more,
    )


def test_nothing_found_is_0_something_1_nothing_to_read_2(run_folder, tmp_path):
    code, text = ran(str(run_folder(HEALTHY, "good")))
    assert code == 0 and "Nothing found" in text
    code, text = ran(str(run_folder(DEAD, "dead")))
    assert code == 1 and "dead_learning" in text and "since step 5, found at step 7" in text
    for path in (tmp_path / "nowhere", tmp_path):
        assert ran(str(path))[0] == 2


def test_json_is_everything(run_folder):
    code, text = ran(str(run_folder(DEAD)), "--json")
    told = json.loads(text)
    assert code == 1
    assert told["steps"] == {"count": 8, "first": 1, "last": 8}
    (finding,) = told["findings"]
    assert (finding["name"], finding["since"], finding["found_at"], finding["until"]) == (
        "dead_learning",
        5,
        7,
        8,
    )


def test_torn_and_foreign_lines_are_left_out_and_counted(run_folder):
    extra = 'null\n{"step": "x"}\n{"step": 1e400}\n{"step": true}\n' + "[" * 100_000 + '\n{"step": 9, "actor/'
    code, text = ran(str(run_folder(HEALTHY, extra=extra)))
    assert code == 0
    assert "5 lines are no metrics" in text


def test_a_trace_alone_tells_wrong_answers_copies_and_loops(tmp_path):
    loop = [0, 1] * 16
    truth = {"ground_truth": ["12"] * 8, "extracted_answer": ["13"] * 8}
    folder = write_steps(tmp_path / "run", {step: made(loop, **truth) for step in range(1, 5)})
    told = json.loads(ran(str(folder), "--json")[1])
    found = {finding["name"]: finding for finding in told["findings"]}
    assert set(found) == {"reward_pays_wrong_answers", "duplicate_prompts", "repetition"}
    assert found["reward_pays_wrong_answers"]["link"] == "#3/0/1?run=run"
    assert ran(str(folder / "entropy_trace"))[0] == 1


def test_a_loop_is_found_whatever_the_length_of_its_round():
    for period in (1, 7, 64, 100, 170):
        loop = np.tile(np.arange(period), 600 // period + 1)[:600]
        broken = np.concatenate([loop[:590], np.arange(500, 510)])
        assert looping_rows(np.stack([loop, broken]), np.array([600, 600]), 24).tolist() == [True, False]


def test_degenerate_groups_are_shown_by_one_that_is_all_wrong(tmp_path):
    verdicts = np.array([1, 1, 1, 1, 0, 0, 1, 1], bool)
    step = replace(made([0, 1], prompts=4), accepted=verdicts, reward=verdicts.astype(np.float32))
    folder = write_steps(tmp_path / "run", dict.fromkeys(range(1, 5), step))
    (finding,) = json.loads(ran(str(folder), "--json")[1])["findings"]
    assert (finding["name"], finding["link"]) == ("degenerate_groups", "#3/2/4?run=run")


def test_one_response_a_prompt_makes_no_degenerate_groups():
    several = made([0, 1])
    assert row_metrics(several)["groups/degenerate_share"] == 0
    assert "groups/degenerate_share" not in row_metrics(
        replace(several, group_id=np.arange(8, dtype=np.int32))
    )


def test_an_answer_that_stands_in_the_text_is_no_doubt(tmp_path):
    truth = {"ground_truth": ["12"] * 8, "extracted_answer": [""] * 8}
    folder = write_steps(tmp_path / "run", {step: made([0, 1], prompts=4, **truth) for step in range(1, 5)})
    assert ran(str(folder))[0] == 0


def test_a_damaged_step_is_noted_and_the_rest_is_judged(run_folder, tmp_path):
    folder = write_steps(run_folder(DEAD), {step: made([0, 1], prompts=4) for step in range(1, 9)})
    (folder / "entropy_trace/steps/step_000003.npz").write_bytes(b"no zip")
    code, text = ran(str(folder))
    assert code == 1 and "dead_learning" in text and "step 3" in text


def test_what_stands_in_files_reaches_no_terminal_as_a_control_sequence(run_folder):
    hostile = made([3, 4] * 16, ground_truth=["\x1b]0;x\x07"] * 8, extracted_answer=["\u202e"] * 8)
    folder = write_steps(run_folder(HEALTHY, "a\x1b[31mb"), dict.fromkeys(range(1, 5), hostile))
    code, text = ran(str(folder))
    assert code == 1
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
