import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jinja2 import TemplateError

from archer.data.prompts import Prompt, load_prompts
from archer.errors import ArcherError


def load(files, tokenizer, **changes):
    options = {"max_prompt_length": 100, "filter_overlong_prompts": True, **changes}
    return load_prompts(files, tokenizer, **options)


def ids(text):
    return tuple(ord(c) for c in text)


def contents(dataset):
    return [p.messages[0]["content"] for p in dataset]


def test_a_row_becomes_a_prompt(jsonl, row, tokenizer):
    dataset = load([jsonl(row("1+1="))], tokenizer)
    assert list(dataset) == [
        Prompt(
            index=0,
            messages=({"role": "user", "content": "1+1="},),
            token_ids=ids("user:1+1=|"),
            data_source="math",
            ground_truth="2",
            extra_info={"index": 7},
        )
    ]


def test_a_plain_string_is_one_user_message(jsonl, row, tokenizer):
    dataset = load([jsonl(row(prompt="1+1="))], tokenizer)
    assert dataset[0].messages == ({"role": "user", "content": "1+1="},)


def test_several_messages_stay_in_order(jsonl, row, tokenizer):
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1="}]
    dataset = load([jsonl(row(prompt=messages))], tokenizer)
    assert dataset[0].messages == tuple(messages)
    assert dataset[0].token_ids == ids("system:Add.|user:1+1=|")


def test_json_jsonl_and_parquet_hold_the_same_prompts(tmp_path, jsonl, row, tokenizer):
    rows = [row("a", extra_info={"index": 0}), row("b", extra_info={"index": 1})]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    from_jsonl = list(load([jsonl(*rows)], tokenizer))
    assert list(load([str(tmp_path / "rows.json")], tokenizer)) == from_jsonl
    assert list(load([str(tmp_path / "rows.parquet")], tokenizer)) == from_jsonl


def test_nulls_that_parquet_fills_in_are_no_part_of_a_message(tmp_path, row, tokenizer):
    rows = [
        row(prompt=[{"role": "user", "content": "a", "name": "Ann"}]),
        row(prompt=[{"role": "user", "content": "b"}], extra_info=None),
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    dataset = load([str(tmp_path / "rows.parquet")], tokenizer)
    assert dataset[0].messages == ({"role": "user", "content": "a", "name": "Ann"},)
    assert dataset[1].messages == ({"role": "user", "content": "b"},)
    assert dataset[1].extra_info == {}


def test_extra_info_may_be_left_out(jsonl, row, tokenizer):
    without = row()
    del without["extra_info"]
    assert load([jsonl(without)], tokenizer)[0].extra_info == {}


def test_several_files_follow_one_another_and_indices_count_through(jsonl, row, tokenizer):
    files = [jsonl(row("a"), row("b"), name="1.jsonl"), jsonl(row("c"), name="2.jsonl")]
    dataset = load(files, tokenizer)
    assert contents(dataset) == ["a", "b", "c"]
    assert [p.index for p in dataset] == [0, 1, 2]


def test_one_file_may_be_given_without_a_list(jsonl, row, tokenizer):
    assert len(load(jsonl(row()), tokenizer)) == 1


def test_builtin_names_stand_for_files(tokenizer):
    dataset = load(["builtin:arithmetic/train?size=5", "builtin:arithmetic/val?size=3"], tokenizer)
    assert [p.extra_info["split"] for p in dataset] == ["train"] * 5 + ["val"] * 3
    assert all(eval(p.messages[0]["content"].rstrip("=")) == int(p.ground_truth) for p in dataset)


def test_other_keys_can_hold_prompt_and_data_source(jsonl, tokenizer):
    file = jsonl({"question": "1+1=", "task": "sums", "reward_model": {"ground_truth": 2}})
    dataset = load([file], tokenizer, prompt_key="question", reward_fn_key="task")
    assert (dataset[0].messages[0]["content"], dataset[0].data_source) == ("1+1=", "sums")


def test_template_arguments_reach_the_tokenizer(jsonl, row, tokenizer):
    dataset = load([jsonl(row("a"))], tokenizer, apply_chat_template_kwargs={"suffix": "!"})
    assert dataset[0].token_ids == ids("user:a|!")


def test_blank_lines_and_a_byte_order_mark_are_ignored(tmp_path, row, tokenizer):
    file = tmp_path / "rows.jsonl"
    file.write_text("\ufeff\n" + json.dumps(row("a")) + "\n\n")
    assert contents(load([str(file)], tokenizer)) == ["a"]


def test_a_line_separator_inside_a_string_does_not_end_the_line(tmp_path, row, tokenizer):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row("a\u2028b"), ensure_ascii=False) + "\n")
    assert contents(load([str(file)], tokenizer)) == ["a\u2028b"]


