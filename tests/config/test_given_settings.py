"""What the user gave, on the command line and in recipes of their own: by full names, and by today's."""

from pathlib import Path

from archer.config import compose
from archer.config.notes import idle_notes
from archer.config.overrides import given_settings, renaming_notes


def own_recipe(folder: Path, name: str, text: str) -> None:
    (folder / "recipe").mkdir(exist_ok=True)
    (folder / f"recipe/{name}.yaml").write_text(f"# @package _global_\n{text}")


def test_what_is_given_on_the_command_line_is_known_by_its_full_name():
    overrides = [
        "engine=verl",
        "recipe=arithmetic",
        "+data.seed=1",
        "algorithm.kl_ctrl={type:fixed,kl_coef:0.1}",
    ]
    compose(overrides)
    assert given_settings(overrides) == {"data.seed", "algorithm.kl_ctrl.type", "algorithm.kl_ctrl.kl_coef"}


def test_settings_of_verls_are_known_by_verls_name():
    overrides = ["engine=verl", "engine.verl.critic.optim.lr=1e-5", "algorithm.lam=0.9"]
    config = compose(overrides)
    assert given_settings(overrides) == {"critic.optim.lr", "algorithm.lam"}
    assert len(idle_notes(config, given_settings(overrides))) == 2


def test_what_a_recipe_of_ones_own_sets_is_given_and_what_it_inherits_from_a_shipped_one_is_not(tmp_path):
    own_recipe(tmp_path, "part", "algorithm: {gamma: 0.5}\n")
    own_recipe(
        tmp_path,
        "mine",
        "defaults: [arithmetic, part, _self_]\ntrainer: {influence_trace: {enable: false}}\n",
    )
    config = compose(["recipe=mine"], tmp_path)
    given = given_settings(["recipe=mine"], tmp_path)
    assert given == {"algorithm.gamma", "trainer.influence_trace.enable"}
    assert idle_notes(config, given) == [
        "algorithm.gamma=0.5 has no effect: adv_estimator is grpo; it is read by reinforce_plus_plus, gae"
    ]


def test_what_is_taken_back_is_not_given(tmp_path):
    own_recipe(tmp_path, "mine", "defaults: [arithmetic, _self_]\ncritic: {optim: {lr: 1.0}}\n")
    overrides = ["engine=verl", "recipe=mine", "~critic.optim"]
    compose(overrides, tmp_path)
    assert given_settings(overrides, tmp_path) == set()


def test_a_setting_given_by_an_old_name_is_told_whether_on_the_command_line_or_in_a_file(tmp_path):
    own_recipe(tmp_path, "mine", "defaults: [arithmetic, _self_]\nreward_model: {num_workers: 3}\n")
    given = ["recipe=mine", "+custom_reward_function.path=r.py", "data.val_max_samples=8"]
    assert compose(given, tmp_path).reward.num_workers == 3
    assert renaming_notes(given, tmp_path) == [
        "custom_reward_function.path is an old name, taken for reward.custom_reward_function.path",
        "reward_model.num_workers is an old name, taken for reward.num_workers",
    ]
