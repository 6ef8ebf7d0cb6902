"""Sources are strangers' files: what is wrong is named with file, line and column; nothing is left behind."""

import json

import pytest
from source_files import prime_rl_record, write_prime_rl, write_trl

from archer.errors import ArcherError
from archer.imports import build, lines
from archer.imports.command import find_steps, import_source
from archer.imports.tokens import WordTokenizer
from archer.trace.reader import TraceReader

GOOD = {"input": "a", "output": "b", "score": 1.0, "step": 1}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"input": "a", "out', "line 2: not valid JSON"),
        ("[1, 2]", "line 2: found list, expected an object"),
        ("[" * 100_000, "line 2: not valid JSON"),
        ({"input": "a", "output": "b"}, "line 2: column score is missing, expected a number"),
        (GOOD | {"input": 3}, "line 2, column input: found 3, expected a text"),
        (GOOD | {"output": None}, "line 2, column output: found None, expected a text"),
        (GOOD | {"score": "high"}, "line 2, column score: found 'high', expected a number"),
        (GOOD | {"step": 2}, "line 2, column step: found 2, expected 1 as the file's name says"),
        (GOOD | {"step": "x" * 500}, "line 2, column step: found 'xxxxx"),
        (GOOD | {"acc": [1]}, "line 2, column acc: found [1], expected true, false or a number"),
    ],
)
def test_a_line_of_verl_that_is_wrong_is_named(verl_lines, tmp_path, line, said):
    source = verl_lines(1, GOOD, line)
    with pytest.raises(ArcherError) as raised:
        import_source(source, tmp_path / "run")
    assert str(source / "1.jsonl") in str(raised.value) and said in str(raised.value)
    assert len(str(raised.value)) < 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rollouts"], "nothing is left behind"


def test_a_line_without_end_is_refused_before_it_is_read_whole(verl_lines, tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 100)
    source = verl_lines(1, GOOD, GOOD | {"output": "b" * 1000})
    with pytest.raises(ArcherError, match="line 2: longer than 100 bytes"):
        import_source(source, tmp_path / "run")


def test_a_step_that_would_not_fit_in_memory_is_refused(verl_lines, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "MAX_CELLS", 10)
    with pytest.raises(ArcherError, match="2 responses, the longest 11 tokens"):
        import_source(verl_lines(1, GOOD, GOOD | {"output": "x " * 10}), tmp_path / "run")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"prompt": ["a"], "answer": ["b"]}, "row 1: column completion is missing"),
        ({"prompt": [3], "completion": ["b"]}, "row 1, column prompt: found 3, expected a text or a list"),
        ({"prompt": ["a"], "completion": [[{"role": "user", "content": 1}]]}, "column completion"),
        ({"prompt": ["a"], "completion": ["b"], "step": [9]}, "column step: found 9, expected 1"),
    ],
)
def test_a_row_of_trl_that_is_wrong_is_named(tmp_path, table, said):
    path = write_trl(tmp_path / "c", 1, table)
    with pytest.raises(ArcherError) as raised:
        import_source(path, tmp_path / "run")
    assert str(path) in str(raised.value) and said in str(raised.value)


def test_a_reward_column_that_is_not_there_or_holds_no_numbers_is_named(tmp_path):
    path = write_trl(tmp_path / "c", 1, {"prompt": ["a"], "completion": ["b"], "note": ["good"]})
    with pytest.raises(ArcherError, match="column speed is missing"):
        import_source(path, tmp_path / "run", rewards=["speed"])
    with pytest.raises(ArcherError, match="column note: found 'good', expected a number"):
        import_source(path, tmp_path / "run", rewards=["note"])


