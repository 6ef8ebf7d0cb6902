"""Adapters: what they compute, what is trained, what samples, and what a file of them must hold."""

import copy
import sys
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from archer.errors import ArcherError
from archer.generation.adapter_files import (
    WEIGHTS_FILE,
    adapter_source,
    chosen_config,
    load_adapted,
    load_adapters,
    save_adapters,
)
from archer.generation.batch import micro_batch
from archer.generation.config import ModelConfig, module_pattern
from archer.generation.device import Compute
from archer.generation.lora import Adapters, BasePolicy, MergedWeights, attach, lora_config, narrow_frozen
from archer.generation.model import BUILTIN, SamplingWeights, model_folder
from archer.generation.policy import Policy

SETTINGS = ModelConfig(path="x/y", lora_rank=4, lora_alpha=8)
TINY = ModelConfig(path=BUILTIN, lora_rank=4, enable_gradient_checkpointing=False)
BFLOAT16 = Compute(torch.device("cpu"), torch.bfloat16)
IDS = torch.arange(1, 13)[None]


@torch.no_grad()
def disturb(adapters: Adapters, seed: int = 1) -> None:
    """Give B values: a new adapter does nothing."""
    rng = torch.Generator().manual_seed(seed)
    for name, parameter in adapters.named_parameters().items():
        if ".lora_B." in name:
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=rng))


@pytest.fixture
def adapted(any_model) -> Adapters:
    adapters = attach(any_model, lora_config(SETTINGS))
    disturb(adapters)
    return adapters


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


def test_a_new_adapter_changes_nothing(any_model):
    before = logits(any_model)
    attach(any_model, lora_config(SETTINGS))
    assert torch.equal(logits(any_model), before)


def test_a_merged_model_computes_what_the_adapted_one_does(adapted, compute):
    torch.testing.assert_close(logits(MergedWeights(adapted, compute).model), logits(adapted.model))


def test_in_float64_they_are_equal_to_the_last_digits(qwen2):
    model = qwen2(tied=True).double()
    adapters = attach(model, lora_config(SETTINGS))
    disturb(adapters)
    before = logits(model)
    torch.testing.assert_close(logits(adapters.merge()), before, rtol=1e-12, atol=1e-12)


def test_layers_that_keep_their_weights_transposed_are_merged_too(compute):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=2, n_positions=64)).eval()
    adapters = attach(model, lora_config(SETTINGS))
    disturb(adapters)
    torch.testing.assert_close(logits(MergedWeights(adapters, compute).model), logits(model))


def test_the_model_that_samples_is_a_plain_one_of_the_same_architecture(any_model, compute):
    names = [name for name, _ in any_model.named_parameters()]
    kinds = [type(module) for module in any_model.modules()]
    adapters = attach(any_model, lora_config(SETTINGS))
    plain = MergedWeights(adapters, compute).model
    assert [name for name, _ in plain.named_parameters()] == names
    assert [type(module) for module in plain.modules()] == kinds
    assert not any(p.requires_grad for p in plain.parameters())


def test_frozen_weights_without_adapter_are_not_copied(qwen2, compute):
    model = qwen2(tied=True)
    adapters = attach(model, lora_config(replace(SETTINGS, target_modules=("q_proj",))))
    plain = dict(MergedWeights(adapters, compute).model.named_parameters())
    assert plain["model.embed_tokens.weight"] is model.get_input_embeddings().weight
    inside = model.model.layers[0].self_attn.q_proj.base_layer.weight
    assert plain["model.layers.0.self_attn.q_proj.weight"] is not inside


def test_a_refresh_follows_the_adapters_and_never_adds_up_rounding(qwen2):
    adapters = attach(qwen2(tied=True), lora_config(SETTINGS))
    weights = MergedWeights(adapters, BFLOAT16)
    start = {name: p.clone() for name, p in weights.model.named_parameters()}
    for seed in range(20):
        disturb(adapters, seed)
        weights.refresh()
    now = dict(weights.model.named_parameters())
    for name, layer in adapters.layers.items():
        exact = (
            layer.base_layer.weight + 2.0 * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
        )
        assert torch.equal(now[f"{name}.weight"], exact.bfloat16())
    for name, parameter in adapters.named_parameters().items():
        if ".lora_B." in name:
            parameter.data.zero_()
    weights.refresh()
    assert all(torch.equal(p, start[name]) for name, p in weights.model.named_parameters())


