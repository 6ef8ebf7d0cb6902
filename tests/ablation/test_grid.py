"""From a grid file to its cases."""

import re
from typing import get_type_hints

import pytest

from archer.ablation import commands
from archer.ablation.grid import choose, load_grid, parse_grid, parse_seeds, plan_cases, seeds_text
from archer.algorithms.token_credit.base import CREDIT_MODES
from archer.errors import ArcherError


def names(text: str) -> list[str]:
    return [case.name for case in parse_grid("g", text).cases]


def test_every_combination_of_the_axes_is_a_case_the_last_axis_fastest() -> None:
    grid = parse_grid("g", "axes: {a.b: [x, y], c.d: [u, v, w]}")
    assert [case.name for case in grid.cases] == ["x-u", "x-v", "x-w", "y-u", "y-v", "y-w"]
    assert grid.cases[4].own == ("a.b=y", "c.d=v")
    assert grid.baseline is None


def test_the_baseline_comes_first_and_extra_cases_last() -> None:
    text = "{baseline: [a=1], axes: {b: [x]}, cases: {more: [c=2, d=3]}}"
    grid = parse_grid("g", text)
    assert [(case.name, case.own) for case in grid.cases] == [
        ("baseline", ("a=1",)),
        ("x", ("b=x",)),
        ("more", ("c=2", "d=3")),
    ]


def test_values_that_say_nothing_alone_are_named_with_their_key() -> None:
    assert names("axes: {optim.lr: [0.001, 1e-6], rollout.n: [8], x.shuffle: [true], y.limit: [null]}") == [
        "lr_0.001-n_8-shuffle_true-limit_null",
        "lr_1e-6-n_8-shuffle_true-limit_null",
    ]


def test_a_labelled_value_sets_several_keys() -> None:
    grid = parse_grid("g", "axes: {precision: {half: [a=1, b=2], full: []}}")
    assert [(case.name, case.own) for case in grid.cases] == [("half", ("a=1", "b=2")), ("full", ())]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("axis: {a: [b]}", "no key 'axis'"),
        ("{}", "no case"),
        ("[1, 2]", "mapping"),
        ("axes: {a: 3}", "axis a must be a list"),
        ("axes: {a: []}", "axis a must be a list"),
        ("axes: {a: [x, x]}", "two cases are called 'x'"),
        ("cases: {baseline: [a=1]}\nbaseline: []", "two cases are called 'baseline'"),
        ("cases: {../escape: [a=1]}", "cannot name a folder"),
        ("cases: {one: [no override]}", "case one must be a list of overrides"),
        ("shared: a=1\nbaseline: []", "shared must be a list of overrides"),
        ("keep_checkpoints: sometimes\nbaseline: []", "keep_checkpoints"),
        ("a: [", "not YAML"),
    ],
)
def test_a_malformed_grid_is_refused_with_the_place(text: str, complaint: str) -> None:
    with pytest.raises(ArcherError, match=complaint.replace("(", r"\(")):
        parse_grid("g", text)


def test_an_unknown_grid_names_the_shipped_ones_and_so_does_the_help() -> None:
    with pytest.raises(ArcherError) as unknown:
        load_grid("nowhere.yaml")
    names = re.search(r"Shipped: (.*?)\. ", str(unknown.value)).group(1)  # type: ignore[union-attr]
    assert "influence_0220" in names
    told = get_type_hints(commands.run, include_extras=True)["grid"].__metadata__[0].help
    assert told.endswith(f"{names}.")


def test_the_shipped_grid_is_outputs_by_scopes_by_hessians_with_extras_and_a_baseline() -> None:
    grid = load_grid("influence_0220")
    outputs = ("training_loss", "log_prob_advantage", "log_prob_reward")
    expected = [
        f"{output}-{scope}-{mode}"
        for output in outputs
        for scope in ("per_prompt", "all_selected")
        for mode in ("inverse", "identity")
    ]
    assert [case.name for case in grid.cases][:13] == ["baseline", *expected]
    planned = {
        case.name: case.config.trainer.influence_trace
        for case in plan_cases(grid, ["recipe=arithmetic"], None)
    }
    assert not planned["baseline"].enable
    for name in expected:
        knobs = planned[name]
        found = f"{knobs.output_function}-{knobs.accepted_rejected_scope}-{knobs.hessian_mode}"
        assert knobs.enable and found == name
    extras = [name for name in planned if name.startswith("nohessian-")]
    assert len(extras) == 4 and all(planned[name].hessian_mode == "identity" for name in extras)


def test_overrides_of_the_command_line_win_over_the_grid() -> None:
    grid = parse_grid(
        "g", "{shared: [data.train_batch_size=16], cases: {a: [trainer.total_training_steps=3]}}"
    )
    (case,) = plan_cases(grid, ["trainer.total_training_steps=7"], None)
    assert case.config.trainer.total_training_steps == 7 and case.config.data.train_batch_size == 16
    assert case.own == ("trainer.total_training_steps=3",)


