import io
import json
import os
import pickle
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest

from archer.errors import ArcherError
from archer.trace.check import check_trace
from archer.trace.npz import DamagedFileError, NpzReader, write_npz
from archer.trace.reader import DamagedStepError, LoadedStep, StepProblem, TraceReader, find_traces
from archer.trace.writer import TraceWriter


@pytest.fixture
def trace(tmp_path, step) -> Path:
    """An influence trace of steps 1 to 4."""
    folder = tmp_path / "influence_trace"
    with TraceWriter(folder, kind="influence") as writer:
        for number in range(1, 5):
            writer.write(number, step(seed=number))
    return folder


def step_file(folder: Path, step: int) -> Path:
    return folder / f"steps/step_{step:06d}.npz"


def put(folder: Path, step: int, arrays: dict[str, np.ndarray]) -> None:
    with step_file(folder, step).open("wb") as file:
        write_npz(file, arrays)


def read_all(folder: Path) -> tuple[list[int], dict[int, str]]:
    found = list(TraceReader(folder))
    good = [item.step for item in found if isinstance(item, LoadedStep)]
    return good, {item.step: item.reason for item in found if isinstance(item, StepProblem)}


def test_a_long_trace_opens_from_the_manifest_alone(tmp_path):
    (tmp_path / "steps").mkdir()
    lines = [json.dumps({"step": step, "mean_entropy": step / 2, "rows": 3}) for step in range(1, 1001)]
    (tmp_path / "manifest.jsonl").write_text("\n".join(lines) + "\n")
    for step in range(1, 1001):
        step_file(tmp_path, step).write_bytes(b"not a step file")
    entries = TraceReader(tmp_path).entries
    assert len(entries) == 1000
    assert entries[-1].line.statistics.mean_entropy == 500.0
    assert all(entry.problem is None for entry in entries)


def test_missing_and_damaged_steps_are_reported_and_the_rest_is_read(trace):
    step_file(trace, 1).unlink()
    step_file(trace, 2).write_bytes(step_file(trace, 2).read_bytes()[:-200])
    step_file(trace, 4).write_bytes(b"garbage")
    good, problems = read_all(trace)
    assert good == [3]
    assert set(problems) == {1, 2, 4}
    assert "missing" in problems[1]
    assert TraceReader(trace).entry(1).problem == StepProblem(1, "its file is missing")
    report = check_trace(trace)
    assert not report.whole
    assert len(report.problems) == 3


def test_reading_a_damaged_step_raises_its_step_and_reason(trace):
    step_file(trace, 2).write_bytes(b"garbage")
    with pytest.raises(DamagedStepError, match="step 2") as caught:
        TraceReader(trace).read(2)
    assert caught.value.problem.step == 2


def test_a_step_that_was_never_written_is_a_clear_error(trace):
    with pytest.raises(ArcherError, match=r"no step 9; it holds 4 steps from 1 to 4"):
        TraceReader(trace).read(9)


def test_any_damaged_byte_is_reported_or_harmless_and_never_another_error(trace):
    rng = random.Random(0)
    sound = step_file(trace, 1).read_bytes()
    expected = TraceReader(trace).read(1).arrays.arrays()
    reported = 0
    for _ in range(300):
        data = bytearray(sound)
        for _ in range(rng.choice([1, 1, 4, 40])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        step_file(trace, 1).write_bytes(bytes(data[: rng.choice([len(data), rng.randrange(len(data))])]))
        try:
            read = TraceReader(trace).read(1).arrays.arrays()
        except DamagedStepError:
            reported += 1
        else:  # a CRC guards the data, so what is read without complaint is what was written
            for name, array in read.items():
                assert array.tobytes() == expected[name].tobytes()
    assert reported > 200


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"influence": np.zeros((4, 5), np.float32)}, "influence has shape"),
        ({"reward": np.zeros(3, np.float32)}, "reward has shape"),
        ({"entropies": np.zeros((4, 6), "U3")}, "entropies is <U3"),
        ({"response_mask": np.zeros((4, 6, 1), np.bool_)}, "at most 2 dimensions"),
        ({"response_mask": None}, "lacks response_mask"),
        ({"prompt_offsets": np.array([0, 9, 1, 2, 3])}, "prompt_offsets"),
        ({"responses": np.full((4, 6), 2**40)}, "responses holds values outside int32"),
        ({"reward": np.zeros(4, [("a", "f4")])}, "not a plain array"),
    ],
)
def test_arrays_that_contradict_the_contract_are_damage(trace, change, reason):
    arrays = {**TraceReader(trace).read(1).arrays.arrays(), **change}
    put(trace, 1, {name: array for name, array in arrays.items() if array is not None})
    good, problems = read_all(trace)
    assert good == [2, 3, 4]
    assert reason in problems[1]