@pytest.mark.parametrize("compute", [Compute(torch.device("cpu"), torch.float32), BFLOAT16])
@pytest.mark.parametrize("lora", [True, False])
def test_weights_by_name_are_those_of_the_model_that_samples(qwen2, compute, lora):
    model = qwen2(tied=True)
    if lora:
        adapters = attach(model, lora_config(SETTINGS))
        disturb(adapters)
    weights = MergedWeights(adapters, compute) if lora else SamplingWeights(model, compute)
    by_name = dict(weights.named_weights())
    sampled = dict(weights.model.named_parameters())
    assert list(by_name) == list(sampled)
    assert all(torch.equal(by_name[name], p) and p.dtype == compute.dtype for name, p in sampled.items())


@pytest.mark.parametrize("checkpointing", [True, False])
def test_only_adapters_get_gradients_with_or_without_checkpointing(qwen2, checkpointing):
    model = qwen2(tied=True)
    adapters = attach(model, lora_config(SETTINGS))
    disturb(adapters)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    model(input_ids=IDS, use_cache=False).logits.square().mean().backward()
    trained = {id(p) for p in adapters.named_parameters().values()}
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad == (id(parameter) in trained), name
        assert parameter.grad is None or bool(parameter.grad.abs().sum() > 0), name


def test_frozen_weights_in_bfloat16_give_the_same_products(qwen2):
    wide = attach(qwen2(tied=True), lora_config(SETTINGS))
    disturb(wide)
    narrow = copy.deepcopy(wide.model)
    narrow_frozen(narrow, BFLOAT16)
    types = {name: p.dtype for name, p in narrow.named_parameters()}
    assert types["model.layers.0.mlp.up_proj.base_layer.weight"] == torch.bfloat16
    assert types["model.layers.0.mlp.up_proj.lora_A.default.weight"] == torch.float32
    assert types["model.embed_tokens.weight"] == types["model.norm.weight"] == torch.float32
    with BFLOAT16.autocast():
        assert torch.equal(logits(narrow), logits(wide.model))


def test_the_reference_is_the_model_without_adapters(qwen2, make_responses, compute):
    model = qwen2(tied=True)
    batch = micro_batch(make_responses([3, 4], [5, 2]), [0, 1], compute.device)
    expected = Policy(copy.deepcopy(model), compute, 1.0).token_stats(batch).log_probs.detach()
    adapters = attach(model, lora_config(SETTINGS))
    disturb(adapters)
    policy, reference = Policy(model, compute, 1.0), BasePolicy(adapters, compute, 1.0)
    before = policy.token_stats(batch).log_probs
    assert torch.equal(reference.token_stats(batch).log_probs, expected)
    assert not torch.equal(before, expected)
    assert torch.equal(policy.token_stats(batch).log_probs, before)
    assert all(p.requires_grad for p in adapters.named_parameters().values())


def test_the_head_still_runs_only_where_tokens_are_emitted(adapted, compute):
    capped = "gemma" in type(adapted.model).__name__.lower()
    assert Policy(adapted.model, compute, 1.0)._plain_head is not capped


# --- files ---


def test_peft_loads_what_is_saved(tmp_path, compute):
    model, adapters = load_adapted(TINY, compute)
    disturb(adapters)
    save_adapters(adapters, TINY.path, tmp_path / "lora_adapter")
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model_folder(BUILTIN), dtype=torch.float32).eval()
    loaded = PeftModel.from_pretrained(base, tmp_path / "lora_adapter")
    assert torch.equal(logits(loaded), logits(model))
    assert loaded.peft_config["default"].base_model_name_or_path == model_folder(BUILTIN)


def test_an_adapter_that_peft_saved_is_continued_from(tmp_path, compute, qwen2):
    qwen2(tied=True).save_pretrained(tmp_path / "base")
    options = LoraConfig(
        r=4, lora_alpha=12, target_modules=["v_proj"], init_lora_weights=False, lora_dropout=0.3
    )
    theirs = get_peft_model(qwen2(tied=True), options).eval()
    theirs.save_pretrained(tmp_path / "adapter")
    settings = replace(TINY, path=str(tmp_path / "base"), lora_adapter_path=str(tmp_path / "adapter"))
    model, adapters = load_adapted(settings, compute)
    assert len(adapters.layers) == 2 and torch.equal(logits(model), logits(theirs))
    merged, none = load_adapted(settings, compute, trains=False)
    assert none is None
    torch.testing.assert_close(logits(merged), logits(theirs))


FILE_CHANGES = {
    "lacks 1 tensors": lambda t: t.pop(min(t)),
    "has 1 tensors that the adapter does not have": lambda t: t.update(extra=torch.zeros(2)),
    "has 1 tensors of another shape": lambda t: t.update({min(t): torch.zeros(3)}),
    "NaN or infinite": lambda t: t[min(t)].fill_(torch.nan),
}


