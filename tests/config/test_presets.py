"""trainer.influence_trace.preset: defaults, recipe, preset, the user's own settings, in this order."""

from importlib import resources
from pathlib import Path

import pytest

from archer.config.compose import compose, compose_tree, recipes, to_yaml
from archer.config.presets import preset_notes
from archer.errors import ArcherError
from archer.influence.config import PRESETS, InfluenceConfig

PREFIX = "trainer.influence_trace"
MODEL = ("actor_rollout_ref.model.path=some/model", "data.train_files=[a.jsonl]")
SIGNED = PRESETS["signed"]


def knobs(*overrides: str, **options: object) -> dict[str, object]:
    section = compose([*overrides], **options).trainer.influence_trace
    return {name: getattr(section, name) for name in ("preset", *SIGNED)}


@pytest.mark.parametrize("engine", [(), ("engine=verl",)], ids=["local", "verl"])
def test_a_preset_fills_its_knobs_and_is_written_resolved(engine):
    given = (*MODEL, *engine, f"{PREFIX}.preset=signed")
    assert knobs(*given) == {"preset": "signed", **SIGNED}
    text = to_yaml(compose(given))
    assert "output_function: log_prob\n" in text and "reg_rule: kernel_trace\n" in text


@pytest.mark.parametrize("engine", [(), ("engine=verl",)], ids=["local", "verl"])
def test_what_the_user_sets_wins_also_at_its_default_and_is_told(engine):
    given = (*MODEL, *engine, f"{PREFIX}.output_function=training_loss", f"+{PREFIX}.preset=signed")
    assert knobs(*given) == {"preset": "signed", **SIGNED, "output_function": "training_loss"}
    assert [*preset_notes(compose(given))] == [
        f"{PREFIX}.output_function=training_loss was set and stays; {PREFIX}.preset=signed says log_prob"
    ]


def test_without_a_preset_the_defaults_stay():
    plain = InfluenceConfig()
    assert knobs(*MODEL) == {"preset": "none", **{name: getattr(plain, name) for name in SIGNED}}


def test_the_users_preset_goes_before_a_shipped_recipes_knobs_and_none_takes_it_back(tmp_path):
    assert knobs("recipe=arithmetic", f"{PREFIX}.preset=none")["output_function"] == "training_loss"


def test_a_users_own_recipe_is_the_users(tmp_path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text(
        "# @package _global_\n# Mine.\ndefaults: [arithmetic, _self_]\n"
        "trainer: {influence_trace: {contrastive_agg: sum}}\n"
    )
    assert knobs("recipe=mine", config_dir=tmp_path) == {
        "preset": "signed",
        **SIGNED,
        "contrastive_agg": "sum",
    }


def test_an_unknown_preset_names_the_choices():
    with pytest.raises(ArcherError, match=r"influence_trace\.preset='sing': choose one of none, signed"):
        compose([*MODEL, f"{PREFIX}.preset=sing"])


@pytest.mark.parametrize("name", sorted(recipes()))
def test_shipped_recipes_that_trace_influence_use_the_preset_and_set_none_of_its_knobs(name):
    section = compose_tree([f"recipe={name}", *MODEL])["trainer"]["influence_trace"]
    if section["enable"]:
        assert section["preset"] == "signed"
        text = "".join(
            path.read_text() for path in Path(str(resources.files("archer.conf") / "recipe")).rglob("*.yaml")
        )
        assert not any(f"{knob}:" in text for knob in SIGNED)
