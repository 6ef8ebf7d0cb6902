import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archer.algorithms.dynamic_sampling import DynamicSampling
from archer.algorithms.groups import GroupCounts

PATTERNS = {"mixed": [True, False], "right": [True, True], "wrong": [False, False]}


def batch(first_id: int, *kinds: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Groups of two responses, of the given kinds, with consecutive ids."""
    correct = [c for kind in kinds for c in PATTERNS[kind]]
    groups = [first_id + i for i in range(len(kinds)) for _ in range(2)]
    return torch.tensor(correct, dtype=torch.bool), torch.tensor(groups, dtype=torch.int64)


def test_batches_are_refilled_until_there_are_enough_mixed_groups():
    sampling = DynamicSampling(wanted=3, max_num_gen_batches=5)
    assert (sampling.missing, sampling.done) == (3, False)
    sampling = sampling.after(*batch(0, "right", "mixed", "wrong"))
    assert (sampling.missing, sampling.done, sampling.kept) == (2, False, (1,))
    sampling = sampling.after(*batch(3, "mixed", "right", "mixed", "mixed"))
    assert (sampling.missing, sampling.done, sampling.kept) == (0, True, (1, 3, 5))
    assert sampling.counts == GroupCounts(mixed=4, all_correct=2, all_wrong=1)
    assert sampling.shortfall is None


def test_when_the_generation_batches_are_used_up_it_goes_on_with_what_there_is_and_says_so():
    sampling = DynamicSampling(wanted=4, max_num_gen_batches=2)
    sampling = sampling.after(*batch(0, "right", "mixed"))
    assert sampling.shortfall is None  # not the end yet
    sampling = sampling.after(*batch(2, "wrong", "wrong"))
    assert sampling.done
    assert sampling.kept == (1,)
    assert "1 of 4 mixed groups in 2 generation batches (1 groups all correct, 2 all wrong)" in str(
        sampling.shortfall
    )


def test_no_mixed_group_at_all_is_no_failure():
    sampling = DynamicSampling(wanted=2, max_num_gen_batches=1).after(*batch(0, "right", "right"))
    assert sampling.done
    assert sampling.kept == ()
    assert "0 of 2" in str(sampling.shortfall)


def test_an_empty_generation_batch_counts_as_one():
    sampling = DynamicSampling(wanted=2, max_num_gen_batches=1).after(*batch(0))
    assert sampling.done
    assert sampling.gen_batches == 1


def test_zero_means_no_limit_on_generation_batches():
    sampling = DynamicSampling(wanted=1, max_num_gen_batches=0)
    for i in range(50):
        sampling = sampling.after(*batch(i, "wrong"))
    assert not sampling.done


def test_groups_are_kept_in_the_order_of_generation_not_of_their_ids():
    correct = torch.tensor([True, True, False, False, True, False])
    groups = torch.tensor([9, 2, 9, 2, 5, 5])
    assert DynamicSampling(wanted=2).after(correct, groups).kept == (9, 2)


def test_reused_group_ids_are_refused():
    sampling = DynamicSampling(wanted=3).after(*batch(0, "mixed"))
    with pytest.raises(ValueError, match=r"group ids \[0\]"):
        sampling.after(*batch(0, "mixed"))


@given(st.lists(st.lists(st.sampled_from(sorted(PATTERNS)), max_size=5), max_size=6), st.integers(1, 6))
def test_what_is_kept_is_the_first_wanted_mixed_groups_however_they_arrive(batches, wanted):
    sampling = DynamicSampling(wanted=wanted)
    next_id, mixed = 0, []
    for kinds in batches:
        sampling = sampling.after(*batch(next_id, *kinds))
        mixed += [next_id + i for i, kind in enumerate(kinds) if kind == "mixed"]
        next_id += len(kinds)
    assert sampling.kept == tuple(mixed[:wanted])
    assert sampling.done == (len(mixed) >= wanted)


def test_a_group_whose_contrast_is_an_unjudged_response_is_replaced():
    correct = torch.tensor([True, True, False, True, False, False])
    judged = torch.tensor([True, True, False, True, True, False])
    sampling = DynamicSampling(wanted=2).after(correct, torch.tensor([0, 0, 0, 1, 1, 1]), judged)
    assert sampling.kept == (1,)
    assert sampling.counts == GroupCounts(mixed=1, all_correct=1)