@pytest.mark.parametrize("said", FILE_CHANGES)
def test_a_damaged_file_is_refused(tmp_path, compute, said):
    _, adapters = load_adapted(TINY, compute)
    save_adapters(adapters, TINY.path, tmp_path / "a")
    tensors = load_file(tmp_path / "a" / WEIGHTS_FILE)
    FILE_CHANGES[said](tensors)
    save_file(tensors, tmp_path / "a" / WEIGHTS_FILE)
    with pytest.raises(ArcherError, match=said):
        load_adapters(adapters, tmp_path / "a", TINY.path)


def test_an_adapter_of_other_weights_of_the_same_shape_is_refused(tmp_path, qwen2):
    one, other = (attach(qwen2(tied=True, seed=seed), lora_config(SETTINGS)) for seed in (0, 1))
    save_adapters(one, "some/model", tmp_path / "a")
    load_adapters(one, tmp_path / "a", "some/model")
    with pytest.raises(ArcherError, match=r"other weights than those of x/y.*some/model"):
        load_adapters(other, tmp_path / "a", "x/y")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target_modules": ("q_prj",)}, r"target_modules=\[q_prj\].*linear modules .*q_proj"),
        ({"target_modules": ("q_proj", "wrong")}, "no module is called wrong"),
        ({"target_modules": (".*nothing",)}, "This model has linear modules"),
        ({"exclude_modules": ("wrong",)}, r"exclude_modules=\[wrong\]: no module is called wrong"),
        ({"target_modules": ("embed_tokens",)}, "names model.embed_tokens, a Embedding"),
        ({"target_modules": ("lm_head",)}, "an adapter there cannot be merged"),
    ],
)
def test_modules_that_cannot_be_adapted_are_named(qwen2, changes, said):
    with pytest.raises(ArcherError, match=said):
        attach(qwen2(tied=True), lora_config(replace(SETTINGS, **changes)))


def test_modules_are_chosen_by_name_or_by_expression(qwen2):
    def chosen(**changes) -> set[str]:
        return set(attach(qwen2(tied=False), lora_config(replace(SETTINGS, **changes))).layers)

    every = chosen()
    assert len(every) == 14 and not any("lm_head" in name for name in every)
    assert chosen(target_modules=("q_proj",)) == {f"model.layers.{i}.self_attn.q_proj" for i in (0, 1)}
    assert chosen(target_modules=(r".*\.0\.mlp\..*_proj",)) == {n for n in every if ".0.mlp." in n}
    assert chosen(exclude_modules=("q_proj",)) == {n for n in every if not n.endswith("q_proj")}
    assert module_pattern(("all-linear",)) == "all-linear" and module_pattern(()) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lora_rank": 8}, r"of lora_rank 4, but actor_rollout_ref.model.lora_rank is 8. Set .*lora_rank=4"),
        ({"lora_alpha": 99}, "of lora_alpha 16, but"),
        ({"lora_rank": 0}, r"a run with LoRA \(rank 4\), but .*lora_rank is 0"),
    ],
)
def test_a_checkpoint_of_another_adapter_is_refused(tmp_path, compute, changes, said):
    save_adapters(load_adapted(TINY, compute)[1], TINY.path, tmp_path / "lora_adapter")
    settings = replace(TINY, **changes)
    with pytest.raises(ArcherError, match=said):
        chosen_config(settings, adapter_source(settings, str(tmp_path)), of_run=True)


def test_a_checkpoint_without_adapter_is_refused(tmp_path):
    with pytest.raises(ArcherError, match="holds no lora_adapter: all weights were trained there"):
        adapter_source(TINY, str(tmp_path))


@pytest.mark.parametrize(("there", "said"), [(False, "no such folder"), (True, "no adapter_config.json")])
def test_an_adapter_that_is_not_there(tmp_path, there, said):
    folder = tmp_path if there else tmp_path / "missing"
    with pytest.raises(ArcherError, match=rf"lora_adapter_path={folder}: .*{said}"):
        adapter_source(replace(TINY, lora_adapter_path=str(folder)), None)


def test_an_adapter_that_is_more_than_lora_is_refused(tmp_path, qwen2, compute):
    options = LoraConfig(r=4, target_modules=["q_proj"], use_dora=True)
    get_peft_model(qwen2(tied=True), options).save_pretrained(tmp_path)
    with pytest.raises(ArcherError, match="sets use_dora"):
        load_adapted(replace(TINY, lora_adapter_path=str(tmp_path)), compute)


def test_without_peft_the_command_that_installs_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ArcherError, match=r'needs peft: pip install .*"\.\[lora\]"'):
        lora_config(SETTINGS)
