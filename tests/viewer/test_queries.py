"""Answers of the query layer against plain loops."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from small_traces import TEXT, make_step, unpack, write_trace

from archer.trace.reader import TraceReader
from archer.trace.show import bound_of
from archer.viewer import queries
from archer.viewer.encoding import pack
from archer.viewer.metrics import STATISTICS, ramp_of, spread_of
from archer.viewer.runs import Library, TracedRun
from archer.viewer.steps import load_step


def test_packed_arrays_come_back_as_they_were() -> None:
    arrays = {
        "a": np.array([1.5, np.nan], np.float32),
        "b": np.arange(3, dtype=np.int32),
        "c": np.frombuffer("π!".encode(), np.uint8),
    }
    header, found = unpack(pack({"name": "π"}, arrays))
    assert header == {"name": "π"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


def test_arrays_start_at_multiples_of_eight_bytes() -> None:
    buffer = pack({"x": 1}, {"a": np.ones(3, np.uint8), "b": np.ones(3, np.float32)})
    size = int.from_bytes(buffer[4:8], "little")
    places = json.loads(buffer[8 : 8 + size])["arrays"]
    assert [(8 + size + offset) % 8 for _, offset, _ in places.values()] == [0, 0]


def test_the_timeline_opens_no_step_file(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = TracedRun(run_folder)
    monkeypatch.setattr(TraceReader, "read", lambda *_: pytest.fail("a step file was opened"))
    timeline = queries.timeline_json(run)
    assert timeline["steps"] == [1, 2, 3, 4, 5]
    assert timeline["series"]["mean_reward"] == pytest.approx([0.625] * 5)
    assert timeline["problems"] == {}


def test_rows_are_packed_ragged_with_missing_values_as_nan(run_folder: Path) -> None:
    run = TracedRun(run_folder)
    data = load_step(run, 1)
    rows = np.array([5, 0])
    header, arrays = unpack(queries.rows_packed(run, data, rows, ["entropy", "influence"], text=True))
    assert header["rows"] == [5, 0]
    assert header["metrics"] == ["entropy", "influence"]
    place = byte = 0
    for index, row in enumerate([5, 0]):
        span = int(data.spans[row])
        assert header["spans"][index] == span
        for position in range(span):
            valid = bool(data.arrays.response_mask[row, position])
            assert arrays["mask"][place + position] == valid
            for name in ("entropy", "influence"):
                expected = float(data.metric(name)[row, position]) if valid else math.nan
                found = float(arrays[f"metric:{name}"][place + position])
                assert found == pytest.approx(expected, nan_ok=True)
            assert arrays["ids"][place + position] == TEXT[position]
        text = arrays["text"][byte : byte + header["text_bytes"][index]].tobytes().decode()
        assert text == "The answer is 42\n so∑ maybe.The answer<|end|>"[: len(text)]
        place += span
        byte += header["text_bytes"][index]
    prompts = [header["prompts"][index] for index in header["prompt_of"]]
    assert prompts == ["The answer is  answer", "The answer is The"]


def test_more_tokens_than_one_answer_holds_are_refused(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MAX_TOKENS", 20)
    run = TracedRun(run_folder)
    with pytest.raises(queries.TooMuchError, match="ask for fewer"):
        queries.rows_packed(run, load_step(run, 1), np.arange(8), None, text=False)


def test_statistics_are_those_of_a_plain_loop() -> None:
    values = np.random.default_rng(0).normal(size=101).astype(np.float32)
    values[[3, 50]] = [np.nan, np.inf]
    finite = sorted(float(value) for value in values if math.isfinite(value))
    spread = spread_of(values)
    mean = sum(finite) / len(finite)
    assert (spread["count"], spread["missing"]) == (99, 2)
    assert spread["mean"] == pytest.approx(mean)
    assert spread["std"] == pytest.approx(math.sqrt(sum((x - mean) ** 2 for x in finite) / len(finite)))
    assert spread["mean_abs"] == pytest.approx(sum(abs(x) for x in finite) / len(finite))
    assert (spread["min"], spread["max"], spread["median"]) == (finite[0], finite[-1], finite[49])
    assert spread["positive_share"] == pytest.approx(sum(x > 0 for x in finite) / len(finite))
    place = 0.99 * 98
    low = finite[97] + (finite[98] - finite[97]) * (place - 97)
    assert spread["p99"] == pytest.approx(low)


def test_a_spread_of_nothing_has_no_figures() -> None:
    assert spread_of(np.full(4, np.nan)) == {"count": 0, "missing": 4} | dict.fromkeys(STATISTICS)
    assert bound_of(np.zeros(5)) == 1.0


def test_two_signs_are_coloured_around_zero() -> None:
    assert ramp_of("influence", spread_of(np.ones(3))) == "diverging"
    assert ramp_of("own_metric", spread_of(np.array([-1.0, 1.0]))) == "diverging"
    assert ramp_of("log_prob", spread_of(np.array([-1.0, -2.0]))) == "sequential"


def test_pay_and_score_are_coloured_around_zero_and_credit_from_it() -> None:
    for values in (np.ones(3), -np.ones(3)):
        assert ramp_of("paid", spread_of(values)) == ramp_of("credit_score", spread_of(values)) == "diverging"
    assert ramp_of("credit", spread_of(np.array([0.0, 8.0]))) == "sequential"


def test_the_bound_of_credit_is_at_least_pay_in_full(tmp_path: Path) -> None:
    shape = (8, len(TEXT))
    for weight, bound in ((0.25, 1.0), (3.0, 3.0)):
        step = make_step(credit=np.full(shape, weight), paid=np.full(shape, weight))
        run = TracedRun(write_trace(tmp_path / str(weight) / "influence_trace", {1: step}))
        told = {metric["name"]: metric for metric in queries.step_json(run, load_step(run, 1))["metrics"]}
        assert told["credit"]["bound"] == bound
        assert told["paid"]["bound"] == weight


def test_the_head_of_a_step_tells_responses_groups_and_statistics(run_folder: Path) -> None:
    run = TracedRun(run_folder)
    data = load_step(run, 2)
    head = queries.step_json(run, data)
    json.dumps(head, allow_nan=False)
    assert head["rows"]["accepted"] == [True, False] * 4
    assert head["rows"]["reward"] == [1.0, 0.25] * 4
    assert head["rows"]["length"][:4] == [14, 14, 13, 12]
    assert [group["prompt"] for group in head["groups"]] == ["The answer is The", "The answer is  answer"]
    influence = next(metric for metric in head["metrics"] if metric["name"] == "influence")
    mask, values = data.arrays.response_mask, data.metric("influence")
    row = [float(v) for v, m in zip(values[0], mask[0], strict=True) if m and math.isfinite(v)]
    assert influence["row_mean_abs"][0] == pytest.approx(sum(map(abs, row)) / len(row))
    assert influence["spread"]["all"]["missing"] == 1
    assert influence["ramp"] == "diverging"
    accepted = [
        float(v)
        for r in range(8)
        for v, m in zip(values[r], mask[r], strict=True)
        if r % 2 == 0 and m and math.isfinite(v)
    ]
    assert influence["spread"]["accepted"]["mean"] == pytest.approx(sum(accepted) / len(accepted))


def test_metadata_is_flat_text(tmp_path: Path) -> None:
    assert queries._flat({"a": {"b": 1, "c": {"d": [2]}}, "e": None}) == {
        "a.b": "1",
        "a.c.d": "[2]",
        "e": "None",
    }


def test_a_trace_without_a_vocabulary_says_how_to_decode_it(tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step()}, vocab=None)
    run = Library.open([folder]).runs[0]
    head = queries.step_json(run, load_step(run, 1))
    assert "--model-path" in head["notes"][-1]
    assert head["groups"][0]["prompt"] == "⟨0⟩⟨1⟩⟨2⟩⟨3⟩⟨0⟩"


def test_a_model_path_decodes_what_has_no_vocabulary(tmp_path: Path) -> None:
    from archer.viewer import runs

    model = Path(runs.__file__).parents[1] / "assets" / "tiny_reasoner"
    vocab = runs.vocab_of_model(str(model))
    ids = [index for index in range(len(vocab)) if vocab.token(index) in (b"4", b"2")]
    step = make_step(responses=np.full((8, len(TEXT)), ids[0]))
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: step}, vocab=None)
    run = Library.open([folder], str(model)).runs[0]
    _, arrays = unpack(queries.rows_packed(run, load_step(run, 1), np.array([0]), [], text=True))
    assert arrays["text"].tobytes() == vocab.token(ids[0]) * len(TEXT)
