from dataclasses import fields

import pytest

from archer.errors import ArcherError
from archer.influence import InfluenceConfig

KNOBS_OF_THE_SEEDS = {
    "enable", "hessian_mode", "output_function", "accepted_rejected_scope", "contrastive_agg",
    "hessian_source", "reg_lambda", "module_name_filter", "max_modules", "projection_dim_factor",
    "max_proj_vector_sum", "max_hessian_dim", "max_tokens_per_response", "grad_offload_to_cpu",
    "force_gpu_compute", "profile_timing", "max_prompts_per_step", "skip_optimizer_step", "output_dir",
    "write_every", "fsync",
}  # fmt: skip


def test_every_promised_knob_exists_and_every_knob_has_a_help_text():
    assert {knob.name for knob in fields(InfluenceConfig)} >= KNOBS_OF_THE_SEEDS
    for knob in fields(InfluenceConfig):
        assert len(knob.metadata["help"]) > 10, knob.name


def test_defaults_are_those_of_the_seeds():
    config = InfluenceConfig()
    assert not config.enable
    assert (config.hessian_mode, config.hessian_source, config.output_function) == (
        "inverse",
        "response",
        "training_loss",
    )
    assert (config.accepted_rejected_scope, config.contrastive_agg) == ("per_prompt", "sum")
    assert not config.exclude_self_response
    assert (config.score_normalization, config.reg_rule, config.reg_lambda) == ("none", "hessian_trace", 0.0)


@pytest.mark.parametrize(
    ("knob", "value", "words"),
    [
        ("hessian_mode", "inverted", "inverse, identity"),
        ("output_function", "logprob", "training_loss, log_prob_advantage, log_prob_reward, log_prob"),
        ("solver", "cholesky", "auto, dual, primal"),
        ("max_modules", "3", "int"),
        ("max_modules", True, "int"),
        ("enable", 1, "bool"),
        ("reg_lambda", "0.1", "int or float"),
        ("write_every", 0, "at least 1"),
        ("projection_dim_factor", 0, "at least 1"),
        ("proportionality_tolerance", float("nan"), "at least 0"),
        ("proportionality_tolerance", float("inf"), "at least 0"),
        ("reg_lambda", float("nan"), "a finite number"),
        ("reg_lambda", float("-inf"), "a finite number"),
    ],
)
def test_a_wrong_value_names_the_knob_and_what_it_may_be(knob, value, words):
    with pytest.raises(ArcherError) as error:
        InfluenceConfig(**{knob: value})
    assert f"trainer.influence_trace.{knob}=" in str(error.value)
    assert words in str(error.value)


@pytest.mark.parametrize("value", ["q_proj, mlp.", ["q_proj", "mlp."], ("q_proj", " mlp. ", "")])
def test_the_module_filter_may_be_a_text_or_a_list(value):
    assert InfluenceConfig(module_name_filter=value).module_name_filter == ("q_proj", "mlp.")
