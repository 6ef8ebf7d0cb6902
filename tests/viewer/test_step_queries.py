"""Groups in figures, prompts told apart, tokens of a step: against plain loops."""

import math
from pathlib import Path

import numpy as np
import pytest
from small_traces import VOCAB, entropy_part, make_step, unpack, write_trace

from archer.errors import ArcherError
from archer.trace.writer import TraceWriter
from archer.viewer import queries, tokens
from archer.viewer.groups import group_figures, group_rows
from archer.viewer.prompts import told_apart, without_markup
from archer.viewer.runs import TracedRun
from archer.viewer.steps import load_step
from archer.viewer.tokens import Window, points_packed, tokens_json

QWEN = (
    "<|im_start|>system\nYou are helpful.<|im_end|>\n"
    "<|im_start|>user\n{}\n\nReason step by step.<|im_end|>\n<|im_start|>assistant\n"
)
ASKED = [
    "Anne is twice as tall as Bella. How tall is she, really?",
    "Bob runs six miles. How fast must Jim run to meet him?",
]


def test_prompts_are_told_apart_by_what_they_do_not_share() -> None:
    assert told_apart([QWEN.format(text) for text in ASKED]) == [f"… {text} …" for text in ASKED]


@pytest.mark.parametrize(
    "marked",
    [
        "<|im_start|>user\n{}<|im_end|>",
        "<s>[INST] {} [/INST]",
        "<bos><start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>",
        "<｜begin▁of▁sentence｜><｜User｜>{}<｜Assistant｜>",
    ],
)
def test_chat_markup_is_taken_off(marked: str) -> None:
    assert without_markup(marked.format("a < b | c > d?")) == "a < b | c > d?"


def test_short_differences_keep_words_around_them_and_equal_prompts_stay_equal() -> None:
    assert told_apart(["What is 2 + 3?", "What is 2 + 4?", "What is 2 + 3?"]) == [
        "What is 2 + 3?",
        "What is 2 + 4?",
        "What is 2 + 3?",
    ]
    assert told_apart(["only one"]) == ["only one"]
    assert told_apart([]) == []
    assert told_apart(["same", "same"]) == ["same", "same"]
    assert told_apart(["go", "go on"]) == ["go", "go on"]


def test_figures_of_a_group_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    changes = {"unjudged": np.arange(8) == 3, "truncated": np.arange(8) % 3 == 0}
    write_trace(tmp_path / "run/influence_trace", {1: make_step(1, **changes)})
    data = load_step(TracedRun(tmp_path / "run"), 1)
    members = group_rows(data.groups)
    assert [rows.tolist() for rows in members] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    found = group_figures(data, members[0])
    rewards, entropies, influences = [1.0, 0.25, 1.0], [], []
    for row in range(4):
        for position in range(data.arrays.response_mask.shape[1]):
            if data.arrays.response_mask[row, position]:
                entropies.append(float(data.metric("entropy")[row, position]))
                value = float(data.metric("influence")[row, position])
                influences += [value] if math.isfinite(value) else []
    assert found.accepted == pytest.approx(2 / 3)
    assert found.disagreement == pytest.approx(2 / 9)
    assert found.reward == pytest.approx(sum(rewards) / 3)
    assert found.reward_variance == pytest.approx(sum((r - 0.75) ** 2 for r in rewards) / 3)
    assert found.entropy == pytest.approx(sum(entropies) / len(entropies), rel=1e-5)
    assert found.influence == pytest.approx(sum(influences) / len(influences), rel=1e-5)
    assert found.influence_abs == pytest.approx(sum(map(abs, influences)) / len(influences), rel=1e-5)
    assert (found.responses, found.unjudged, found.truncated) == (4, 1, 2)


def test_a_failed_value_is_told_from_one_that_was_not_computed(tmp_path: Path) -> None:
    entropies = make_step().entropies.copy()
    entropies[1, 2], entropies[2, 0], entropies[0, 5] = np.nan, np.inf, np.nan  # the last one is masked
    write_trace(tmp_path / "run/influence_trace", {1: make_step(entropies=entropies)})
    run = TracedRun(tmp_path / "run")
    failed = {m["name"]: m["failed"] for m in queries.step_json(run, load_step(run, 1))["metrics"]}
    assert failed["entropy"] == {"tokens": 2, "responses": 2, "rows": [1, 2]}
    assert failed["influence"]["tokens"] == 0, "missing influence was not computed"


def test_the_lowest_tokens_of_a_step_are_those_of_a_plain_loop(run_folder: Path) -> None:
    run = TracedRun(run_folder)
    data = load_step(run, 2)
    values = data.metric("influence")
    every = sorted(
        (float(values[row, position]), row, position)
        for row in range(8)
        for position in range(values.shape[1])
        if data.arrays.response_mask[row, position] and math.isfinite(values[row, position])
    )
    found = tokens_json(run, data, "influence", "ascending", 7)
    assert found["total"] == len(every)
    assert [(t["row"], t["position"]) for t in found["tokens"]] == [(row, at) for _, row, at in every[:7]]
    first = found["tokens"][0]
    assert first["before"].endswith("") and (first["before"] + first["text"] + first["after"]) in (
        "The answer is 42\n so∑ maybe.The answer<|end|>"
    )
    low, high = (0.2, -1.0), (0.9, 2.0)
    window = Window("entropy", "influence", low, high)
    inside = [
        (row, position)
        for value, row, position in every
        if low[0] <= data.metric("entropy")[row, position] <= high[0] and low[1] <= value <= high[1]
    ]
    brushed = tokens_json(run, data, "influence", "position", 500, window)
    assert sorted((t["row"], t["position"]) for t in brushed["tokens"]) == sorted(inside)
    assert inside and brushed["total"] == len(inside)
    with pytest.raises(ArcherError, match="expected ascending"):
        tokens_json(run, data, "influence", "sideways", 5)  # type: ignore[arg-type]


def test_a_sample_of_points_holds_the_extremes_and_says_what_it_is(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load_step(TracedRun(run_folder), 2)
    header, arrays = unpack(points_packed(data, "entropy", "influence"))
    usable = int((data.arrays.response_mask & np.isfinite(data.metric("influence"))).sum())
    assert header == {"total": usable, "shown": usable, "without": 1}
    monkeypatch.setattr(tokens, "MAX_POINTS", 40)
    monkeypatch.setattr(tokens, "_ENDS", (slice(None, 5), slice(-5, None)))
    header, few = unpack(points_packed(data, "entropy", "influence"))
    assert (header["shown"], len(few["x"])) == (40, 40)
    for axis in "xy":
        assert few[axis].min() == arrays[axis].min() and few[axis].max() == arrays[axis].max()
    again = unpack(points_packed(data, "entropy", "influence"))[1]
    np.testing.assert_array_equal(few["x"], again["x"])


@pytest.mark.parametrize("metadata", [{"not_computed": ["entropies"]}, {"validation": True}, {}])
def test_an_array_that_nobody_computed_is_no_failure(tmp_path: Path, metadata: dict[str, object]) -> None:
    step = make_step(entropies=np.full((8, 15), np.nan))
    with TraceWriter(
        tmp_path / "run/entropy_trace", kind="entropy", metadata=metadata, vocab=VOCAB
    ) as writer:
        writer.write(1, entropy_part(step))
    run = TracedRun(tmp_path / "run")
    failed = {m["name"]: m["failed"]["tokens"] for m in queries.step_json(run, load_step(run, 1))["metrics"]}
    assert failed == {"entropy": 0 if metadata else int(step.response_mask.sum()), "log_prob": 0}
