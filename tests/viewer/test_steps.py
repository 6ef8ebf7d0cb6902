"""A step as the viewer sees it: traces joined, further metrics found, damage contained, memory bounded."""

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_traces import TEXT, entropy_part, make_step, write_trace

from archer.errors import ArcherError
from archer.trace.schema import TraceStep
from archer.viewer.runs import Library, TracedRun
from archer.viewer.steps import StepCache, UnreadableStepError, load_step


def selected(step: TraceStep, rows: list[int]) -> TraceStep:
    """The influence trace's view of some rows, in another order."""
    held = step.arrays()
    prompts = [step.prompt(row) for row in rows]
    batch: dict[str, Any] = {
        name: held[name][rows]
        for name in held
        if name not in ("prompt_ids", "prompt_offsets", "prompt_length", "uid")
    }
    return TraceStep.from_batch(**batch, uid=[str(held["uid"][row]) for row in rows], prompts=prompts)  # type: ignore[arg-type]


@pytest.fixture
def both(tmp_path: Path) -> Path:
    step = make_step()
    write_trace(tmp_path / "entropy_trace", {1: entropy_part(step)}, kind="entropy")
    write_trace(tmp_path / "influence_trace", {1: selected(step, [6, 0])})
    return tmp_path


def add_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Put further arrays into a step file, as another writer might."""
    with zipfile.ZipFile(path, "a") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as stream:
                np.lib.format.write_array(stream, array, allow_pickle=array.dtype.hasobject)


def test_influence_is_joined_to_the_rows_of_the_whole_batch(both: Path) -> None:
    data = load_step(TracedRun(both), 1)
    influence = data.metric("influence")
    expected = make_step().influence
    assert expected is not None
    assert data.arrays.rows == 8
    np.testing.assert_array_equal(influence[0], expected[0])
    np.testing.assert_array_equal(influence[6], expected[6])
    assert np.isnan(influence[[1, 2, 3, 4, 5, 7]]).all()
    assert data.notes == ()


def test_a_row_with_other_tokens_is_not_joined_and_said_so(tmp_path: Path) -> None:
    ids = np.tile(np.array(TEXT), (8, 1))
    other = make_step(responses=np.where(np.arange(8)[:, None] == 2, 4, ids))
    write_trace(tmp_path / "entropy_trace", {1: entropy_part(make_step())}, kind="entropy")
    write_trace(tmp_path / "influence_trace", {1: other})
    data = load_step(TracedRun(tmp_path), 1)
    assert np.isnan(data.metric("influence")[2]).all()
    assert "1 responses of the influence trace" in data.notes[0]


def test_damage_in_one_trace_leaves_the_other_readable(both: Path) -> None:
    (both / "influence_trace" / "steps" / "step_000001.npz").write_bytes(b"nothing")
    data = load_step(TracedRun(both), 1)
    assert list(data.metrics) == ["entropy", "log_prob"]
    assert "influence trace" in data.notes[0]


def test_a_step_damaged_everywhere_names_its_reasons(both: Path) -> None:
    for kind in ("entropy", "influence"):
        (both / f"{kind}_trace" / "steps" / "step_000001.npz").write_bytes(b"nothing")
    with pytest.raises(UnreadableStepError, match=r"entropy trace.*influence trace"):
        load_step(TracedRun(both), 1)


def test_further_per_token_arrays_are_found_in_the_file(run_folder: Path, tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step()})
    surprise = np.arange(8 * len(TEXT), dtype=np.float32).reshape(8, -1)
    add_arrays(
        folder / "steps" / "step_000001.npz",
        surprise=surprise,
        too_wide=np.zeros((8, 99)),
        words=np.array([["x"] * len(TEXT)] * 8),
        objects=np.array([[None] * len(TEXT)] * 8, dtype=object),
    )
    data = load_step(TracedRun(folder), 1)
    assert list(data.metrics) == [
        "entropy",
        "influence",
        "log_prob",
        "advantage",
        "surprise",
    ]
    np.testing.assert_array_equal(data.metric("surprise"), surprise)


def test_how_an_array_is_stored_is_no_metric_of_its_own(tmp_path: Path) -> None:
    rollout = np.full((8, len(TEXT)), -1.0)
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step(rollout_log_probs=rollout)})
    names = list(load_step(TracedRun(folder), 1).metrics)
    assert "rollout_log_prob" in names
    assert not [name for name in names if "delta" in name]


def test_older_traces_without_groups_are_grouped_by_uid(tmp_path: Path) -> None:
    step = make_step()
    held = step.arrays()
    del held["group_id"]
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: step})
    np.savez(folder / "steps" / "step_000001.npz", **held)
    assert load_step(TracedRun(folder), 1).groups.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_response_ends_after_its_last_valid_token_even_with_holes(run_folder: Path) -> None:
    data = load_step(TracedRun(run_folder), 1)
    assert data.spans[0] == len(TEXT)
    assert data.arrays.lengths[0] == len(TEXT) - 1


def test_the_cache_holds_a_bounded_number_of_steps_and_bytes(run_folder: Path) -> None:
    cache = StepCache(Library.open([run_folder]), max_bytes=10**9, max_steps=2)
    first = cache.get(0, 1)
    for step in (2, 3, 4, 5):
        cache.get(0, step)
    assert cache.nbytes == 2 * first.nbytes
    tight = StepCache(Library.open([run_folder]), max_bytes=1)
    for step in (1, 2):
        assert tight.get(0, step).step == step
    assert tight.nbytes == first.nbytes


def test_a_step_written_again_is_read_again(tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "run" / "influence_trace", {1: make_step(1)})
    cache = StepCache(Library.open([folder]))
    before = cache.get(0, 1)
    write_trace(folder, {1: make_step(2)})
    after = cache.get(0, 1)
    assert before.version != after.version
    assert not np.array_equal(before.arrays.entropies, after.arrays.entropies)


def test_what_is_not_there_is_named(run_folder: Path) -> None:
    library = Library.open([run_folder])
    data = load_step(library.runs[0], 1)
    with pytest.raises(ArcherError, match="no metric 'nonsense'; it holds entropy, influence"):
        data.metric("nonsense")
    with pytest.raises(ArcherError, match=r"no group 7; it holds groups 0, 1\.$"):
        data.rows_of_group(7)
    with pytest.raises(ArcherError, match=r"groups 0, .*, 15 and 24 more, up to 39\.$"):
        replace(data, groups=np.arange(40)).rows_of_group(77)
    with pytest.raises(ArcherError, match="no run 3"):
        library.run(3)
    with pytest.raises(ArcherError, match="--demo"):
        Library.open([])