# Lengths


def test_prompts_over_the_limit_are_left_out_and_counted(jsonl, row, tokenizer):
    file = jsonl(row("a"), row("a" * 20), row("bb"))
    dataset = load([file], tokenizer, max_prompt_length=len("user:bb|"))
    assert contents(dataset) == ["a", "bb"]
    assert [p.index for p in dataset] == [0, 1]
    assert dataset.overlong == 1


def test_an_overlong_prompt_is_an_error_when_not_filtered(jsonl, row, tokenizer):
    file = jsonl(row("a"), row("a" * 20))
    with pytest.raises(ArcherError) as raised:
        load([file], tokenizer, max_prompt_length=10, filter_overlong_prompts=False)
    assert f"{file}, line 2: the prompt has 26 tokens, more than data.max_prompt_length=10" in str(
        raised.value
    )


def test_a_dataset_with_only_overlong_prompts_is_an_error(jsonl, row, tokenizer):
    file = jsonl(row("aaa"), row("a"))
    with pytest.raises(ArcherError, match=r"All 2 prompts .*max_prompt_length=3 tokens; the shortest has 7"):
        load([file], tokenizer, max_prompt_length=3)


# How many


def test_max_samples_keeps_the_first_rows(jsonl, row, tokenizer):
    file = jsonl(*(row(c) for c in "abcde"))
    assert contents(load([file], tokenizer, max_samples=2)) == ["a", "b"]
    assert len(load([file], tokenizer, max_samples=-1)) == 5
    assert len(load([file], tokenizer, max_samples=9)) == 5


def test_max_samples_with_shuffling_is_a_choice_fixed_by_the_seed(jsonl, row, tokenizer):
    file = jsonl(*(row(chr(65 + i)) for i in range(40)))

    def choose(seed):
        return contents(load([file], tokenizer, max_samples=10, shuffle=True, seed=seed))

    assert choose(0) == choose(0)
    assert choose(0) != choose(1)
    assert len(set(choose(0))) == 10


# Bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": None}, "field prompt: found None, expected a list of chat messages"),
        ({"prompt": ""}, "field prompt: found '', expected a list of chat messages"),
        ({"prompt": []}, "field prompt: found [], expected a list of chat messages"),
        ({"prompt": 3}, "field prompt: found 3, expected a list of chat messages"),
        ({"prompt": ["hi"]}, "field prompt[0]: found 'hi', expected an object {role, content}"),
        ({"prompt": [{"content": "hi"}]}, "field prompt[0].role: found None, expected text"),
        ({"prompt": [{"role": "user"}]}, "field prompt[0].content: found None, expected text"),
        (
            {"prompt": [{"role": "user", "content": "hi"}, {"role": "user", "content": [1]}]},
            "field prompt[1].content: found [1], expected text",
        ),
        ({"data_source": None}, "field data_source: found None, expected a string"),
        ({"data_source": ""}, "field data_source: found '', expected a string"),
        ({"reward_model": "2"}, "field reward_model: found '2', expected an object with ground_truth"),
        ({"reward_model": {}}, "field reward_model.ground_truth: found None, expected the right answer"),
        ({"extra_info": [1]}, "field extra_info: found [1], expected an object"),
        ({"data_source": list(range(99))}, "field data_source: found [0, 1, 2, 3"),
    ],
)
def test_a_bad_row_is_named_with_file_row_and_field(jsonl, row, tokenizer, changes, message):
    file = jsonl(row(), row(**changes))
    with pytest.raises(ArcherError) as raised:
        load([file], tokenizer)
    assert f"{file}, line 2, {message}" in str(raised.value)
    assert len(str(raised.value)) < len(file) + 200


