import pytest
import torch
from tiny_update import GROUPS, traced_config

from archer.errors import ArcherError
from archer.influence import Group, InfluenceTracer, groups_from, select_groups
from archer.influence.groups import comparison_groups, contrast_weights

MIXED = [
    Group("accepted", (0, 1), (True, True)),
    Group("first", (2, 3), (True, False)),
    Group("rejected", (4, 5), (False, False)),
    Group("second", (6, 7, 8), (False, True, True)),
    Group("rejected too", (9,), (False,)),
]


def test_groups_without_contrast_are_left_out_and_counted():
    selection = select_groups(MIXED, 0)
    assert [group.uid for group in selection.groups] == ["first", "second"]
    assert selection.rows == [2, 3, 6, 7, 8]
    assert (selection.skipped_all_accepted, selection.skipped_all_rejected, selection.skipped_by_cap) == (
        1,
        2,
        0,
    )


def test_the_cap_takes_the_first_groups_with_contrast():
    selection = select_groups(MIXED, 1)
    assert [group.uid for group in selection.groups] == ["first"]
    assert (selection.skipped_all_rejected, selection.skipped_by_cap) == (2, 1)


def test_selection_reaches_the_metrics_and_limits_the_rows(problem):
    tracer = InfluenceTracer(problem.model, traced_config(max_prompts_per_step=1))
    selection = tracer.select(GROUPS)
    problem.update(tracer, [selection.rows])
    scores = tracer.scores(selection)
    metrics = tracer.metrics()
    assert sorted(scores) == [0, 1, 2, 3]
    names = (
        "rows_emitted",
        "selected_prompts",
        "selected_responses",
        "skipped_all_accepted",
        "skipped_all_rejected",
    )
    assert [metrics[f"influence_trace/{name}"] for name in names] == [4, 1, 4, 1, 0]
    assert metrics["influence_trace/debug_skipped_by_cap"] == 1
    assert {
        f"timing_s/influence_{part}" for part in ("capture", "backward", "solve", "scoring")
    } <= metrics.keys()
    assert tracer.metrics()["influence_trace/rows_emitted"] == 0


def test_all_selected_compares_everything_with_everything():
    (group,) = comparison_groups(
        select_groups(MIXED, 0), traced_config(accepted_rejected_scope="all_selected")
    )
    assert group.rows == (2, 3, 6, 7, 8)
    assert group.accepted == (True, False, False, True, True)
    assert (
        comparison_groups(select_groups([], 0), traced_config(accepted_rejected_scope="all_selected")) == []
    )


def test_contrast_weights():
    flags = torch.tensor([[True, True, False], [False, True, False]])
    assert contrast_weights(flags, "sum", False)[0].tolist() == [[1, 1, -1]]
    assert contrast_weights(flags, "mean", False)[0].tolist() == [[0.5, 0.5, -1]]
    assert contrast_weights(flags, "sum", True)[0].tolist() == [[0, 1, -1], [1, 0, -1], [1, 1, 0]]
    assert contrast_weights(flags, "mean", True)[0].tolist() == [[0, 1, -1], [1, 0, -1], [0.5, 0.5, 0]]
    assert contrast_weights(flags, "sum", False)[1].tolist() == [[-1, 1, -1]]
    assert contrast_weights(flags, "mean", True)[1].tolist() == [[0, 1, -1], [-0.5, 0, -0.5], [-1, 1, 0]]


def test_groups_that_cannot_be_are_refused():
    with pytest.raises(ArcherError, match="2 rows but 1 accepted"):
        Group("a", (0, 1), (True,))
    with pytest.raises(ArcherError, match="names a row twice"):
        Group("a", (0, 0), (True, False))
    with pytest.raises(ArcherError, match=r"rows \[1\] are in more than one group"):
        select_groups([Group("a", (0, 1), (True, False)), Group("b", (1, 2), (True, False))], 0)


def test_flags_and_rows_may_be_tensors():
    group = Group("a", torch.tensor([3, 1]), torch.tensor([True, False]))
    assert group == Group("a", (3, 1), (True, False))


def test_groups_are_made_of_uids_and_verdicts():
    groups = groups_from(["b", "a", "b", "a", "b"], [True, False, None, True, False], rows=[5, 6, 7, 8, 9])
    assert groups == [Group("b", (5, 9), (True, False)), Group("a", (6, 8), (False, True))]
    assert groups_from([3, 3], [True, False]) == [Group("3", (0, 1), (True, False))]


def test_a_verdict_for_every_uid_is_wanted():
    with pytest.raises(ArcherError, match="2 uids, 1 verdicts"):
        groups_from(["a", "b"], [True])
