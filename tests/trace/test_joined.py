"""An influence trace that refers to the entropy trace beside it reads as if it held everything itself."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from archer.errors import ArcherError
from archer.trace.check import check_trace
from archer.trace.convert import convert_trace
from archer.trace.files import SUMMARY
from archer.trace.reader import DamagedStepError, TraceReader
from archer.trace.schema import TraceStep
from archer.trace.writer import TraceWriter

ROWS = [5, 0, 3]  # of the eight responses of a step, those whose influence was computed


def chosen(batch: dict, rows: list[int]) -> dict:
    return {
        name: [value[row] for row in rows] if isinstance(value, list) else np.asarray(value)[rows]
        for name, value in batch.items()
    }


@pytest.fixture
def steps(batch) -> dict[int, tuple[TraceStep, TraceStep]]:
    """step -> the whole step as the entropy trace has it, and the rows of the influence trace."""
    found = {}
    for number in (1, 2, 3):
        given = batch(rows=8, width=12, seed=number)
        own = chosen(given, ROWS)
        own["response_mask"][:, 9:] = False  # no traced response is as long as the longest
        given["response_mask"][ROWS] = own["response_mask"]
        whole = {name: value for name, value in given.items() if name not in ("influence", "advantage")}
        found[number] = TraceStep.from_batch(**whole), TraceStep.from_batch(**own)
    return found


@pytest.fixture
def written(tmp_path: Path, steps) -> Path:
    """A run whose step 2 is not in its entropy trace."""
    run = tmp_path / "run"
    with (
        TraceWriter(run / "entropy_trace", kind="entropy") as entropy,
        TraceWriter(run / "influence_trace", kind="influence", beside=entropy) as influence,
        TraceWriter(run / "alone", kind="influence") as alone,
    ):
        for number, (whole, own) in steps.items():
            if number != 2:
                entropy.write(number, whole)
            influence.write(number, own, refers=number != 2)
            alone.write(number, own)
    return run


def same(one: TraceStep, other: TraceStep) -> bool:
    ours, theirs = one.arrays(), other.arrays()
    return ours.keys() == theirs.keys() and all(
        np.array_equal(ours[name], theirs[name], equal_nan=ours[name].dtype.kind == "f") for name in ours
    )


def test_a_joined_trace_reads_as_one_that_stands_alone(written, steps):
    joined, alone = TraceReader(written / "influence_trace"), TraceReader(written / "alone")
    for number, (_, own) in steps.items():
        assert same(joined.read(number).arrays, own)
        assert same(joined.read(number).arrays, alone.read(number).arrays)
        assert joined.entry(number).line.statistics == alone.entry(number).line.statistics


def test_what_is_read_already_is_not_read_again(written, steps):
    reader = TraceReader(written / "influence_trace")
    whole = TraceReader(written / "entropy_trace").read(1).arrays
    (written / "entropy_trace/steps/step_000001.npz").unlink()
    assert same(reader.read(1, beside=whole).arrays, steps[1][1])


def test_some_arrays_come_from_either_trace(written, steps):
    reader = TraceReader(written / "influence_trace")
    own = steps[3][1].arrays()
    for names in (["influence"], ["reward", "uid"], ["prompt_ids"], ["entropies", "advantage", "credit"]):
        got = reader.read_arrays(3, names)
        assert {*got} == {*names}
        assert all(
            np.array_equal(got[name], own[name], equal_nan=own[name].dtype.kind == "f") for name in names
        )


def test_the_file_holds_nothing_that_the_entropy_trace_holds(written):
    with np.load(written / "influence_trace/steps/step_000001.npz") as file:
        assert {*file} == {"response_index", "response_mask", "influence", "advantage", "token_crc"}
    with np.load(written / "influence_trace/steps/step_000002.npz") as file:
        assert "entropies" in file, "its step is in no other trace"


def test_the_check_finds_it_whole(written):
    assert check_trace(written / "influence_trace").whole


def test_both_folders_may_be_moved_together(written, tmp_path, steps, monkeypatch):
    shutil.move(written, tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "elsewhere/influence_trace")
    assert same(TraceReader(".").read(1).arrays, steps[1][1])


def test_one_that_was_moved_alone_says_what_is_missing(written, tmp_path, steps):
    moved = tmp_path / "alone" / "influence_trace"
    shutil.copytree(written / "influence_trace", moved)
    reader = TraceReader(moved)
    with pytest.raises(DamagedStepError, match=r"entropy_trace, which is not beside .*move both folders"):
        reader.read(1)
    assert same(reader.read(2).arrays, steps[2][1]), "this one refers to nothing"
    report = check_trace(moved)
    assert not report.whole and "not beside" in report.render()


def test_a_step_that_the_other_trace_lost_is_that_steps_problem(written, steps):
    (written / "entropy_trace/steps/step_000001.npz").unlink()
    reader = TraceReader(written / "influence_trace")
    with pytest.raises(DamagedStepError, match="entropy_trace, which has no step 1"):
        reader.read(1)
    assert same(reader.read(3).arrays, steps[3][1])


def test_a_step_of_another_run_is_refused(written, steps):
    shutil.copy(
        written / "entropy_trace/steps/step_000003.npz", written / "entropy_trace/steps/step_000001.npz"
    )
    with pytest.raises(DamagedStepError, match=r"response \d+ is another one"):
        TraceReader(written / "influence_trace").read(1)


@pytest.mark.parametrize("name", ["../run/entropy_trace", "/etc", "..", ".", "", "a\\b", 3])
def test_a_name_that_leads_elsewhere_is_not_followed(written, name):
    file = written / "influence_trace" / SUMMARY
    file.write_text(json.dumps(json.loads(file.read_text()) | {"refers_to": name}))
    with pytest.raises(DamagedStepError, match=r"not the name of a folder beside it|does not name"):
        TraceReader(written / "influence_trace").read(1)


def test_a_link_in_the_place_of_the_folder_is_not_followed(written):
    (written / "entropy_trace").rename(written.parent / "outside")
    (written / "entropy_trace").symlink_to(written.parent / "outside")
    with pytest.raises(DamagedStepError, match="not the name of a folder beside it"):
        TraceReader(written / "influence_trace").read(1)


def test_a_conversion_makes_it_stand_alone(written, tmp_path, steps):
    convert_trace(written / "influence_trace", tmp_path / "new" / "influence_trace")
    reader = TraceReader(tmp_path / "new" / "influence_trace")
    assert reader.summary.refers_to is None
    for number, (_, own) in steps.items():
        assert same(reader.read(number).arrays, own)


def test_a_resumed_run_goes_on_referring(written, steps):
    with (
        TraceWriter(written / "entropy_trace", kind="entropy") as entropy,
        TraceWriter(written / "influence_trace", kind="influence", beside=entropy) as influence,
    ):
        for writer in (entropy, influence):
            writer.truncate_after(2)
        whole, own = steps[3]
        entropy.write(3, whole)
        influence.write(3, own, refers=True)
    reader = TraceReader(written / "influence_trace")
    assert [entry.step for entry in reader.entries] == [1, 2, 3]
    assert all(same(reader.read(number).arrays, own) for number, (_, own) in steps.items())


def test_one_resumed_to_stand_alone_still_finds_its_earlier_steps(written, steps):
    with TraceWriter(written / "influence_trace", kind="influence") as influence:
        influence.write(4, steps[3][1])
    assert same(TraceReader(written / "influence_trace").read(1).arrays, steps[1][1])


def test_the_entropy_step_is_on_the_disk_before_the_one_that_refers_to_it(tmp_path, steps, monkeypatch):
    order: list[str] = []
    real = TraceWriter._write_ending

    def noted(self: TraceWriter) -> None:
        order.append(self.folder.name)
        real(self)

    whole, own = steps[1]
    with (
        TraceWriter(tmp_path / "entropy_trace", kind="entropy") as entropy,
        TraceWriter(tmp_path / "influence_trace", kind="influence", beside=entropy) as influence,
    ):
        monkeypatch.setattr(TraceWriter, "_write_ending", noted)
        for number in range(20):
            entropy.write(number, whole)
            influence.write(number, own, refers=True)
    assert [name for name in order if name == "influence_trace"] == ["influence_trace"] * 20
    for number in range(20):
        before = order[: [i for i, name in enumerate(order) if name == "influence_trace"][number]]
        assert before.count("entropy_trace") > number


def test_a_trace_elsewhere_cannot_be_referred_to(tmp_path):
    with (
        TraceWriter(tmp_path / "a" / "entropy_trace", kind="entropy") as entropy,
        pytest.raises(ArcherError, match="not beside it"),
    ):
        TraceWriter(tmp_path / "b" / "influence_trace", kind="influence", beside=entropy)
