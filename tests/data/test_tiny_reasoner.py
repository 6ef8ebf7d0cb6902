"""The model that ships in the package is what it promises to be."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from archer.data.arithmetic import first_mistake, write_steps
from archer.data.builtin import arithmetic_rows, tiny_reasoner_path
from archer.data.prompts import load_prompts
from archer.errors import ArcherError


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(tiny_reasoner_path())


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(tiny_reasoner_path()).eval()


def test_the_folder_is_small_and_readable_by_everyone():
    files = [f for f in tiny_reasoner_path().iterdir() if f.is_file()]
    assert sum(f.stat().st_size for f in files) < 5_000_000
    assert all(f.stat().st_mode & 0o044 == 0o044 for f in files)


def test_the_model_is_a_qwen2_of_at_most_a_million_parameters_in_float32(model, tokenizer):
    assert model.config.architectures == ["Qwen2ForCausalLM"]
    assert sum(p.numel() for p in model.parameters()) <= 1_000_000
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.config.vocab_size == len(tokenizer)


def test_generation_stops_at_the_tokenizers_end_token(tokenizer):
    config = GenerationConfig.from_pretrained(tiny_reasoner_path())
    assert (config.eos_token_id, config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert tokenizer.eos_token_id != tokenizer.pad_token_id


@given(st.integers(0, 9999), st.integers(0, 9999))
def test_task_texts_come_back_unchanged(tokenizer, a, b):
    for text in (write_steps(a, b), f"{a}+{b}="):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize(
    "text", ["What is 1+1?", "é 漢 🙂", " \t\r\n", "\\boxed \\boxed{\\boxed{1}}", "don't"]
)
def test_any_other_text_comes_back_unchanged(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_every_character_is_a_token_and_the_box_opens_with_one(tokenizer):
    tokens = [tokenizer.decode([i]) for i in tokenizer("7+6+0=13\n\\boxed{13}")["input_ids"]]
    assert tokens == [*"7+6+0=13\n", "\\boxed{", *"13}"]


def test_special_tokens_are_left_out_of_decoded_responses_but_the_box_is_not(tokenizer):
    ids = tokenizer("<|assistant|>\\boxed{3}<|end|><|pad|>")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "\\boxed{3}"


def test_the_chat_template_renders_turns_and_the_generation_prompt(tokenizer):
    messages = [{"role": "user", "content": "1+2="}, {"role": "assistant", "content": "3"}]
    render = tokenizer.apply_chat_template
    assert render(messages, tokenize=False) == "<|user|>1+2=<|end|><|assistant|>3<|end|>"
    prompt = render(messages[:1], tokenize=False, add_generation_prompt=True)
    assert prompt == "<|user|>1+2=<|end|><|assistant|>"


def test_builtin_prompts_load_with_the_shipped_tokenizer(tokenizer):
    dataset = load_prompts(
        ["builtin:arithmetic/train"], tokenizer, max_prompt_length=32, filter_overlong_prompts=False
    )
    assert len(dataset) == 4096
    text = tokenizer.decode(dataset[0].token_ids)
    assert re.fullmatch(r"<\|user\|>\d{3}\+\d{3}=<\|end\|><\|assistant\|>", text)


def test_a_role_the_template_does_not_know_is_named_with_its_row(tokenizer, jsonl, row):
    file = jsonl(row(prompt=[{"role": "system", "content": "1"}]))
    with pytest.raises(ArcherError, match=r"line 1, field prompt: .*roles user and assistant, not system"):
        load_prompts([file], tokenizer, max_prompt_length=32, filter_overlong_prompts=False)


@torch.no_grad()
def test_sampled_accuracy_leaves_room_to_learn_and_most_mistakes_are_wrong_sums(model, tokenizer):
    torch.manual_seed(0)
    rows = arithmetic_rows("val", size=128)
    prompts = torch.tensor(
        [
            tokenizer.apply_chat_template(r["prompt"], add_generation_prompt=True, return_dict=False)
            for r in rows
            for _ in range(4)
        ]
    )
    out = model.generate(
        prompts, attention_mask=torch.ones_like(prompts), temperature=1.0, top_k=0, top_p=1.0
    )
    texts = tokenizer.batch_decode(out[:, prompts.shape[1] :], skip_special_tokens=True)
    mistakes = []
    for i, text in enumerate(texts):
        a, b = rows[i // 4]["extra_info"]["a"], rows[i // 4]["extra_info"]["b"]
        mistakes.append(first_mistake(a, b, text))
    right = sum(m is None for m in mistakes)
    sums = sum(m is not None and m.kind == "sum" for m in mistakes)
    assert 0.28 < right / len(mistakes) < 0.44
    assert sums / (len(mistakes) - right) > 0.9
