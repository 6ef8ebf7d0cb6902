"""Devices, pipes, sockets and folders are never replaced or waited for, whatever is to be written there."""

import os
import socket
import stat
from pathlib import Path

import pytest

from archer import files
from archer.errors import ArcherError
from archer.files import append_to, lock, plain_file, put_in_place, replace_atomically, write_atomically
from archer.tracking.jsonl import JsonlTracker, read_metrics


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.mkdir()


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def make_link_to_device(path: Path) -> None:
    path.symlink_to("/dev/null")


def make_link_to_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to(path.with_name("pipe"))


def make_loop(path: Path) -> None:
    path.symlink_to(path)


SPECIAL = (make_pipe, make_folder, make_socket, make_link_to_device, make_link_to_pipe, make_loop)
WRITERS = {
    "write": lambda path: write_atomically(path, "text"),
    "fill": lambda path: replace_atomically(path, lambda file: file.write(b"x"), fsync=False),
    "append": append_to,
    "lock": lambda path: lock(path, "held"),
    "metrics": lambda path: JsonlTracker(path, 3),
}


@pytest.mark.parametrize("make", SPECIAL)
@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_no_regular_file_is_refused_and_stays(tmp_path, make, writer):
    path = tmp_path / "out"
    make(path)
    before = path.lstat().st_mode
    with pytest.raises(ArcherError, match="out"):
        WRITERS[writer](path)
    assert path.lstat().st_mode == before
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_finished_file_is_not_put_in_the_place_of_a_pipe(tmp_path):
    made = tmp_path / "made"
    made.write_text("x")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArcherError, match="is a pipe, which is never replaced"):
        put_in_place(made, tmp_path / "pipe")


def test_a_link_to_a_file_is_written_through_and_stays_a_link(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"


def test_a_pipe_under_the_temporary_name_does_not_stop_the_writer(tmp_path):
    os.mkfifo(tmp_path / f".out{files.TEMPORARY_SUFFIX}")
    write_atomically(tmp_path / "out", "new", mode=0o600)
    assert (tmp_path / "out").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o600
    assert plain_file(tmp_path / "out") == (tmp_path / "out").resolve()


@pytest.mark.parametrize(
    "damage",
    [
        *(
            b"\xff\xfe\x00 no text\n",
            b"[1, 2]\n",
            b"null\n",
            b'{"step": "x"}\n',
            b'{"step": null}\n',
            b"{}\n",
        ),
        *(b'{"step": 1e999}\n', b'{"step": true}\n', b"\n", b'{"step": 3, "x', b"[" * 100_000 + b"\n"),
    ],
)
def test_a_damaged_metrics_file_keeps_its_good_lines(tmp_path, damage):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"step": 1, "x": 1.0}\n' + damage)
    assert read_metrics(file) == [{"step": 1, "x": 1.0}]
    tracker = JsonlTracker(file, last_step=2)
    tracker.log(3, {"x": 3.0})
    tracker.close()
    assert [line["step"] for line in read_metrics(file)] == [1, 3]