@pytest.mark.parametrize("field", ["prompt", "data_source", "reward_model"])
def test_a_missing_field_is_named_with_the_fields_there_are(jsonl, row, tokenizer, field):
    without = row()
    del without[field]
    file = jsonl(without)
    with pytest.raises(ArcherError) as raised:
        load([file], tokenizer)
    assert f"{file}, line 1: field {field} is missing" in str(raised.value)
    assert f"The row has: {', '.join(without)}." in str(raised.value)


def test_rows_of_json_and_parquet_are_counted_from_one(tmp_path, row, tokenizer):
    rows = [row(), row(data_source="")]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    for name in ("rows.json", "rows.parquet"):
        with pytest.raises(ArcherError, match=rf"{name}, row 2, field data_source"):
            load([str(tmp_path / name)], tokenizer)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"x", "extension '.csv'; supported are .json, .jsonl, .parquet"),
        ("a", b"x", "extension ''; supported are"),
        ("a.jsonl", b'{"prompt": \n', "a.jsonl, line 1: not valid JSON"),
        ("a.jsonl", b"[1]\n", "a.jsonl, line 1: found list, expected an object"),
        ("a.jsonl", b"\xff\xfe", "a.jsonl: cannot be read as UTF-8 text"),
        ("a.json", b"[{", "a.json: not valid JSON"),
        ("a.json", b"[3]", "a.json, row 1: found int, expected an object"),
        ("a.json", b"{}", "a.json: found dict at the top, expected a list of rows"),
        ("a.parquet", b"PAR1 no more", "a.parquet: cannot be read as Parquet"),
        ("a.parquet", b"", "a.parquet: cannot be read as Parquet"),
        ("a.jsonl", b"\n", "The dataset is empty: no rows in"),
        ("a.json", b"[]", "The dataset is empty: no rows in"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(tmp_path, tokenizer, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ArcherError) as raised:
        load([str(tmp_path / name)], tokenizer)
    assert message in str(raised.value)
    assert str(tmp_path / name) in str(raised.value)


def test_a_missing_file_is_named(tmp_path, tokenizer):
    with pytest.raises(ArcherError, match=r"nowhere\.jsonl does not exist"):
        load([str(tmp_path / "nowhere.jsonl")], tokenizer)


def test_a_folder_is_not_a_file(tmp_path, tokenizer):
    with pytest.raises(ArcherError, match="is a folder, not a file"):
        load([str(tmp_path)], tokenizer)


def test_no_files_are_an_empty_dataset(tokenizer):
    with pytest.raises(ArcherError, match="The dataset is empty"):
        load([], tokenizer)


def test_a_tokenizer_without_chat_template_is_an_error_that_says_how_to_set_one(jsonl, row, tokenizer):
    tokenizer.chat_template = None
    with pytest.raises(
        ArcherError, match=r"no chat template.*actor_rollout_ref\.model\.custom_chat_template"
    ):
        load([jsonl(row())], tokenizer)


def test_messages_that_the_chat_template_refuses_are_named(jsonl, row, tokenizer, monkeypatch):
    def refuse(conversation, **kwargs):
        raise TemplateError("no system role")

    monkeypatch.setattr(tokenizer, "apply_chat_template", refuse)
    with pytest.raises(ArcherError, match=r"line 1, field prompt: .* \(TemplateError: no system role\)"):
        load([jsonl(row())], tokenizer)


def test_template_arguments_that_archer_sets_are_refused(jsonl, row, tokenizer):
    with pytest.raises(ArcherError, match=r"apply_chat_template_kwargs\.tokenize cannot be set"):
        load([jsonl(row())], tokenizer, apply_chat_template_kwargs={"tokenize": False})
