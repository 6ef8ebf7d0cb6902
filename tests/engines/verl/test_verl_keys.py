"""Every setting of verl's is translated, passed on or refused: a walk over its whole tree, as installed."""

from collections import Counter

import pytest
from omegaconf import DictConfig, OmegaConf

from archer.config import compose
from archer.config.names import RENAMED, renamed
from archer.config.parse import flat, key_names
from archer.config.root import TrainConfig
from archer.engines.verl.defaults_table import DOCUMENT, written
from archer.engines.verl.settings import (
    _dataclass_fields,
    check_keys,
    default_of,
    exists,
    verl_defaults,
    verl_key_problems,
    verl_settings,
)
from archer.engines.verl.translate import put
from archer.engines.verl.verl_keys import RULES, rule_of, unused_patterns
from archer.engines.verl.verl_values import value_problem
from archer.errors import ArcherError

CPU = ["engine=verl", "engine.device=cpu"]
OWN = set(key_names(TrainConfig))


@pytest.fixture(scope="module")
def base():
    return verl_defaults()


@pytest.fixture(scope="module")
def leaves(base):
    return list(flat(OmegaConf.to_container(base, resolve=False)))


def kind(key: str) -> str | None:
    if key in OWN or renamed(key) != key:
        return "translated"
    rule = rule_of(key)
    return None if rule is None else rule.kind


def another(value, key=""):
    """A value that is not this one, and that may stand there."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        candidates = [value + 1, 0.5, 8]
    else:
        candidates = ["another", 3, [0.5, 0.5], "cosine", "fp16", "fsdp2", "seq-mean-token-sum"]
    return next(each for each in candidates if each != value and not value_problem(key, each, value))


def together(values: dict) -> dict:
    """Full names and values as one tree."""
    tree: dict = {}
    for key, value in values.items():
        put(tree, key, value)
    return tree


def test_every_setting_of_verls_is_classified(leaves):
    assert len(leaves) > 800
    assert [key for key in leaves if kind(key) is None] == []
    counts = Counter(map(kind, leaves))
    assert set(counts) == {"translated", "passed", "refused"}
    assert min(counts.values()) > 50


def fields_beyond_the_files(node, prefix="") -> list[str]:
    """Settings that verl's YAML leaves out, but that the dataclasses it is read into have."""
    found = [f"{prefix}{name}" for name in _dataclass_fields(node) if name not in node]
    for name in node:
        inner = node._get_node(name)
        if isinstance(inner, DictConfig) and not inner._is_none():
            found += fields_beyond_the_files(inner, f"{prefix}{name}.")
    return found


def test_what_only_verls_dataclasses_have_is_classified_too(base):
    beyond = fields_beyond_the_files(base)
    assert len(beyond) > 100
    assert [key for key in beyond if kind(key) is None] == []


@pytest.mark.parametrize(
    "key",
    [
        # verl 0.9.1's V1 trainer writes over these, or reads another setting in their place
        "actor_rollout_ref.actor.fsdp_config.use_fused_kernels",
        "actor_rollout_ref.ref.fsdp_config.infer_max_token_len_per_gpu",
        "actor_rollout_ref.actor.calculate_sum_pi_squared",
        "actor_rollout_ref.rollout.repetition_penalty",
        "actor_rollout_ref.rollout.multi_stage_wake_up",
        "critic.forward_max_token_len_per_gpu",
        "critic.fsdp.max_token_len_per_gpu",
        "critic.enable",
    ],
)
def test_what_verl_does_not_read_is_refused(key):
    assert kind(key) == "refused"


@pytest.mark.parametrize(
    ("old", "read"),
    [
        (
            "actor_rollout_ref.actor.use_torch_compile",
            "actor_rollout_ref.actor.fsdp_config.use_torch_compile",
        ),
        ("critic.grad_clip", "critic.optim.clip_grad"),
        ("critic.ulysses_sequence_parallel_size", "critic.fsdp.ulysses_sequence_parallel_size"),
    ],
)
def test_what_verl_reads_under_another_name_goes_there(old, read, base):
    config = compose([*CPU, f"{old}={another(default_of(base, old), old)}"])
    assert OmegaConf.select(verl_settings(config), read) == another(default_of(base, old), old)


def test_the_critics_micro_batches_are_where_verl_reads_them():
    chosen = ["algorithm.adv_estimator=gae", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1000"]
    critic = verl_settings(compose([*CPU, *chosen])).critic
    assert critic.ppo_infer_max_token_len_per_gpu == 1000 and critic.fsdp.use_dynamic_bsz is True
    critic = verl_settings(compose([*CPU, *chosen, "critic.ppo_max_token_len_per_gpu=700"])).critic
    assert critic.ppo_infer_max_token_len_per_gpu == 700
    fixed = ["critic.use_dynamic_bsz=False", "critic.ppo_micro_batch_size_per_gpu=3"]
    critic = verl_settings(compose([*CPU, *chosen, *fixed])).critic
    assert critic.fsdp.use_dynamic_bsz is False
    assert critic.fsdp.micro_batch_size_per_gpu == critic.fsdp.infer_micro_batch_size_per_gpu == 3


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("algorithm.lam=nan", "not NaN"),
        ("algorithm.lam=abc", "a number"),
        ("critic.ppo_epochs=True", "a number"),
        ("critic.optim.betas=[nan,0.9]", "not NaN"),
        ("actor_rollout_ref.actor.fsdp_config.param_offload=maybe", "True or False"),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size=two", "a number"),
    ],
)
def test_a_value_that_verl_could_not_use_is_refused_at_once(value, wanted):
    with pytest.raises(ArcherError, match=f"{value.partition('=')[0]}=.*expected .*{wanted}"):
        check_keys(compose(["engine=verl", value]))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=False"], "leave it out"),
        (
            [
                "actor_rollout_ref.rollout.calculate_log_probs=False",
                "algorithm.rollout_correction.rollout_is=token",
            ],
            "nothing for algorithm.rollout_correction",
        ),
        (["critic.enable=False", "algorithm.adv_estimator=gae"], "needs a critic"),
        (["actor_rollout_ref.rollout.tensor_model_parallel_size=3"], "1 devices .* cannot be divided"),
        (["actor_rollout_ref.actor.checkpoint.save_contents=[model]"], "lacks optimizer, extra"),
        (["actor_rollout_ref.actor.checkpoint.load_contents=[optimizer]"], "first weights again"),
    ],
)
def test_settings_of_verls_that_exclude_each_other_are_refused_before_anything_starts(given, named):
    with pytest.raises(ArcherError, match=named):
        verl_settings(compose([*CPU, *given]))