def test_a_file_that_is_no_parquet_is_a_message(tmp_path):
    (tmp_path / "completions_00001.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(ArcherError, match="cannot be read as Parquet"):
        import_source(tmp_path, tmp_path / "run")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"token_ids": [1, -2, 3]}, "column token_ids"),
        ({"token_ids": [1, 2.5, 3]}, "column token_ids"),
        ({"token_ids": [1, 2**40, 3]}, "column token_ids"),
        ({"loss_mask": [True]}, "column loss_mask"),
        ({"loss_mask": [0, 1, 1]}, "column loss_mask"),
        ({"loss_mask": [False] * 3}, "no token is trained on"),
        ({"entropy": [0.5]}, "column entropy: found [0.5], expected a list of 3 numbers or nulls"),
        ({"entropy": ["a", "b", "c"]}, "column entropy"),
        ({"entropy": 10**400}, "column entropy"),
        ({"schema_version": 2}, "column schema_version: found 2, expected 1"),
    ],
)
def test_a_sequence_of_prime_rl_that_is_wrong_is_named(tmp_path, changed, said):
    folder = write_prime_rl(tmp_path / "o", 3, {0: [prime_rl_record([1], [2, 3], **changed)]})
    with pytest.raises(ArcherError) as raised:
        import_source(tmp_path / "o", tmp_path / "run")
    assert f"{folder / 'rank_0.jsonl'}, line 1" in str(raised.value) and said in str(raised.value)


def test_columns_that_an_older_prime_rl_does_not_write_stay_unknown(tmp_path):
    record = prime_rl_record([1], [2, 3])
    for name in ("entropy", "rewards", "importance_ratio", "is_masked_high", "schema_version"):
        del record[name]
    write_prime_rl(tmp_path / "o", 3, {0: [record]})
    made, notes = import_source(tmp_path / "o", tmp_path / "run")
    assert made.arrays == ("log_probs", "rollout_log_probs", "advantage")
    assert any("not computed" in note for note in notes)
    assert TraceReader(tmp_path / "run" / "entropy_trace").read(3).arrays.unjudged.tolist() == [True]


def test_a_folder_that_holds_something_is_never_replaced(verl_lines, tmp_path):
    source = verl_lines(1, GOOD)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years")
    with pytest.raises(ArcherError, match="not an empty folder"):
        import_source(source, tmp_path / "run")
    assert (tmp_path / "run" / "thesis.tex").read_text() == "years"
    (tmp_path / "run" / "thesis.tex").unlink()
    import_source(source, tmp_path / "run")
    with pytest.raises(ArcherError, match="not an empty folder"):
        import_source(source, tmp_path / "run")


def test_what_wrote_a_folder_is_told_by_its_names(tmp_path, verl_lines):
    source = verl_lines(1, GOOD)
    assert find_steps(source, "auto")[0] == "verl"
    write_trl(source / "completions", 1, {"prompt": ["a"], "completion": ["b"]})
    with pytest.raises(ArcherError, match="files of verl and trl; choose one with --format"):
        find_steps(source, "auto")
    assert find_steps(source, "trl")[0] == "trl"
    with pytest.raises(ArcherError, match="holds nothing to import"):
        find_steps(source, "prime-rl")
    with pytest.raises(ArcherError, match="does not exist"):
        find_steps(tmp_path / "nowhere", "auto")


def test_an_empty_source_makes_no_trace(verl_lines, tmp_path):
    with pytest.raises(ArcherError, match="holds no response"):
        import_source(verl_lines(1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_half_a_surrogate_pair_and_signs_of_all_kinds_come_through(verl_lines, tmp_path):
    text = "a\x00b\x1b[31m </script> \u202e 👩‍🚀  \r\n\t x"
    half = '{"input": "\\ud800", "output": "x", "score": 0, "step": 1, "gts": "\\udfff"}'
    source = verl_lines(1, json.dumps(GOOD | {"output": text}), half)
    import_source(source, tmp_path / "run")
    reader = TraceReader(tmp_path / "run" / "entropy_trace")
    arrays = reader.read(1).arrays
    assert reader.vocab.decode(arrays.responses[0][arrays.response_mask[0]]).text == text
    assert reader.vocab.decode(arrays.prompt(1)).text == "?" and arrays.ground_truth[1] == "?"


def test_words_run_out_and_texts_do_not():
    tokenizer = WordTokenizer(max_words=2)
    text = "one two three é"
    ids = tokenizer.encode(text)
    assert len(tokenizer.vocab()) == 256 + 2
    assert tokenizer.vocab().decode(ids).text == text
