"""Raw records from files of every supported format, and from damaged ones."""

import gzip
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archer.data.files import read_rows, read_source
from archer.errors import ArcherError

ROWS = [{"q": "één"}, {"q": "zwei"}, {"q": "three\u2028lines"}]


def file_of(folder, name: str):
    path = folder / name
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()
    listed = json.dumps(ROWS, ensure_ascii=False).encode()
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines if ".jsonl" in name else listed))
    else:
        path.write_bytes(lines if name.endswith(".jsonl") else listed)
    return path


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.json", "a.jsonl.gz", "a.json.gz"])
def test_every_format_gives_the_same_records_with_their_places(tmp_path, name):
    records = list(read_source(file_of(tmp_path, name)))
    assert [record.values for record in records] == ROWS
    unit = "line" if ".jsonl" in name else "row"
    assert [record.where for record in records] == [f"{unit} {i}" for i in (1, 2, 3)]
    assert records[-1].done == 1.0 and all(record.problem is None for record in records)


def test_a_bad_line_is_a_record_with_a_problem_and_blank_lines_only_count(write):
    records = list(read_source(write("a.jsonl", {"q": 1}, "", '{"q": ', "[1, 2]", {"q": 2})))
    assert [(record.where, record.values, record.problem) for record in records] == [
        ("line 1", {"q": 1}, None),
        ("line 3", {}, "not valid JSON: Expecting value"),
        ("line 4", {}, "found list, expected an object with the row's fields"),
        ("line 5", {"q": 2}, None),
    ]


def test_a_byte_order_mark_and_a_list_under_a_name_are_understood(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"version": 1, "data": ROWS}), encoding="utf-8-sig")
    assert [record.values for record in read_source(tmp_path / "a.json")] == ROWS


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"q": "\xff"}\n', "cannot be read as UTF-8 text"),
        ("a.jsonl.gz", gzip.compress(b'{"q": 1}\n' * 10_000)[:-20], "cannot be read as UTF-8 text"),
        ("a.jsonl.gz", b"not compressed", "cannot be read as UTF-8 text"),
        ("a.json", b'{"q": 1}\n{"q": 2}\n', r"name the file \.jsonl"),
        ("a.json", b'{"q": 1}', "expected a list of rows"),
        ("a.parquet", b"PAR1 but not really", "cannot be read as Parquet"),
        ("a.csv", b"q\n1\n", r"supported are \.parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_clear_error(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ArcherError, match=message):
        list(read_source(tmp_path / name))


@pytest.mark.parametrize("line", ["[" * 200_000, '{"a": ' * 50_000, '{"a": ' + "9" * 5000 + "}"])
def test_json_that_python_cannot_hold_is_told_as_no_json(tmp_path, line):
    rows, listed = tmp_path / "a.jsonl", tmp_path / "a.json"
    rows.write_text(f"{line}\n")
    listed.write_text(line)
    assert [str(row.problem).startswith("not valid JSON: ") for row in read_source(rows)] == [True]
    with pytest.raises(ArcherError, match="not valid JSON"):
        list(read_source(listed))


def test_what_is_there_but_is_no_file_is_told_so(tmp_path):
    os.mkfifo(tmp_path / "a.jsonl")
    for file in (str(tmp_path / "a.jsonl"), "/dev/null"):
        with pytest.raises(ArcherError, match="is no regular file"):
            read_rows(file)