def test_arguments_of_ray_are_known_too():
    check_keys(compose(["engine=verl", "ray_kwargs.ray_init.runtime_env.env_vars.A=1"]))
    check_keys(compose(["engine=verl", "ray_kwargs.ray_init._temp_dir=/tmp/r", "ray_init.num_gpus=2"]))
    with pytest.raises(ArcherError, match=r"num_cpu: ray.init has no .*mean ray_kwargs.ray_init.num_cpus\?"):
        check_keys(compose(["engine=verl", "ray_kwargs.ray_init.num_cpu=2"]))


@pytest.mark.parametrize("name", ["naive", "dapo"])
def test_verls_own_reward_managers_ask_for_what_archer_does(name):
    check_keys(compose(["engine=verl", f"reward.reward_manager.name={name}"]))


def test_no_pattern_of_the_table_is_dead_and_each_has_a_reason(base, leaves):
    every = [key for key in [*leaves, *fields_beyond_the_files(base)] if key not in OWN]
    assert list(unused_patterns(every)) == []
    assert all(len(rule.reason) > 10 for rule in RULES)


def test_a_setting_that_is_refused_is_named_with_the_reason_and_passes_at_verls_default(base, leaves):
    refused = {key: default_of(base, key) for key in leaves if kind(key) == "refused"}
    problems = list(
        verl_key_problems(base, together({key: another(value) for key, value in refused.items()}))
    )
    assert len(problems) == len(refused)
    for key, problem in zip(refused, problems, strict=True):
        assert problem.startswith(f"{key}=")
        assert rule_of(key).reason in problem
    defaults = {k: v for k, v in refused.items() if not rule_of(k).chosen and not isinstance(v, dict)}
    assert len(defaults) > 500
    assert list(verl_key_problems(base, together(defaults))) == []


def test_a_setting_that_is_passed_has_the_users_value_in_the_end(base, leaves):
    passed = {key: another(default_of(base, key), key) for key in leaves if kind(key) == "passed"}
    real = {"optimizer": "SGD", "optimizer_impl": "torch.optim.sgd"}
    passed |= {key: real[key.rpartition(".")[2]] for key in passed if key.rpartition(".")[2] in real}
    mentioned = (
        "actor_rollout_ref.model.external_lib",
        "ulysses",
        "strategy",
        "use_remove_padding",
        "lora_rank",
        "log_prob_use_dynamic_bsz",
        "_parallel_size",
        "ray_init",
        "checkpoint.save_contents",
        "checkpoint.load_contents",
        "calculate_log_probs",
    )
    given = {key: value for key, value in passed.items() if not any(name in key for name in mentioned)}
    config = compose([*CPU, "trainer.influence_trace.enable=False", "trainer.entropy_trace.enable=False"])
    object.__setattr__(config.engine, "verl", together(given))
    tree = verl_settings(config)
    for key, value in given.items():
        assert OmegaConf.select(tree, key) == value, key


def test_old_names_have_new_ones_that_exist(base):
    for new in RENAMED.values():
        assert new in OWN or any(key.startswith(f"{new}.") for key in OWN) or exists(base, new), new


@pytest.mark.parametrize(
    ("override", "name", "value"),
    [
        ("custom_reward_function.path=my.py", "reward.custom_reward_function.path", "my.py"),
        ("+custom_reward_function.name=judge", "reward.custom_reward_function.name", "judge"),
        ("reward_model.overlong_buffer.len=7", "reward.reward_kwargs.overlong_buffer_cfg.len", 7),
        (
            "+reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=0.5",
            "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor",
            0.5,
        ),
        ("reward_model.num_workers=3", "reward.num_workers", 3),
        ("reward_model={num_workers:3}", "reward.num_workers", 3),
    ],
)
@pytest.mark.parametrize("engine", ["local", "verl"])
def test_old_names_of_the_same_meaning_are_obeyed(override, name, value, engine):
    node = compose([f"engine={engine}", override])
    for part in name.split("."):
        node = getattr(node, part)
    assert node == value


def test_an_old_name_of_a_setting_that_only_verl_has_is_obeyed():
    config = compose(["engine=verl", "engine.verl.critic.model.fsdp_config.param_offload=True"])
    assert flat(config.engine.verl)["critic.fsdp.param_offload"] is True


def test_the_table_of_defaults_in_docs_is_current():
    document = DOCUMENT.read_text()
    assert document == written(document), "run: python -m archer.engines.verl.defaults_table"
