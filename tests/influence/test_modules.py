import pytest
from tiny_update import tiny_model, traced_config
from torch import nn

from archer.errors import ArcherError
from archer.influence import InfluenceConfig, InfluenceTracer
from archer.influence.modules import input_key, traced_modules


def names(model: nn.Module, **changes: object) -> list[str]:
    return [traced.name for traced in traced_modules(model, traced_config(**changes))]


def test_the_default_filter_takes_all_linear_maps_of_the_decoder_layers():
    found = names(tiny_model(), module_name_filter=InfluenceConfig().module_name_filter)
    assert len(found) == 14
    assert "lm_head" not in found


def test_an_empty_filter_takes_the_output_head_too():
    assert names(tiny_model(), module_name_filter="")[-1] == "lm_head"


def test_max_modules_takes_the_last_ones_of_each_entry():
    found = names(tiny_model(), module_name_filter="q_proj,mlp.", max_modules=1)
    assert found == ["model.layers.1.self_attn.q_proj", "model.layers.1.mlp.down_proj"]


def test_frozen_modules_are_not_traced():
    model = tiny_model()
    model.model.layers[0].requires_grad_(False)
    assert all("layers.1" in name for name in names(model))


def test_a_filter_that_names_nothing_lists_what_there_is():
    with pytest.raises(
        ArcherError, match=r"module_name_filter=c_attn names no .*layers\.0\.self_attn\.q_proj"
    ):
        names(tiny_model(), module_name_filter="c_attn")


def test_wrappers_do_not_change_names_and_so_not_projections():
    plain = tiny_model()
    wrapped = nn.Module()
    wrapped.module = nn.Module()
    wrapped.module._orig_mod = plain
    assert names(wrapped) == names(plain)


def test_modules_with_one_input_share_its_projection():
    layer = "model.layers.3.self_attn"
    assert input_key(f"{layer}.q_proj") == input_key(f"{layer}.v_proj") == layer
    assert input_key(f"{layer}.q_proj.lora_A.default") == input_key(f"{layer}.k_proj.lora_A.default")
    assert input_key(f"{layer}.q_proj.lora_A.default") != input_key(f"{layer}.q_proj.lora_B.default")
    q, k = traced_modules(
        tiny_model(), traced_config(module_name_filter="layers.0.self_attn.q,layers.0.self_attn.k")
    )
    assert q.project_in is k.project_in
    assert q.project_out is not k.project_out


def test_the_description_names_modules_dims_and_memory():
    text = InfluenceTracer(tiny_model(), traced_config(hessian_source="token")).describe()
    assert "14 linear modules" in text
    assert "2 x model.layers.*.mlp.up_proj: k_in 4 of 32, k_out 6 of 48, D 24" in text
    # per token: 2 layers x (inputs 4 + 4 + 4 + 6, outputs 4 + 2 + 2 + 4 + 6 + 6 + 4) x 8 bytes
    assert f"{2 * (18 + 28) * 8 / 1024:.1f} KiB per traced token in float64" in text
    assert "plus chunks of 64 MiB" in text
    assert "influence tracing is off" in InfluenceTracer(tiny_model(), InfluenceConfig()).describe()
