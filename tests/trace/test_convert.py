"""Traces of the first system: they open as they are, and convert to today's format."""

import json
import pickle

import numpy as np
import pytest

from archer.errors import ArcherError
from archer.trace.check import check_trace
from archer.trace.convert import convert_trace
from archer.trace.reader import TraceReader

PROMPTS = ([5, 6, 7], [8], [9, 10], [11])


class Hostile:
    """Would run a command when unpickled."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


@pytest.fixture
def old_trace(tmp_path):
    """Four responses of two prompts, padded to the configured length, as the first system wrote them."""

    def make(name: str = "influence_trace", prompts: object = None, **extra: np.ndarray):
        folder = tmp_path / name
        (folder / "steps").mkdir(parents=True)
        mask = np.arange(10)[None] < np.array([3, 5, 2, 4])[:, None]
        stored = np.empty(4, dtype=object)
        stored[:] = [np.array(p) for p in PROMPTS] if prompts is None else prompts
        arrays = {
            "entropies": np.full((4, 10), 0.5, np.float16),
            "response_mask": mask,
            "responses": np.arange(40, dtype=np.int32).reshape(4, 10),
            "selected_row_id": np.array([3, 1, 7, 2], np.int64),
            "influence": np.where(mask, 1.5, 0.0).astype(np.float32),
            "advantage": np.ones((4, 10), np.float32),
            "uid": np.array(["a", "a", "b", "b"]),
            "prompt_ids": stored,
        } | extra
        np.savez_compressed(folder / "steps/step_000003.npz", **arrays)
        (folder / "manifest.jsonl").write_text(json.dumps({"step": 3, "rows": 4}) + "\n")
        return folder

    return make


def test_an_old_influence_trace_opens_with_its_row_numbers(old_trace):
    reader = TraceReader(old_trace())
    step = reader.read(3).arrays
    assert step.response_index.tolist() == [3, 1, 7, 2]
    assert reader.read_arrays(3, ("response_index",))["response_index"].dtype == np.int32
    assert reader.summary.kind == "influence"


def test_a_name_of_today_wins_over_the_old_one(old_trace):
    step = TraceReader(old_trace(response_index=np.arange(4, dtype=np.int32))).read(3).arrays
    assert step.response_index.tolist() == [0, 1, 2, 3]


def test_conversion_makes_a_whole_trace_of_today(old_trace, tmp_path):
    old, new = old_trace(), tmp_path / "new_influence_trace"
    result = convert_trace(old, new)
    assert (result.steps, result.problems) == (1, ())
    report = check_trace(new)
    assert report.whole, report.render()
    step, before = TraceReader(new).read(3).arrays, TraceReader(old).read(3).arrays
    assert TraceReader(new).summary.format_version.startswith("2")
    assert step.response_mask.shape == (4, 5), "cut to the longest response"
    mask = step.response_mask
    for name in ("entropies", "responses", "influence", "advantage"):
        assert np.array_equal(getattr(step, name)[mask], getattr(before, name)[before.response_mask])
    assert np.isnan(step.influence[~mask]).all()
    assert step.group_id.tolist() == [0, 0, 1, 1] and step.uid.tolist() == ["a", "a", "b", "b"]
    assert [step.prompt(row).tolist() for row in range(4)] == [list(p) for p in PROMPTS]
    assert any("log_probs" in note for note in result.notes), "what stays unknown is said"


@pytest.mark.parametrize("prompts", [[Hostile()] * 4, ["text"] * 4, [[1.5]] * 4, [None] * 4])
def test_objects_that_are_no_token_ids_are_never_built_and_the_rest_converts(old_trace, tmp_path, prompts):
    if isinstance(prompts[0], Hostile):
        with pytest.raises(SystemExit):
            pickle.loads(pickle.dumps(prompts))
    result = convert_trace(old_trace(prompts=prompts), tmp_path / "new")
    assert result.steps == 1 and "prompts could not be taken over" in result.notes


def test_a_damaged_step_is_reported_and_the_target_must_be_new(old_trace, tmp_path):
    old = old_trace()
    (old / "steps/step_000004.npz").write_bytes(b"PK damaged")
    assert [problem.step for problem in convert_trace(old, tmp_path / "new").problems] == [4]
    for taken in (tmp_path / "new", old):
        with pytest.raises(ArcherError, match="convert to a new one"):
            convert_trace(old, taken)