def test_a_claim_of_an_absurd_shape_is_refused_before_room_is_made(trace):
    arrays = TraceReader(trace).read(1).arrays.arrays()
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (10**7, 10**7)}
    )
    with zipfile.ZipFile(step_file(trace, 1), "w") as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array)
            archive.writestr(f"{name}.npy", header.getvalue() if name == "influence" else member.getvalue())
    assert "would unfold to" in read_all(trace)[1][1]


def test_a_bomb_of_zeros_is_refused_by_its_size(tmp_path):
    with (tmp_path / "bomb.npz").open("wb") as file:
        write_npz(file, {"data": np.zeros(2**22, np.uint8)})
    with pytest.raises(DamagedFileError, match="unfold"):
        NpzReader(tmp_path / "bomb.npz", only=("data",), max_bytes=2**20)


def test_more_or_less_data_than_the_header_says_is_damage(tmp_path):
    member = io.BytesIO()
    np.lib.format.write_array(member, np.zeros(100, np.uint8))
    for name, content in (("more", member.getvalue() + b"x"), ("less", member.getvalue()[:-1])):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("data.npy", content)
        with (
            NpzReader(tmp_path / name, only=("data",)) as npz,
            pytest.raises(DamagedFileError, match="holds"),
        ):
            npz.read("data")


class Detonator:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.fixture
def old_trace(tmp_path) -> Path:
    """A trace of the first format: few arrays, configured width, pickled prompts, no format_version."""
    folder = tmp_path / "influence_trace"
    (folder / "steps").mkdir(parents=True)
    prompts = np.empty(2, dtype=object)
    prompts[:] = [[1, 2, 3], Detonator(tmp_path / "detonated")]
    np.savez_compressed(
        step_file(folder, 1),
        entropies=np.ones((2, 16), np.float16),
        response_mask=np.arange(16) < np.array([[5], [3]]),
        responses=np.arange(32).reshape(2, 16).astype(np.int32),
        response_index=np.array([4, 7], np.int32),
        influence=np.zeros((2, 16), np.float32),
        reward=np.array([1.0, 0.0], np.float32),
        accepted=np.array([True, False]),
        group_id=np.array([0, 0], np.int32),
        uid=np.array(["a", "b"], dtype=object),
        prompt_ids=prompts,
    )
    (folder / "manifest.jsonl").write_text('{"step": 1, "path": "/etc/passwd", "num_responses": 2}\n')
    (folder / "summary.json").write_text('{"experiment": "old", "num_steps": 1}')
    return folder


def test_a_trace_of_the_first_format_is_read_without_its_prompts(old_trace, tmp_path):
    reader = TraceReader(old_trace)
    loaded = reader.read(1)
    assert reader.summary.kind == "influence"
    assert reader.vocab is None
    assert loaded.arrays.response_index.tolist() == [4, 7]
    assert loaded.arrays.reward.tolist() == [1.0, 0.0]
    assert loaded.arrays.log_probs is None
    assert loaded.arrays.prompt(0) is None
    assert any("prompts need re-export" in note for note in loaded.notes)
    assert any(note.startswith("uid") for note in loaded.notes)
    assert check_trace(old_trace).whole
    assert not (tmp_path / "detonated").exists()


def test_the_detonator_of_these_tests_does_go_off_when_unpickled(tmp_path):
    pickle.loads(pickle.dumps(Detonator(tmp_path / "detonated")))
    assert (tmp_path / "detonated").exists()


def test_objects_in_an_array_that_every_step_needs_are_damage_and_stay_pickled(old_trace, tmp_path):
    bombs = np.empty((2, 16), dtype=object)
    bombs[:] = Detonator(tmp_path / "detonated")
    np.savez(step_file(old_trace, 1), entropies=bombs, response_mask=np.ones((2, 16), bool))
    assert "lacks entropies" in read_all(old_trace)[1][1]
    assert not (tmp_path / "detonated").exists()


def test_a_newer_major_version_is_refused_and_a_newer_minor_one_is_read(trace):
    summary = json.loads((trace / "summary.json").read_text())
    (trace / "summary.json").write_text(json.dumps({**summary, "format_version": "2.7", "new_key": 1}))
    assert len(TraceReader(trace).entries) == 4
    (trace / "summary.json").write_text(json.dumps({**summary, "format_version": "3.0"}))
    with pytest.raises(ArcherError, match=r"format 3\.0.*up to 2\.x.*Update Archer"):
        TraceReader(trace)


@pytest.mark.parametrize("content", ["[]", "{", '{"format_version": "new"}', "[" * 100_000])
def test_a_summary_that_is_none_is_a_clear_error(trace, content):
    (trace / "summary.json").write_text(content)
    with pytest.raises(ArcherError, match=r"summary\.json|format_version"):
        TraceReader(trace)


def test_without_manifest_and_summary_the_step_files_are_listed(trace):
    (trace / "manifest.jsonl").unlink()
    (trace / "summary.json").unlink()
    reader = TraceReader(trace)
    assert [entry.step for entry in reader.entries] == [1, 2, 3, 4]
    assert reader.read(2).arrays.rows == 4
    assert check_trace(trace).whole


