"""Every setting of verl's is translated, passed on or refused: a walk over its whole tree, as installed."""

from collections import Counter

import pytest
from omegaconf import OmegaConf

from archer.config import compose
from archer.config.names import RENAMED, renamed
from archer.config.parse import flat, key_names
from archer.config.root import TrainConfig
from archer.engines.verl.defaults_table import DOCUMENT, written
from archer.engines.verl.settings import default_of, exists, verl_defaults, verl_key_problems, verl_settings
from archer.engines.verl.translate import put
from archer.engines.verl.verl_keys import RULES, rule_of, unused_patterns

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


def another(value):
    """A value that is not this one."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else "another"


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


def test_no_pattern_of_the_table_is_dead_and_each_has_a_reason(leaves):
    assert list(unused_patterns([key for key in leaves if key not in OWN])) == []
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
    passed = {key: another(default_of(base, key)) for key in leaves if kind(key) == "passed"}
    mentioned = (
        "actor_rollout_ref.model.external_lib",
        "ulysses",
        "strategy",
        "use_remove_padding",
        "lora_rank",
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
