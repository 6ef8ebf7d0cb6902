"""`rollout_log_probs` in a file as a distance from `log_probs`: smaller, the same bits, checked when read."""

import zlib
from pathlib import Path

import numpy as np
import pytest

from archer.trace.deltas import STORED, decoded, encoded
from archer.trace.npz import write_npz
from archer.trace.reader import DamagedStepError, TraceReader
from archer.trace.schema import TraceStep
from archer.trace.writer import TraceWriter

# All patterns: NaNs, infinities, zeros of both signs.
EVERY = np.arange(2**16, dtype=np.uint16).view(np.float16)


def make_step(rollout: np.ndarray, train: np.ndarray) -> TraceStep:
    rows, length = train.shape
    return TraceStep(
        entropies=np.zeros((rows, length), np.float16),
        response_mask=np.ones((rows, length), np.bool_),
        responses=np.zeros((rows, length), np.int32),
        response_index=np.arange(rows, dtype=np.int32),
        log_probs=train,
        rollout_log_probs=rollout,
    )


def written(folder: Path, step: TraceStep) -> TraceReader:
    with TraceWriter(folder, kind="entropy", complete=False) as writer:
        writer.write(1, step)
    return TraceReader(folder)


def write_file(folder: Path, arrays: dict[str, np.ndarray]) -> TraceReader:
    (folder / "steps").mkdir(parents=True)
    with (folder / "steps" / "step_000001.npz").open("wb") as file:
        write_npz(file, arrays)
    return TraceReader(folder)


def test_every_float16_comes_back_bit_for_bit_from_every_other():
    shuffled = np.random.default_rng(0).permutation(EVERY)
    held = encoded({"rollout_log_probs": shuffled, "log_probs": EVERY})
    assert held[STORED].dtype == np.int16
    assert np.array_equal(decoded(held[STORED], EVERY).view(np.uint16), shuffled.view(np.uint16))


def test_a_trace_gives_back_what_was_written_whole_or_alone(tmp_path):
    train = EVERY.reshape(2, -1)
    rollout = train[::-1].copy()
    reader = written(tmp_path, make_step(rollout, train))
    with np.load(tmp_path / "steps" / "step_000001.npz") as file:
        assert STORED in file and "rollout_log_probs" not in file
    alone = reader.read_arrays(1, ["rollout_log_probs"])["rollout_log_probs"]
    for array in (reader.read(1).arrays.rollout_log_probs, alone):
        assert array is not None and np.array_equal(array.view(np.uint16), rollout.view(np.uint16))


def test_log_probs_that_nearly_agree_compress_to_less_than_two_thirds():
    rng = np.random.default_rng(1)
    train = -rng.exponential(0.5, (8, 4096)).astype(np.float16)
    rollout = (train * (1 + 0.01 * rng.standard_normal(train.shape))).astype(np.float16)
    delta = encoded({"rollout_log_probs": rollout, "log_probs": train})[STORED]
    assert len(zlib.compress(delta.tobytes(), 1)) < 0.67 * len(zlib.compress(rollout.tobytes(), 1))


def test_files_that_hold_the_array_itself_are_read(tmp_path):
    train = np.full((1, 3), -1, np.float16)
    reader = write_file(tmp_path, make_step(train * 2, train).arrays())
    assert reader.read(1).arrays.rollout_log_probs.tolist() == [[-2, -2, -2]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"log_probs": None}, "expected int16 in the shape of a float16 log_probs"),
        ({"log_probs": np.zeros((1, 3), np.float32)}, "expected int16"),
        ({STORED: np.zeros((1, 3), np.int32)}, "is int32"),
        ({STORED: np.zeros((1, 2), np.int16)}, "expected int16 in the shape"),
        ({"rollout_log_probs": np.zeros((1, 3), np.float16)}, "in the file twice"),
    ],
)
def test_a_difference_that_fits_nothing_is_damage(tmp_path, change, said):
    train = np.full((1, 3), -1, np.float16)
    arrays = encoded(make_step(train, train).arrays()) | change
    reader = write_file(tmp_path, {name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(DamagedStepError, match=said):
        reader.read(1)
