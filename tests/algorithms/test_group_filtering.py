import torch
from hypothesis import given
from hypothesis import strategies as st

from archer.algorithms.groups import GroupCounts, count_groups, mixed_groups

RESPONSES = st.lists(st.tuples(st.booleans(), st.integers(-3, 5)), max_size=30)


@given(RESPONSES)
def test_filtering_and_counting_agree_with_a_loop(responses):
    correct = torch.tensor([c for c, _ in responses], dtype=torch.bool)
    groups = torch.tensor([g for _, g in responses], dtype=torch.int64)
    verdicts = {g: {c for c, h in responses if h == g} for _, g in responses}

    assert mixed_groups(correct, groups).tolist() == [len(verdicts[g]) == 2 for _, g in responses]
    assert count_groups(correct, groups) == GroupCounts(
        mixed=sum(v == {True, False} for v in verdicts.values()),
        all_correct=sum(v == {True} for v in verdicts.values()),
        all_wrong=sum(v == {False} for v in verdicts.values()),
    )


def test_a_singleton_group_is_never_kept():
    assert mixed_groups(torch.tensor([True, False]), torch.tensor([0, 1])).tolist() == [False, False]


def test_counts_add_up():
    assert GroupCounts(1, 2, 3) + GroupCounts(10, 20, 30) == GroupCounts(11, 22, 33)


def test_a_group_is_what_its_judged_responses_are():
    marks = ["+-?", "+?+", "-?-", "+??", "???"]  # right, wrong, not judged
    correct = torch.tensor([mark == "+" for group in marks for mark in group])
    judged = torch.tensor([mark != "?" for group in marks for mark in group])
    groups = torch.arange(5).repeat_interleave(3)
    assert mixed_groups(correct, groups, judged).tolist() == [True] * 3 + [False] * 12
    counts = count_groups(correct, groups, judged)
    assert counts == GroupCounts(mixed=1, all_correct=2, all_wrong=1, unjudged=1)
    assert counts.degenerate == 4


def test_an_unjudged_response_is_not_a_wrong_one_whatever_its_verdict_says():
    groups, judged = torch.zeros(3, dtype=torch.long), torch.tensor([True, True, False])
    for said in (False, True):
        correct = torch.tensor([True, True, said])
        assert count_groups(correct, groups, judged) == GroupCounts(all_correct=1)
        correct = torch.tensor([False, False, said])
        assert count_groups(correct, groups, judged) == GroupCounts(all_wrong=1)