@pytest.mark.parametrize(
    "bad", ["{", "[1]", "1", '{"step": -1}', '{"step": "2"}', '{"step": true}', "\udcff"]
)
def test_a_bad_manifest_line_is_reported_and_the_others_count(trace, bad):
    lines = (trace / "manifest.jsonl").read_text().splitlines()
    lines.insert(1, bad)
    (trace / "manifest.jsonl").write_text("\n".join(lines) + "\n", errors="surrogateescape")
    reader = TraceReader(trace)
    assert [entry.step for entry in reader.entries] == [1, 2, 3, 4]
    assert [(line.number, line.torn) for line in reader.bad_lines] == [(2, False)]
    assert not check_trace(trace).whole


def test_a_last_line_cut_short_is_mentioned_and_accepted(trace):
    manifest = trace / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes()[:-30])
    reader = TraceReader(trace)
    assert [line.torn for line in reader.bad_lines] == [True]
    assert reader.entry(4).line is None
    report = check_trace(trace)
    assert report.whole
    assert any("cut short" in remark for remark in report.remarks)


def test_an_endless_manifest_line_is_one_bad_line(trace):
    manifest = trace / "manifest.jsonl"
    manifest.write_bytes(b"x" * (3 * 2**20) + b"\n" + manifest.read_bytes())
    reader = TraceReader(trace)
    assert [line.number for line in reader.bad_lines] == [1]
    assert all(entry.line is not None for entry in reader.entries)


def test_numbers_of_a_stranger_are_taken_only_when_they_are_numbers(trace):
    line = (
        '{"step": 1, "rows": "many", "mean_entropy": NaN, "mean_reward": 1e999, "tokens": 1'
        + "0" * 400
        + "}\n"
    )
    (trace / "manifest.jsonl").write_text(line)
    statistics = TraceReader(trace).entry(1).line.statistics
    assert (statistics.rows, statistics.mean_entropy, statistics.mean_reward, statistics.tokens) == (
        None,
    ) * 4


def test_links_that_lead_out_of_the_trace_are_refused(trace, tmp_path):
    outside = tmp_path / "outside.npz"
    step_file(trace, 2).rename(outside)
    step_file(trace, 2).symlink_to(outside)
    good, problems = read_all(trace)
    assert good == [1, 3, 4]
    assert "leads out of the trace folder" in problems[2]
    (trace / "manifest.jsonl").rename(tmp_path / "manifest.jsonl")
    (trace / "manifest.jsonl").symlink_to(tmp_path / "manifest.jsonl")
    with pytest.raises(ArcherError, match="leads out"):
        TraceReader(trace)


def test_a_linked_steps_folder_is_refused_step_by_step(trace, tmp_path):
    (trace / "steps").rename(tmp_path / "elsewhere")
    (trace / "steps").symlink_to(tmp_path / "elsewhere")
    good, problems = read_all(trace)
    assert good == []
    assert all("leads out" in reason for reason in problems.values())


def test_a_trace_reached_through_a_link_is_read(trace, tmp_path):
    (tmp_path / "latest").symlink_to(trace)
    assert read_all(tmp_path / "latest")[0] == [1, 2, 3, 4]


def test_a_pipe_in_place_of_a_step_is_reported_and_not_waited_for(trace):
    step_file(trace, 2).unlink()
    os.mkfifo(step_file(trace, 2))
    assert "not a regular file" in read_all(trace)[1][2]


def test_some_arrays_can_be_read_alone(trace):
    reader = TraceReader(trace)
    some = reader.read_arrays(2, ("reward", "accepted", "nonsense"))
    assert set(some) == {"reward", "accepted"}
    np.testing.assert_array_equal(some["reward"], reader.read(2).arrays.reward)


def test_arrays_in_fortran_order_keep_their_places(trace):
    arrays = TraceReader(trace).read(1).arrays.arrays()
    put(trace, 1, {**arrays, "influence": np.asfortranarray(arrays["influence"])})
    np.testing.assert_array_equal(TraceReader(trace).read(1).arrays.influence, arrays["influence"])


def test_refreshing_finds_the_steps_of_a_run_that_goes_on(trace, step):
    reader = TraceReader(trace)
    with TraceWriter(trace, kind="influence") as writer:
        writer.write(5, step())
    assert len(reader.entries) == 4
    reader.refresh()
    assert reader.entries[-1].step == 5


def test_traces_are_found_from_the_run_folder_and_from_their_own(trace, tmp_path):
    assert find_traces(trace) == [trace]
    assert find_traces(tmp_path) == [trace]
    TraceWriter(tmp_path / "entropy_trace", kind="entropy").close()
    assert find_traces(tmp_path) == [tmp_path / "entropy_trace", trace]
    for nothing in (tmp_path / "absent", trace / "steps"):
        with pytest.raises(ArcherError, match="trace"):
            find_traces(nothing)
