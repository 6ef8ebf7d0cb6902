"""`archer data prepare` and `archer data show`, and a run that trains on what was prepared."""

import io
import json

import pytest
from rich.console import Console

from archer.cli import app
from archer.config import compose
from archer.errors import ArcherError
from archer.train import make_run


def command(*arguments: str) -> None:
    app(["data", *arguments], standalone_mode=False)


@pytest.fixture
def output(capsys):
    """What was printed, blanks joined."""
    return lambda: " ".join(capsys.readouterr().out.split())


def test_prepared_sums_train_the_embedded_default(tmp_path):
    command("prepare", "arithmetic", "--size", "32", "--out", str(tmp_path / "train.parquet"))
    command("prepare", "arithmetic", "--split", "val", "--size", "4", "--out", str(tmp_path / "val.jsonl"))
    config = compose(
        [
            f"data.train_files={tmp_path / 'train.parquet'}",
            f"data.val_files={tmp_path / 'val.jsonl'}",
            "data.train_batch_size=4",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "actor_rollout_ref.rollout.n=2",
            "trainer.total_training_steps=2",
            f"trainer.default_local_dir={tmp_path / 'run'}",
            "engine.threads=1",
            "engine.device=cpu",
        ]
    )
    outcome = make_run(config, Console(file=io.StringIO())).execute()
    assert outcome.steps == 2
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert "val-core/arithmetic/acc/mean@4" in last


def test_the_table_says_what_went_in_and_out(write, tmp_path, output):
    source = write(
        "a.jsonl", *({"question": f"Q{i % 3}", "answer": "#### 1"} for i in range(4)), {"question": "Q"}
    )
    command("prepare", "gsm8k", str(source), "--out", str(tmp_path / "out.parquet"))
    printed = output()
    for part in (
        "rows in 5",
        "kept 3",
        "duplicates 1",
        "invalid 1",
        "no field answer",
        "3 integer",
        "line 5",
    ):
        assert part in printed
    command("prepare", "gsm8k", str(source), "--out", str(tmp_path / "out.parquet"))
    assert "nothing was done" in output()


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("gsm8k", (), "train_files"),
        ("gsm8k", ("--split", "test"), "val_files"),
        ("gsm8k", ("--split", "val"), "val_files"),
        ("aime24", (), "val_files"),
        ("aime24", ("--split", "train"), "train_files"),
    ],
)
def test_only_the_train_split_is_recommended_for_training(write, tmp_path, capsys, name, options, key):
    source = write(
        "a.jsonl", {"question": "Q", "problem": "Q", "answer": "#### 1" if name == "gsm8k" else "1"}
    )
    command("prepare", name, str(source), *options, "--out", str(tmp_path / "o.jsonl"))
    assert f"use it    data.{key}={tmp_path / 'o.jsonl'}" in capsys.readouterr().out


def test_prepare_and_show_give_the_same_named_lengths(write, tmp_path, output):
    questions = ({"question": "Q" * n, "answer": "#### 1"} for n in (1, 2, 6))
    file = str(tmp_path / "o.jsonl")
    command("prepare", "gsm8k", str(write("a.jsonl", *questions)), "--instruction", "none", "--out", file)
    prepared = output()
    command("show", file)
    assert "prompt characters 3 mean, 1 to 6" in prepared
    assert "prompt characters 3 mean, 1 to 6 2 median" in output()


def test_the_data_sets_are_listed(output):
    command("prepare", "list")
    printed = output()
    assert "dapo-math-17k" in printed and "openai/gsm8k" in printed


def test_options_of_the_sums_are_refused_elsewhere(write):
    with pytest.raises(ArcherError, match="--size is for arithmetic"):
        command("prepare", "gsm8k", str(write("a.jsonl", {})), "--size", "3")
    with pytest.raises(ArcherError, match="arithmetic has no split 'test'; it has: train, val"):
        command("prepare", "arithmetic", "--split", "test")


@pytest.fixture
def shown_file(write) -> str:
    def row(number: int, source: str, truth: str) -> dict:
        return {
            "prompt": [{"role": "user", "content": f"[red]{number}\x1b[31m"}],
            "data_source": source,
            "reward_model": {"ground_truth": truth},
            "extra_info": {"index": number},
        }

    rows = [row(0, "math", "3"), row(1, "math", "x^2"), row(2, "amc23", "1/2"), row(3, "amc23", "-7")]
    return str(write("shown.jsonl", *rows))


def test_show_prints_samples_with_nothing_obeyed_and_statistics(shown_file, output):
    command("show", shown_file, "--n", "2")
    printed = output()
    assert "row 0 math" in printed and "row 2 amc23" in printed and "row 1" not in printed
    assert "[red]0␛[31m" in printed and "\x1b[31m" not in printed
    for part in (
        "rows 4",
        "2 math",
        "2 amc23",
        "2 integer",
        "1 expression",
        "1 fraction",
        "11 mean, 11 to 11",
    ):
        assert part in printed


def test_show_one_row_or_one_source(shown_file, output):
    command("show", shown_file, "--index", "1")
    assert "x^2" in output()
    command("show", shown_file, "--source", "amc23")
    printed = output()
    assert "rows 2" in printed and "row 0" not in printed and "row 2 amc23" in printed


def test_show_counts_tokens_with_a_tokenizer(output):
    command("show", "builtin:arithmetic/val?size=3", "--n", "0", "--model-path", "builtin:tiny_reasoner")
    assert "prompt tokens 11 mean, 11 to 11 11 median" in output()


def test_show_says_what_is_wrong(shown_file, write):
    with pytest.raises(ArcherError, match="no row 9"):
        command("show", shown_file, "--index", "9")
    with pytest.raises(ArcherError, match="there are: amc23, math"):
        command("show", shown_file, "--source", "aime24")
    with pytest.raises(ArcherError, match="there are no rows"):
        command("show", str(write("empty.jsonl")))
    with pytest.raises(ArcherError, match="field prompt is missing"):
        command("show", str(write("raw.jsonl", {"question": "Q"})))
