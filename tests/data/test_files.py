"""Raw records from files of every supported format, and from damaged ones."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archer.data.files import read_source
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
