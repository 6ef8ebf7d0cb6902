"""Each rule: silent on what is healthy, and names what is wrong from the step at which it began."""

import math

import pytest
from made_up_runs import columns, diagnosed

from archer.diagnosis.evidence import TraceFacts, ViewerPlace
from archer.diagnosis.rules import RULES

WRONG = {
    "entropy_collapse": columns(actor__entropy=[0.3] * 5 + [0.05] * 4, reward__accuracy=[0.4] * 9),
    "entropy_explosion": columns(actor__entropy=[0.3] * 5 + [1.0] * 4),
    "rollout_mismatch": columns(rollout_corr__k3_kl=[0.0001] * 5 + [0.02] * 4),
    "truncated_responses": columns(response_length__clip_ratio=[0.05] * 5 + [0.4] * 4),
    "degenerate_groups": columns(groups__degenerate_share=[0.5] * 5 + [0.97] * 4, reward__accuracy=[0.1] * 9),
    "reward_pays_wrong_answers": columns(
        critic__rewards__correct__mean=[1.0] * 5 + [0.2] * 4,
        critic__rewards__wrong__mean=[0.0] * 5 + [0.5] * 4,
    ),
    "kl_runaway": columns(actor__kl_loss=[0.01] * 5 + [0.9] * 4),
    "clip_fraction": columns(actor__pg_clipfrac=[0.02] * 5 + [0.3] * 4),
    "dead_learning": columns(actor__lr=[1e-6] * 5 + [0.0] * 4),
    "reward_outage": columns(trace__unjudged=[0.0] * 5 + [0.3] * 4),
    "repetition": columns(trace__looping=[0.01] * 5 + [0.3] * 4),
    "duplicate_prompts": columns(trace__duplicates=[0.0] * 5 + [0.5] * 4),
}


def test_every_rule_has_a_failure_here():
    assert set(WRONG) == {rule.name for rule in RULES}


@pytest.mark.parametrize("name", WRONG)
def test_a_failure_that_begins_at_step_6_is_named_by_step_8_and_nothing_else_is(name, found):
    findings = found(WRONG[name])
    assert set(findings) == {name}
    assert findings[name].since == 6
    assert findings[name].step == 8
    assert findings[name].until == 9
    assert findings[name].what and findings[name].advice and findings[name].figures


@pytest.mark.parametrize("name", WRONG)
def test_before_it_begins_nothing_is_said(name, found):
    assert found(WRONG[name][:5]) == {}


@pytest.mark.parametrize("name", sorted(set(WRONG) - {"dead_learning"}))
def test_one_bad_step_is_chance(name, found):
    steps = WRONG[name]
    assert found([*steps[:5], steps[5], *steps[:5]]) == {}


@pytest.mark.parametrize("name", WRONG)
def test_a_gap_in_what_it_reads_ends_what_it_says(name):
    diagnosis = diagnosed([*WRONG[name], {}, {}])
    assert diagnosis.holding == frozenset()
    assert [finding.until for finding in diagnosis.findings] == [9]


@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_values_that_are_no_numbers_are_no_evidence(bad, found):
    for steps in WRONG.values():
        assert found([dict.fromkeys(row, bad) for row in steps]) == {}


def test_half_of_a_step_without_verdict_is_said_at_once(found):
    finding = found(columns(trace__unjudged=[0.0, 0.0, 0.0, 0.6]))["reward_outage"]
    assert (finding.since, finding.step, finding.severity) == (4, 4, "critical")


def test_an_outage_is_told_though_its_share_varies_from_step_to_step(found):
    finding = found(columns(trace__unjudged=[0.0, 0.15, 0.21, 0.09, 0.09]))["reward_outage"]
    assert (finding.since, finding.step, finding.severity) == (2, 4, "warning")
    assert found(columns(trace__unjudged=[0.3, 0.02, 0.04, 0.09, 0.09, 0.09])) == {}


