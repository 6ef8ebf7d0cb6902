import json
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from archer.errors import ArcherError
from archer.trace import writer as writer_module
from archer.trace.check import check_trace
from archer.trace.deltas import encoded
from archer.trace.reader import TraceReader
from archer.trace.vocab import Vocab
from archer.trace.writer import NullTraceWriter, TraceWriter

ROOT = Path(__file__).parents[2]


def manifest_steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "manifest.jsonl").read_text().splitlines()]


def test_every_array_comes_back_bit_by_bit_and_plain_numpy_reads_it(tmp_path, step):
    made = step()
    with TraceWriter(tmp_path, kind="influence") as writer:
        writer.write(1, made)
    read = TraceReader(tmp_path).read(1)
    plain = np.load(tmp_path / "steps/step_000001.npz", allow_pickle=False)
    stored = encoded(made.arrays())
    assert set(plain.files) == set(stored)
    for expected, found in ((stored, plain), (made.arrays(), read.arrays.arrays())):
        assert set(expected) == set(found)
        for name, array in expected.items():
            assert found[name].dtype == array.dtype
            assert found[name].tobytes() == array.tobytes()
    assert read.notes == ()


def test_a_trace_holds_the_files_of_the_contract(tmp_path, step):
    with TraceWriter(
        tmp_path, kind="entropy", vocab=Vocab.from_tokens([b"a"]), metadata={"lr": 1e-6}
    ) as writer:
        writer.write(3, step(influence=False))
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {
        "summary.json",
        "manifest.jsonl",
        "latest_step.txt",
        "vocab.npz",
        "steps/step_000003.npz",
    }
    assert (tmp_path / "latest_step.txt").read_text() == "3\n"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["format_version"] == "2.1"
    assert (summary["kind"], summary["steps"], summary["latest_step"]) == ("entropy", 1, 3)
    assert summary["metadata"] == {"lr": 1e-6}


def test_the_manifest_line_holds_the_step_statistics(tmp_path, step):
    made = step(rows=6, width=20)
    made.influence[0, :3] = np.nan
    with TraceWriter(tmp_path, kind="influence") as writer:
        writer.write(1, made)
    line = json.loads((tmp_path / "manifest.jsonl").read_text())
    entropies, influences, lengths = [], [], []
    for row in range(6):
        lengths.append(0)
        for column in range(made.response_mask.shape[1]):
            if made.response_mask[row, column]:
                lengths[-1] += 1
                entropies.append(float(made.entropies[row, column]))
                if not np.isnan(made.influence[row, column]):
                    influences.append(abs(float(made.influence[row, column])))
    assert (line["rows"], line["tokens"], line["groups"]) == (6, len(entropies), 3)
    assert line["mean_entropy"] == pytest.approx(sum(entropies) / len(entropies), rel=1e-12)
    assert line["mean_abs_influence"] == pytest.approx(sum(influences) / len(influences), rel=1e-12)
    assert line["influence_tokens"] == len(influences) == len(entropies) - 3
    assert line["mean_response_length"] == pytest.approx(sum(lengths) / 6)
    assert line["max_response_length"] == max(lengths)
    assert line["mean_reward"] == pytest.approx(float(made.reward.astype(np.float64).mean()), rel=1e-12)
    assert line["accepted_share"] == sum(made.accepted.tolist()) / 6
    assert line["bytes"] == (tmp_path / "steps/step_000001.npz").stat().st_size


def test_a_step_without_tokens_has_no_means_and_valid_json(tmp_path, batch):
    given = batch()
    given["response_mask"][:] = False
    with TraceWriter(tmp_path, kind="influence") as writer:
        writer.write(1, writer_module.TraceStep.from_batch(**given))
    assert json.loads((tmp_path / "manifest.jsonl").read_text())["mean_entropy"] is None
    assert check_trace(tmp_path).whole


def test_resuming_appends(tmp_path, step):
    for first in (1, 3):
        with TraceWriter(tmp_path, kind="influence") as writer:
            writer.write(first, step())
            writer.write(first + 1, step())
    assert manifest_steps(tmp_path) == [1, 2, 3, 4]
    assert TraceReader(tmp_path).summary.steps == 4