def test_a_case_that_cannot_be_configured_is_named_before_anything_runs() -> None:
    grid = parse_grid("g", "cases: {good: [], bad: [trainer.total_training_step=3]}")
    with pytest.raises(ArcherError, match=r"case bad [\s\S]*total_training_step\b"):
        plan_cases(grid, [], None)


def test_folders_of_cases_cannot_be_overridden() -> None:
    grid = parse_grid("g", "cases: {a: []}")
    with pytest.raises(ArcherError, match="folder of its own"):
        plan_cases(grid, ["+trainer.influence_trace.output_dir=/tmp/x"], None)


def test_only_takes_names_patterns_and_lists() -> None:
    grid = parse_grid("g", "{cases: {a-x: [], b-x: [], a-y: [], c: []}}")
    planned = plan_cases(grid, [], None)
    assert [case.name for case in choose(planned, ["a-*,c"])] == ["a-x", "a-y", "c"]
    assert [case.name for case in choose(planned, ["c", "b-x"])] == ["b-x", "c"]
    assert choose(planned, []) == planned
    with pytest.raises(ArcherError, match="no case is called"):
        choose(planned, ["d"])


def test_seeds_multiply_the_cases_all_of_one_seed_before_the_next() -> None:
    grid = parse_grid("g", "{baseline: plain, cases: {plain: [a=1], other: [a=2]}, seeds: [3, 8]}")
    names = [(case.name, case.variant, case.seed) for case in grid.cases]
    assert names == [
        ("plain-seed3", "plain", 3),
        ("other-seed3", "other", 3),
        ("plain-seed8", "plain", 8),
        ("other-seed8", "other", 8),
    ]
    assert grid.baseline == "plain"
    assert grid.cases[3].own == ("a=2", "actor_rollout_ref.rollout.seed=8", "data.seed=8")


def test_seeds_of_the_command_line_take_the_place_of_the_grids() -> None:
    text = "{cases: {one: []}, seeds: [0, 1, 2]}"
    assert parse_grid("g", text, (7,)).seeds == (7,)
    assert [case.name for case in parse_grid("g", "cases: {one: []}", (7,)).cases] == ["one-seed7"]


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0", (0,)), ("0,3", (0, 3)), ("100-103", (100, 101, 102, 103)), ("1-2,2,9", (1, 2, 9))],
)
def test_seeds_are_numbers_and_ranges(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds
    assert parse_seeds(seeds_text(seeds)) == seeds


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-2", "1,,2"])
def test_seeds_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ArcherError, match="--seeds"):
        parse_seeds(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{baseline: nobody, cases: {one: []}}", "baseline names 'nobody'"),
        ("{cases: {one: []}, controls: {one: two}}", "controls names 'two'"),
        ("{cases: {one: []}, seeds: 3}", "seeds must be a list"),
        ("{cases: {one: []}, seeds: [-1]}", "seeds must be a list"),
        ("{cases: {one: []}, seeds: [1, 1]}", "every seed must stand there once"),
    ],
)
def test_malformed_seeds_baselines_and_controls_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(ArcherError, match=complaint):
        parse_grid("g", text)


def test_only_takes_a_variant_for_its_cases_of_all_seeds() -> None:
    planned = plan_cases(parse_grid("g", "{cases: {a: [], a-x: []}, seeds: [0, 1]}"), [], None)
    assert [case.name for case in choose(planned, ["a"])] == ["a-seed0", "a-seed1"]
    assert [case.name for case in choose(planned, ["*-seed1"])] == ["a-seed1", "a-x-seed1"]


def test_the_credit_grid_pairs_modes_with_their_permuted_controls() -> None:
    grid = load_grid("credit", (5,))
    credit = {
        case.variant: case.config.algorithm.token_credit
        for case in plan_cases(grid, ["engine.device=cpu"], None)
    }
    assert grid.baseline == "none" and credit["none"].mode == "none"
    for variant, control in grid.controls:
        assert credit[control].permute and not credit[variant].permute
        assert credit[control].mode == credit[variant].mode == variant
    (case,) = (case for case in plan_cases(grid, [], None) if case.variant == "oracle")
    assert (case.config.actor_rollout_ref.rollout.seed, case.config.data.seed) == (5, 5)


def test_the_larger_credit_grid_holds_every_built_in_mode_and_the_smaller_grid() -> None:
    small, large = load_grid("credit", (0,)), load_grid("credit_all", (0,))
    planned = plan_cases(large, [], None)
    every = {case.config.algorithm.token_credit.mode for case in planned}
    assert every == set(CREDIT_MODES.names())
    overrides = {case.name: case.overrides for case in planned}
    for case in plan_cases(small, [], None):
        assert overrides[case.name] == case.overrides  # so that one folder serves both
    assert small.controls == large.controls
