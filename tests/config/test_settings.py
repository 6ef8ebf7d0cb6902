"""Settings as they are declared: ranges hold whoever makes a section, and no number is NaN or infinite."""

import math
from dataclasses import dataclass, fields
from typing import Any, get_args, get_type_hints

import pytest

from archer.algorithms.config import AlgorithmConfig
from archer.config import TrainConfig, compose
from archer.config.actor import ActorConfig
from archer.config.parse import configuration_error, leaves, parse
from archer.errors import ArcherError
from archer.settings import Range, Section, SettingError, declaration, knob

NOT_FINITE = (math.nan, math.inf, -math.inf)
FLOATS = {name: kind for name, kind, _ in leaves(TrainConfig) if float in (kind, *get_args(kind))}
PLUGINS = [
    plugin for section in (ActorConfig, AlgorithmConfig) for table in section.tables for plugin in table
]


def tree_with(name: str, value: Any) -> dict[str, Any]:
    """A tree that holds one setting."""
    tree: Any = value
    for part in reversed(name.split(".")):
        tree = {part: tree}
    return tree


def test_the_numbers_of_all_rooms_are_tried():
    tried = {name.rpartition(".")[0] for name in FLOATS}
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    assert {actor, f"{actor}.optim", rollout, f"{rollout}.val_kwargs"} <= tried
    assert {"algorithm", "algorithm.kl_ctrl", "reward", "reward.code", "trainer.influence_trace"} <= tried


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [*NOT_FINITE, "nan", "inf"])
def test_no_number_is_nan_or_infinite(name, value):
    several = FLOATS[name] not in (float, float | None)
    with pytest.raises(ArcherError, match=rf"{name}=-?(nan|inf): must be .*finite"):
        parse(TrainConfig, tree_with(name, [value, 0.9] if several else value))


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "'nan'"])
def test_nor_on_the_command_line(text):
    """All at once: each is named."""
    overrides = [
        f"{name}={text if kind in (float, float | None) else f'[{text},0.9]'}"
        for name, kind in FLOATS.items()
    ]
    with pytest.raises(ArcherError) as error:
        compose(overrides)
    named = {line.split("=")[0].strip() for line in str(error.value).splitlines()[1:]}
    assert named == FLOATS.keys()


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.names[0])
@pytest.mark.parametrize("value", NOT_FINITE)
def test_nor_in_the_settings_that_an_algorithm_is_given(plugin, value):
    hints = get_type_hints(plugin.settings)
    for setting in fields(plugin.settings):
        if float in (hints[setting.name], *get_args(hints[setting.name])):
            with pytest.raises(SettingError, match="finite"):
                plugin.settings(**{setting.name: value})


def test_a_float_setting_takes_whole_numbers_and_yamls_texts():
    for given in (3, 3.0, "3", "3e0"):
        assert parse(TrainConfig, tree_with("reward.timeout_s", given)).reward.timeout_s == 3.0


@pytest.mark.parametrize(
    ("allowed", "inside", "outside", "text"),
    [
        (Range(at_least=0), (0, 1e300, 10**400), (-1e-9, -(10**400)), "at least 0"),
        (Range(above=0), (1e-9,), (0, -1), "greater than 0"),
        (Range(at_least=0, at_most=1), (0, 0.5, 1), (-0.1, 1.1), "in [0, 1]"),
        (Range(above=0, below=1), (0.5,), (0, 1), "in (0, 1)"),
        (Range(at_most=2.5), (2.5, -9), (2.6,), "at most 2.5"),
        (Range(below=2), (1.9,), (2,), "less than 2"),
        (Range(at_least=1, also=(-1,)), (-1, 1), (0, -2), "-1 or at least 1"),
        (Range(), (-1e300, 0), (), "a finite number"),
    ],
)
def test_ranges_hold_what_they_say(allowed, inside, outside, text):
    assert all(value in allowed for value in inside)
    assert not any(value in allowed for value in (*outside, *NOT_FINITE))
    assert str(allowed) == text


@dataclass(frozen=True)
class Sample(Section):
    """A section like any."""

    share: float = knob(0.5, "a share", at_least=0, at_most=1)
    size: int | None = knob(None, "a size", above=0)
    rates: tuple[float, ...] = knob((0.9, 0.99), "rates", at_least=0, below=1)
    on: bool = knob(False, "a switch, which is no number", above=5)
    extra: dict[str, Any] = knob({}, "extra arguments")


def test_a_section_made_by_hand_refuses_all_that_the_parser_refuses():
    with pytest.raises(SettingError) as error:
        Sample(share=1.5, size=0, rates=(0.9, 1.0, math.nan))
    assert str(error.value).splitlines() == [
        "share=1.5: must be in [0, 1]",
        "size=0: must be greater than 0, or left out",
        "rates=1.0: must be in [0, 1)",
        "rates=nan: must be finite and in [0, 1)",
    ]
    with pytest.raises(ArcherError) as parsed:
        parse(Sample, {"share": 1.5, "size": 0, "rates": [0.9, 1.0, math.nan]})
    assert str(parsed.value) == str(configuration_error(str(error.value).splitlines()))


def test_a_setting_left_out_and_a_switch_have_no_range():
    assert Sample(size=None, on=True) == parse(Sample, {"size": None, "on": True})


def test_sections_do_not_share_a_dictionary():
    first, second = Sample(), Sample()
    first.extra["x"] = 1
    assert second.extra == {}


def test_problems_come_in_the_order_of_the_settings_whatever_the_order_they_were_given_in():
    wrong = {"rates": [2.0], "size": -1, "share": -1}
    with pytest.raises(ArcherError) as error:
        parse(Sample, wrong)
    assert [line.split("=")[0].strip() for line in str(error.value).splitlines()[1:]] == [
        "share",
        "size",
        "rates",
    ]


def test_a_declaration_is_found_at_its_field():
    share = next(setting for setting in fields(Sample) if setting.name == "share")
    assert declaration(share).help == "a share"
    assert declaration(share).range == Range(at_least=0, at_most=1)
