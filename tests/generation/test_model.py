"""Loading a policy: what is refused and why, and what a loaded policy is like."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM

from archer.data.builtin import tiny_reasoner_path
from archer.errors import ArcherError
from archer.generation.config import ModelConfig
from archer.generation.model import (
    load_policy,
    load_reference,
    load_tokenizer,
    model_folder,
    stop_token_ids,
)

BUILTIN = ModelConfig(path="builtin:tiny_reasoner")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A copy of the tiny reasoner to damage."""
    return Path(shutil.copytree(tiny_reasoner_path(), tmp_path / "model"))


def edit(file: Path, **changes: object) -> None:
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


@pytest.mark.parametrize("path", ["/no/such/model", "./no-model", "~/no-such-model-folder", "a/b/c"])
def test_a_folder_that_is_not_there_is_named(path):
    with pytest.raises(ArcherError, match="there is no such folder") as error:
        model_folder(path)
    assert path in str(error.value)


def test_a_folder_without_config_json_is_named_with_what_is_expected(tmp_path):
    with pytest.raises(ArcherError, match=r"has no config\.json.*checkpoints/global_step_N") as error:
        model_folder(str(tmp_path))
    assert str(tmp_path) in str(error.value)


def test_an_unknown_builtin_model_names_the_one_there_is():
    with pytest.raises(ArcherError, match="builtin:tiny_reasoner"):
        model_folder("builtin:big_reasoner")


def test_a_hub_id_is_left_to_the_hub():
    assert model_folder("Qwen/Qwen2.5-0.5B-Instruct") == "Qwen/Qwen2.5-0.5B-Instruct"


def test_a_folder_without_weights_is_an_error_that_names_it(folder, compute):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ArcherError, match="could not be loaded") as error:
        load_policy(ModelConfig(path=str(folder)), compute)
    assert str(folder) in str(error.value)


def test_damaged_weights_are_an_error_that_names_the_folder(folder, compute):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ArcherError, match="could not be loaded") as error:
        load_policy(ModelConfig(path=str(folder)), compute)
    assert str(folder) in str(error.value)


def test_a_config_json_that_is_no_json_is_an_error_that_names_the_folder(folder, compute):
    (folder / "config.json").write_text("{")
    with pytest.raises(ArcherError, match="could not be loaded") as error:
        load_policy(ModelConfig(path=str(folder)), compute)
    assert str(folder) in str(error.value)


def test_a_tokenizer_without_chat_template_is_refused_and_a_custom_template_is_the_way_out(folder):
    (folder / "chat_template.jinja").unlink()
    config = ModelConfig(path=str(folder))
    with pytest.raises(ArcherError, match=r"no chat template.*custom_chat_template"):
        load_tokenizer(config)
    tokenizer = load_tokenizer(replace(config, custom_chat_template="{{ messages[0].content }}"))
    text = tokenizer.apply_chat_template([{"role": "user", "content": "1+2="}], tokenize=False)
    assert text == "1+2="


@pytest.fixture
def tokenizer_only(tmp_path, folder) -> Path:
    """A folder with a tokenizer and no model."""
    target = tmp_path / "tokenizer"
    target.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(folder / name, target)
    edit(target / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    return target


def test_a_tokenizer_from_a_folder_without_a_model_may_stand_in(folder, tokenizer_only):
    (folder / "chat_template.jinja").unlink()
    config = ModelConfig(path=str(folder), tokenizer_path=str(tokenizer_only))
    assert load_tokenizer(config).chat_template


def test_a_tokenizer_folder_that_is_not_there_is_named_with_its_key():
    with pytest.raises(ArcherError, match=r"model\.tokenizer_path=/no/tokenizer: there is no such folder"):
        load_tokenizer(replace(BUILTIN, tokenizer_path="/no/tokenizer"))


def test_a_tokenizer_without_end_of_sequence_is_refused(tokenizer_only):
    edit(tokenizer_only / "tokenizer_config.json", eos_token=None)
    with pytest.raises(ArcherError, match="no end-of-sequence token"):
        load_tokenizer(replace(BUILTIN, tokenizer_path=str(tokenizer_only)))


def test_a_missing_padding_token_is_the_end_of_sequence(tokenizer_only):
    edit(tokenizer_only / "tokenizer_config.json", pad_token=None)
    tokenizer = load_tokenizer(replace(BUILTIN, tokenizer_path=str(tokenizer_only)))
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 1


@pytest.mark.parametrize("configured", [7, [7, 9], None])
def test_responses_stop_at_the_tokenizers_and_at_the_generation_configurations_end(compute, configured):
    tokenizer, model = load_tokenizer(BUILTIN), load_policy(BUILTIN, compute)
    model.generation_config.eos_token_id = configured
    expected = {tokenizer.eos_token_id} | set([configured] if configured == 7 else configured or [])
    assert set(stop_token_ids(model, tokenizer)) == expected


@pytest.mark.parametrize("checkpointing", [True, False])
def test_a_policy_has_float32_weights_that_can_be_trained(compute, checkpointing):
    model = load_policy(replace(BUILTIN, enable_gradient_checkpointing=checkpointing), compute)
    assert all(p.dtype == torch.float32 and p.requires_grad for p in model.parameters())
    assert model.is_gradient_checkpointing == model.training == checkpointing


def test_the_reference_is_the_same_model_and_never_trained(compute):
    policy, reference = load_policy(BUILTIN, compute), load_reference(BUILTIN, compute)
    assert not any(p.requires_grad for p in reference.parameters())
    for mine, theirs in zip(reference.parameters(), policy.parameters(), strict=True):
        assert torch.equal(mine, theirs) and mine is not theirs


def gpt2() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64))


def opt() -> OPTForCausalLM:
    config = OPTConfig(
        vocab_size=50,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        attention_dropout=0.2,
        layerdrop=0.5,
    )
    return OPTForCausalLM(config)


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2", "opt"])
def test_dropout_is_off_in_training_mode_too(tmp_path, compute, qwen2, architecture):
    """Architectures keep their dropout in modules, in attributes of the attention, or of whole layers."""
    torch.manual_seed(0)
    made = {"qwen2": lambda: qwen2(tied=True, attention_dropout=0.5), "gpt2": gpt2, "opt": opt}[
        architecture
    ]()
    tokens = torch.arange(1, 13)[None]
    made.train()
    assert not torch.equal(made(tokens).logits, made(tokens).logits), "the model must have dropout to lose"
    made.save_pretrained(tmp_path)
    model = load_policy(ModelConfig(path=str(tmp_path)), compute)
    assert model.training
    assert torch.equal(model(tokens).logits, model(tokens).logits)
    torch.testing.assert_close(model(tokens).logits, made.eval()(tokens).logits, atol=1e-5, rtol=1e-5)


def test_fields_of_the_models_configuration_can_be_changed(compute):
    changes = {"attn_implementation": "eager", "rms_norm_eps": 1e-3}
    model = load_policy(replace(BUILTIN, override_config=changes), compute)
    assert model.config._attn_implementation == "eager"
    assert model.config.rms_norm_eps == model.model.norm.variance_epsilon == 1e-3


def test_a_field_that_the_models_configuration_does_not_have_is_named(compute):
    with pytest.raises(ArcherError, match=r"override_config.*rms_norm_epsilon"):
        load_policy(replace(BUILTIN, override_config={"rms_norm_epsilon": 1e-3}), compute)
