"""What is said of a model's traced share, of the sign of a score, and of knobs that make scores trivial."""

import pytest
import torch
import transformers as hf
from peft import LoraConfig, get_peft_model
from test_experts import sparse_model
from tiny_update import VOCABULARY, tiny_model, traced_config
from torch import nn

from archer.errors import ArcherError
from archer.influence import InfluenceConfig, InfluenceTracer
from archer.influence.cautions import cautions
from archer.influence.coverage import Coverage, coverage
from archer.influence.modules import traced_modules
from archer.sign import meaning_of_sign


def covered(model: nn.Module, **changes: object) -> Coverage:
    return coverage(model, traced_modules(model, traced_config(**changes)))


SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
DENSE = {
    "phi": lambda: hf.PhiForCausalLM(hf.PhiConfig(**SIZES, intermediate_size=48)),
    "opt": lambda: hf.OPTForCausalLM(hf.OPTConfig(**SIZES, ffn_dim=48, word_embed_proj_dim=32)),
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    ),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**SIZES, intermediate_size=48, pad_token_id=0)),
    "gpt-neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SIZES, intermediate_size=48)),
    "qwen2": tiny_model,
}


@pytest.mark.parametrize("name", DENSE)
def test_every_linear_map_of_a_dense_model_but_its_head_is_traced_by_default(name):
    found = covered(DENSE[name](), module_name_filter=InfluenceConfig().module_name_filter)
    assert [kind.partition(" lm_head")[0].partition(" embed_out")[0] for kind in found.left_out] == [
        "output head"
    ]
    assert found.traced + sum(found.left_out.values()) == found.total


@pytest.mark.parametrize("name", ["gpt-oss", "mixtral", "qwen3-moe", "qwen2-moe", "qwen3-next", "llama4"])
def test_more_than_nine_tenths_of_a_sparse_model_is_traced_by_default(name):
    found = covered(sparse_model(name), module_name_filter=InfluenceConfig().module_name_filter)
    assert found.share > 0.9
    assert not any("expert" in kind for kind in found.left_out)


def test_experts_that_are_not_traced_are_named_with_a_warning():
    share, left_out, warning = covered(sparse_model("mixtral"), module_name_filter="_proj.,o_proj").lines()
    assert share.startswith("coverage: ")
    assert "fused experts model.layers.*.mlp.experts (gate_up_proj, down_proj)" in left_out
    assert "embeddings model.embed_tokens" in left_out and "(not counted)" in left_out
    assert "most of them fused experts" in warning


def test_a_tied_head_counts_once_and_says_how_it_is_traced():
    model = tiny_model(tie_word_embeddings=True)
    found = covered(model, module_name_filter="all-linear")
    head = VOCABULARY * 32
    assert found.left_out == {"output head lm_head": head} and found.uncounted == {}
    assert found.total == sum(p.numel() for p in model.parameters() if p.dim() > 1)
    assert covered(model, module_name_filter="all-linear,lm_head").share == 1.0
    assert "[all-linear,lm_head]" in [*Coverage(1, 2, {"output head lm_head": 1}, {}).lines()][-1]


def test_a_head_that_a_trainer_does_not_call_is_not_advised():
    model = tiny_model()
    tracer = InfluenceTracer(model, traced_config(module_name_filter="q_proj"))
    head = Coverage(1, 2, {"output head lm_head": 1}, {})
    assert [*head.lines(head=False)][-1].endswith(
        "most of them output head lm_head, which cannot be traced here"
    )
    assert "lm_head]" in [*head.lines()][-1] and "warning" in tracer.describe(head=False)


def test_frozen_weights_do_not_count():
    model = get_peft_model(tiny_model(), LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    assert covered(model).share == 1.0


class Router(nn.Linear):
    """A linear module whose forward gives more than W x."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, super().forward(x)


def test_what_cannot_be_traced_is_left_out_by_name():
    model = nn.ModuleDict({"up": nn.Linear(8, 8), "router": Router(8, 4)})
    model["experts"] = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
    found = covered(model, module_name_filter="")
    assert found.traced == 64
    assert found.left_out == {
        "experts that are modules of their own, experts.*": 128,
        "weights of Router router.weight": 32,
    }


def test_all_linear_with_a_cap_takes_the_last_of_each_kind():
    modules = traced_modules(tiny_model(), traced_config(module_name_filter="all-linear", max_modules=1))
    assert len(modules) == 7 and all("layers.1." in traced.name for traced in modules)


def test_dora_is_refused_for_what_it_is():
    adapters = LoraConfig(r=4, target_modules=["q_proj"], use_dora=True, task_type="CAUSAL_LM")
    with pytest.raises(ArcherError, match=r"q_proj has DoRA adapters \(use_dora=True\)"):
        InfluenceTracer(get_peft_model(tiny_model(), adapters), traced_config())


def test_the_description_tells_coverage_sign_and_cautions():
    text = InfluenceTracer(tiny_model(), traced_config(output_function="log_prob_reward")).describe(8)
    assert "coverage: " in text and meaning_of_sign("log_prob_reward") in text
    assert "every rejected token scores exactly 0" in text


def test_the_sign_is_told_for_each_objective():
    assert meaning_of_sign("log_prob", "Red", "blue").startswith("Red: raising this token's probability")
    for twice in ("training_loss", "log_prob_advantage"):
        assert "a second time" in meaning_of_sign(twice)
    assert "towards" not in meaning_of_sign(None)


QUIET = {"output_function": "log_prob", "exclude_self_response": True}


@pytest.mark.parametrize(
    ("changes", "responses", "words"),
    [
        ({}, 8, None),
        ({}, 1, "nothing will be scored"),
        ({}, 2, "the other verdict only"),
        ({"exclude_self_response": False}, 8, "its verdict, is part of its score"),
        ({"output_function": "log_prob_reward"}, 8, "every rejected token scores exactly 0"),
        ({"output_function": "training_loss", "hessian_mode": "identity"}, 8, "square of the loss"),
    ],
)
def test_cautions(changes, responses, words):
    found = [*cautions(traced_config(**{**QUIET, **changes}), responses)]
    assert len(found) == (words is not None)
    assert words is None or words in found[0]


def test_presets_of_the_library_take_knobs_before_their_own():
    config = InfluenceConfig.of_preset("signed", enable=True, contrastive_agg="sum")
    assert (config.output_function, config.exclude_self_response) == ("log_prob", True)
    assert (config.contrastive_agg, config.reg_rule) == ("sum", "kernel_trace")
    with pytest.raises(ArcherError, match="is not one of none, signed"):
        InfluenceConfig.of_preset("sign")
