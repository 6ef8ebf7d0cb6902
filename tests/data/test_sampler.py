import pytest

from archer.data.sampler import PromptSampler
from archer.errors import ArcherError


def epochs(sampler, size, count):
    """The next `count` epochs, drawn one prompt at a time."""
    return [[sampler.next_batch(1)[0] for _ in range(size)] for _ in range(count)]


def test_every_epoch_holds_every_prompt_once():
    for epoch in epochs(PromptSampler(10, 4, shuffle=True, seed=0), 10, 5):
        assert sorted(epoch) == list(range(10))


def test_shuffled_epochs_have_different_orders():
    first, second, third = epochs(PromptSampler(50, 4, shuffle=True, seed=0), 50, 3)
    assert first != second != third != first


def test_without_shuffling_the_order_is_that_of_the_files():
    sampler = PromptSampler(5, 3, shuffle=False, seed=0)
    assert [sampler.next_batch() for _ in range(3)] == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]


def test_the_same_seed_gives_the_same_prompts_and_another_seed_others():
    def draw(seed):
        sampler = PromptSampler(100, 16, shuffle=True, seed=seed)
        return [sampler.next_batch() for _ in range(20)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_how_prompts_are_cut_into_batches_does_not_change_their_order():
    whole = PromptSampler(7, 7, shuffle=True, seed=3)
    pieces = PromptSampler(7, 2, shuffle=True, seed=3)
    assert whole.next_batch(21) == [i for k in (2, 5, 1, 13) for i in pieces.next_batch(k)]


def test_batches_run_across_the_end_of_an_epoch_and_drop_nothing():
    sampler = PromptSampler(10, 4, shuffle=True, seed=0)
    drawn = [i for _ in range(5) for i in sampler.next_batch()]
    assert sorted(drawn) == sorted([*range(10), *range(10)])


def test_the_epoch_counts_completed_passes():
    sampler = PromptSampler(10, 5, shuffle=True, seed=0)
    seen = []
    for _ in range(5):
        seen.append(sampler.state_dict()["epoch"])
        sampler.next_batch()
    assert seen == [0, 0, 1, 1, 2]


def test_steps_per_epoch_counts_whole_batches():
    assert PromptSampler(10, 4, shuffle=True, seed=0).steps_per_epoch == 2


@pytest.mark.parametrize("batches_before", [0, 1, 2, 3, 7])
def test_a_resumed_sampler_goes_on_with_the_same_prompts(batches_before):
    uninterrupted = PromptSampler(9, 4, shuffle=True, seed=5)
    for _ in range(batches_before):
        uninterrupted.next_batch()
    state = uninterrupted.state_dict()
    expected = [uninterrupted.next_batch() for _ in range(6)]

    resumed = PromptSampler(9, 4, shuffle=True, seed=5)
    resumed.next_batch(3)  # whatever it did before does not matter
    resumed.load_state_dict(state)
    assert [resumed.next_batch() for _ in range(6)] == expected


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (PromptSampler(8, 4, shuffle=True, seed=5), "number of prompts .* was 9, now it is 8"),
        (PromptSampler(9, 4, shuffle=False, seed=5), "data.shuffle was True, now it is False"),
        (PromptSampler(9, 4, shuffle=True, seed=6), "data.seed was 5, now it is 6"),
    ],
)
def test_a_position_in_another_order_is_refused(other, message):
    state = PromptSampler(9, 4, shuffle=True, seed=5).state_dict()
    with pytest.raises(ArcherError, match=message):
        other.load_state_dict(state)


@pytest.mark.parametrize("batch_size", [0, 11])
def test_a_batch_that_the_dataset_cannot_fill_is_an_error(batch_size):
    with pytest.raises(ArcherError, match=f"batch of {batch_size} prompts .* dataset of 10.*1 ... 10"):
        PromptSampler(10, batch_size, shuffle=True, seed=0)
