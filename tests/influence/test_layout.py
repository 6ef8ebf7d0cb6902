import pytest
import torch

from archer.errors import ArcherError
from archer.influence import Layout


def owners(layout: Layout) -> list[tuple[int, int] | None]:
    pairs = zip(layout.row.tolist(), layout.token.tolist(), strict=True)
    return [(row, token) if row >= 0 else None for row, token in pairs]


def test_right_padding_emits_token_t_one_position_before_it():
    # p p r r r . | p r . . . .
    layout = Layout.padded([7, 3], [2, 1], [3, 1], 6)
    assert owners(layout) == [None, (7, 0), (7, 1), (7, 2), None, None, (3, 0), None, None, None, None, None]


def test_left_padding_moves_sequences_to_the_end():
    # . p p r r r | . . . . p r
    layout = Layout.padded([7, 3], [2, 1], [3, 1], 6, side="left")
    assert owners(layout) == [None, None, (7, 0), (7, 1), (7, 2), None, None, None, None, None, (3, 0), None]


def test_blocks_put_all_responses_behind_the_prompt_block():
    # . p r r | p p r .
    layout = Layout.blocks([7, 3], 2, [2, 1], 4)
    assert owners(layout) == [None, (7, 0), (7, 1), None, None, (3, 0), None, None]


def test_packed_sequences_follow_one_another():
    # p p r r | p r
    expected = [None, (7, 0), (7, 1), None, (3, 0), None]
    assert owners(Layout.packed([7, 3], [2, 1], [2, 1])) == expected
    assert owners(Layout.packed([7, 3], [2, 1], [2, 1], offsets=torch.tensor([0, 4, 6]))) == expected
    assert owners(Layout.packed([7, 3], [2, 1], [2, 1], size=8)) == [*expected, None, None]


def test_response_tensors_hold_token_t_in_column_t():
    assert owners(Layout.responses([7, 3], [2, 1], 2)) == [(7, 0), (7, 1), (3, 0), None]


def test_rows_that_are_not_selected_are_nobodys():
    assert owners(Layout.packed([-1, 3], [2, 1], [2, 1])) == [None, None, None, None, (3, 0), None]


def test_the_last_tokens_are_kept_and_the_full_lengths_remembered():
    layout = Layout.packed([7, 3], [2, 1], [3, 1])
    assert layout.lengths() == {7: 3, 3: 1}
    assert owners(layout.last_tokens(2)) == [None, None, (7, 1), (7, 2), None, (3, 0), None]
    assert layout.last_tokens(0) is layout


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Layout.padded([0], [0], [2], 4), "no prompt token"),
        (lambda: Layout.padded([0], [3], [2], 4), "exceed the batch width 4"),
        (lambda: Layout.padded([0], [1], [2], 4, side="top"), "neither left nor right"),
        (lambda: Layout.blocks([0], 2, [3], 4), "do not fit in a width of 4"),
        (lambda: Layout.blocks([], 0, [], 4), "at least one token"),
        (lambda: Layout.packed([0], [1], [4], offsets=[3], size=4), "do not fit"),
        (lambda: Layout(torch.tensor([0, 0]), torch.tensor([1, 1])), "twice"),
        (lambda: Layout.from_starts([4, 4], [0, 3], [2, 2], 6), "row 4 twice"),
        (lambda: Layout.from_starts([4, 5], [0, 1], [2, 2], 6), "overlap"),
        (lambda: Layout(torch.tensor([0, 0]), torch.tensor([1])), "one length"),
    ],
)
def test_impossible_layouts_are_refused(build, words):
    with pytest.raises(ArcherError, match=words):
        build()