def test_a_step_written_twice_is_replaced_and_its_last_line_wins(tmp_path, step):
    with TraceWriter(tmp_path, kind="influence") as writer:
        writer.write(1, step(rows=2))
        writer.write(2, step(rows=2))
        writer.write(1, step(rows=6))
    reader = TraceReader(tmp_path)
    assert manifest_steps(tmp_path) == [1, 2, 1]
    assert [entry.step for entry in reader.entries] == [1, 2]
    assert reader.entry(1).line.statistics.rows == reader.read(1).arrays.rows == 6
    assert (tmp_path / "latest_step.txt").read_text() == "2\n"


def test_truncating_drops_the_steps_after_the_checkpoint(tmp_path, step):
    with TraceWriter(tmp_path, kind="influence") as writer:
        for number in range(1, 6):
            writer.write(number, step())
    with TraceWriter(tmp_path, kind="influence") as writer:
        writer.truncate_after(3)
        assert (tmp_path / "latest_step.txt").read_text() == "3\n"
        writer.write(4, step(rows=2))
    assert manifest_steps(tmp_path) == [1, 2, 3, 4]
    assert sorted(path.name for path in (tmp_path / "steps").iterdir())[-1] == "step_000004.npz"
    with TraceWriter(tmp_path, kind="influence") as writer:
        writer.truncate_after(0)
    assert check_trace(tmp_path).steps == ()
    assert not (tmp_path / "latest_step.txt").exists()


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_manifest_tail_is_repaired_on_open(tmp_path, step, cut):
    with TraceWriter(tmp_path, kind="influence") as writer:
        writer.write(1, step())
        writer.write(2, step())
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes()[:-cut])
    with TraceWriter(tmp_path, kind="influence") as writer:
        writer.write(3, step())
    assert manifest_steps(tmp_path) == ([1, 2, 3] if cut == 1 else [1, 3])
    assert check_trace(tmp_path).steps == (1, 2, 3)


def test_temporary_files_of_a_killed_writer_are_removed_on_open(tmp_path):
    stale = [tmp_path / "steps/.step_000004.npz.tmp", tmp_path / ".summary.json.tmp"]
    stale[0].parent.mkdir()
    for path in stale:
        path.write_bytes(b"half")
    TraceWriter(tmp_path, kind="entropy").close()
    assert not any(path.exists() for path in stale)


def test_only_every_nth_step_is_wanted_and_written(tmp_path, step):
    with TraceWriter(tmp_path, kind="influence", write_every=3) as writer:
        assert [number for number in range(1, 8) if writer.wants(number)] == [3, 6]
        for number in range(1, 8):
            writer.write(number, step())
    assert manifest_steps(tmp_path) == [3, 6]


def test_fsync_writes_the_same_files(tmp_path, step):
    for name, fsync in (("a", False), ("b", True)):
        with TraceWriter(tmp_path / name, kind="influence", fsync=fsync) as writer:
            writer.write(1, step())
    files = [(tmp_path / name / "steps/step_000001.npz").read_bytes() for name in "ab"]
    assert files[0] == files[1]


def test_a_full_queue_blocks_and_drops_nothing(tmp_path, step, monkeypatch):
    gate = threading.Event()
    real = writer_module.write_npz

    def held_back(file, arrays):
        assert gate.wait(30)
        real(file, arrays)

    monkeypatch.setattr(writer_module, "write_npz", held_back)
    with TraceWriter(tmp_path, kind="influence") as writer:
        writer.write(1, step())
        second = threading.Thread(target=writer.write, args=(2, step()))
        second.start()
        second.join(0.2)
        assert second.is_alive()
        gate.set()
        second.join(30)
        assert not second.is_alive()
    assert check_trace(tmp_path).steps == (1, 2)


def test_a_full_disk_surfaces_at_the_next_write_and_at_close(tmp_path, step):
    writer = TraceWriter(tmp_path, kind="influence")
    writer.write(1, step())
    writer.flush()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # a file that cannot grow, as on a full disk
    try:
        writer.write(2, step(rows=64))
        with pytest.raises(ArcherError, match="step 2 could not be written"):
            writer.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    with pytest.raises(ArcherError, match="step 2 could not be written"):
        writer.write(3, step())
    with pytest.raises(ArcherError, match="step 2 could not be written"):
        writer.close()
    report = check_trace(tmp_path)
    assert report.whole
    assert report.steps == (1,)


def test_a_folder_taken_away_surfaces_while_other_writes_wait(tmp_path, step):
    writer = TraceWriter(tmp_path / "trace", kind="influence")
    (tmp_path / "trace/steps").rmdir()

    def train():
        for number in range(1, 10):
            writer.write(number, step())
        writer.flush()

    with pytest.raises(ArcherError, match="could not be written"):
        train()
    with pytest.raises(ArcherError, match="could not be written"):
        writer.close()