def test_entropy_may_fall_while_accuracy_rises_or_when_the_task_is_solved(found):
    entropy = [0.3] * 5 + [0.05] * 4
    assert found(columns(actor__entropy=entropy, reward__accuracy=[0.4] * 5 + [0.7] * 4)) == {}
    assert found(columns(actor__entropy=entropy, reward__accuracy=[0.95] * 9)) == {}


def test_a_slow_decline_is_found_as_a_break_is(found):
    entropy = [0.5 * 0.85**step for step in range(20)]
    finding = found(columns(actor__entropy=entropy, reward__accuracy=[0.4] * 20))["entropy_collapse"]
    level = 0.35 * sum(entropy[:3]) / 3
    assert finding.since == next(step for step, value in enumerate(entropy, 1) if value < level)


def test_groups_that_are_all_right_are_what_one_wants(found):
    assert found(columns(groups__degenerate_share=[0.95] * 6, reward__accuracy=[0.95] * 6)) == {}


def test_truncation_is_said_earlier_while_responses_grow(found):
    cut = [0.02] * 5 + [0.18] * 4
    still = columns(response_length__clip_ratio=cut, response_length__mean=[300] * 9)
    grows = columns(response_length__clip_ratio=cut, response_length__mean=[300] * 5 + [500] * 4)
    assert found(still) == {}
    assert "grew from 300 to 500" in found(grows)["truncated_responses"].what


def test_no_gradient_is_dead_only_where_there_is_something_to_learn(found):
    none = [0.0] * 5
    assert found(columns(actor__grad_norm=none, groups__mixed=[0.0] * 5)) == {}
    assert "dead_learning" in found(columns(actor__grad_norm=none, groups__mixed=[3.0] * 5))


def test_a_schedule_that_decays_to_nothing_is_no_dead_learning(found):
    cosine = [0.5e-6 * (1 + math.cos(math.pi * step / 1000)) for step in range(1, 1001)]
    assert found(columns(actor__lr=cosine)) == {}
    assert found(columns(actor__lr=[*cosine, 0.0, 0.0]))["dead_learning"].step == 1001  # ended too early
    assert "dead_learning" in found(columns(actor__lr=[1e-6 * rate for rate in cosine]))  # never alive


def test_entropy_may_rise_while_accuracy_does(found):
    entropy = [0.15 + 0.03 * step for step in range(20)]
    assert found(columns(actor__entropy=entropy, reward__accuracy=[0.2 + 0.02 * n for n in range(20)])) == {}
    assert "entropy_explosion" in found(columns(actor__entropy=entropy, reward__accuracy=[0.2] * 20))


def test_the_tokens_that_carry_the_change_are_named_and_the_place_is_linked(found):
    def facts(wait: float) -> TraceFacts:
        metrics = {"actor/entropy": wait + 0.1}
        return TraceFacts(metrics, {}, {" wait": wait, " the": 0.1})

    steps = [{"reward/accuracy": 0.4}] * 9
    traced = {step: facts(0.9 if step < 6 else 0.01) for step in range(1, 10)}
    finding = found(steps, traced)["entropy_collapse"]
    assert finding.tokens == (" wait",)
    assert finding.place == ViewerPlace(8)
    assert "' wait'" in finding.what


@pytest.mark.parametrize(
    ("place", "link"),
    [
        (ViewerPlace(3), "#3?run=a%26b"),
        (ViewerPlace(3, 1), "#3/1?run=a%26b"),
        (ViewerPlace(3, 1, 9), "#3/1/9?run=a%26b"),
        (ViewerPlace(3, None, 9), "#3?run=a%26b"),
    ],
)
def test_links_are_addresses_of_the_viewer(place, link):
    assert place.link("a&b") == link


def test_what_a_rule_cannot_see_is_said():
    diagnosis = diagnosed(columns(actor__lr=[1e-6] * 4))
    blind = diagnosis.not_checked()
    assert "dead_learning" not in blind and len(blind) == len(RULES) - 1
    assert blind["repetition"].startswith("needs a trace")
    short = diagnosed(columns(actor__entropy=[1.0] * 4)).not_checked()
    assert short["entropy_collapse"] == "needs 6 steps that have it, there are 4"