def test_a_write_error_does_not_hide_the_error_that_ends_training(tmp_path, step):
    def train():
        with TraceWriter(tmp_path, kind="influence") as writer:
            (tmp_path / "steps").rmdir()
            writer.write(1, step())
            raise ValueError("loss is NaN")

    with pytest.raises(ValueError, match="loss is NaN") as caught:
        train()
    assert "step 1 could not be written" in caught.value.__notes__[0]


def test_an_output_dir_that_cannot_be_made_is_refused_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArcherError, match="output_dir"):
        TraceWriter(tmp_path / "file/trace", kind="entropy")


def test_another_kind_vocabulary_or_format_is_not_appended_to(tmp_path):
    TraceWriter(tmp_path, kind="entropy", vocab=Vocab.from_tokens([b"a"])).close()
    TraceWriter(tmp_path, kind="entropy", vocab=Vocab.from_tokens([b"a"])).close()
    with pytest.raises(ArcherError, match="holds an entropy trace"):
        TraceWriter(tmp_path, kind="influence")
    with pytest.raises(ArcherError, match="another vocabulary"):
        TraceWriter(tmp_path, kind="entropy", vocab=Vocab.from_tokens([b"b"]))
    (tmp_path / "summary.json").write_text('{"format_version": "3.0"}')
    with pytest.raises(ArcherError, match=r"format 3\.0"):
        TraceWriter(tmp_path, kind="entropy")


def test_a_damaged_vocabulary_is_written_again(tmp_path):
    (tmp_path / "vocab.npz").write_bytes(b"no table")
    TraceWriter(tmp_path, kind="entropy", vocab=Vocab.from_tokens([b"a"])).close()
    assert TraceReader(tmp_path).vocab.token(0) == b"a"


@pytest.mark.parametrize(
    "options", [{"write_every": 0}, {"queue_size": 0}, {"kind": "loss"}, {"metadata": {"x": float("nan")}}]
)
def test_bad_options_are_refused(tmp_path, options):
    with pytest.raises(ArcherError, match=next(iter(options))):
        TraceWriter(tmp_path, **{"kind": "entropy", **options})


def test_a_step_that_lacks_arrays_is_refused_in_the_training_thread(tmp_path, step):
    with (
        TraceWriter(tmp_path, kind="influence") as writer,
        pytest.raises(ArcherError, match="lacks influence"),
    ):
        writer.write(1, step(influence=False))


def test_a_closed_writer_takes_no_step(tmp_path, step):
    writer = TraceWriter(tmp_path, kind="influence")
    writer.close()
    writer.close()
    with pytest.raises(ArcherError, match="closed"):
        writer.write(1, step())


def test_a_script_that_never_closes_its_writer_still_leaves_its_last_step(tmp_path):
    code = (
        "import sys, runpy, pathlib\n"
        "from archer.trace.schema import TraceStep\n"
        "from archer.trace.writer import TraceWriter\n"
        "make_batch = runpy.run_path(sys.argv[2])['make_batch']\n"
        "made = TraceStep.from_batch(**make_batch(rows=500, width=500))\n"
        "TraceWriter(sys.argv[1], kind='influence').write(1, made)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).with_name("conftest.py"))],
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert check_trace(tmp_path).steps == (1,)


def test_the_null_writer_wants_and_leaves_nothing(tmp_path, step, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with NullTraceWriter() as writer:
        assert not writer.wants(1)
        writer.truncate_after(0)
        writer.write(1, step())
        writer.flush()
    assert list(tmp_path.iterdir()) == []


def test_the_trace_core_imports_neither_torch_nor_rich():
    code = (
        "import sys, archer.trace.writer, archer.trace.check\n"
        "print(*{'torch', 'rich', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == ""


def test_a_trace_that_lost_a_step_says_so_when_it_is_opened_to_be_continued(tmp_path, step, caplog):
    with TraceWriter(tmp_path, kind="influence") as writer:
        for number in (1, 2, 3):
            writer.write(number, step())
    (tmp_path / "steps/step_000002.npz").unlink()
    with TraceWriter(tmp_path, kind="influence"):
        pass
    assert "has lost 1 step files, that of step 2 first" in caplog.text
