"""The cache that grows in place holds what the stock one holds."""

import torch
from transformers.cache_utils import DynamicLayer

from archer.generation.cache import ROOM, GrowingLayer


def pieces(rows: int, lengths: list[int], seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(rows, 2, n, 4, generator=rng), torch.randn(rows, 2, n, 4, generator=rng))
        for n in lengths
    ]


def assert_same(ours: GrowingLayer, theirs: DynamicLayer) -> None:
    assert ours.get_seq_length() == theirs.get_seq_length()
    assert torch.equal(ours.keys, theirs.keys)
    assert torch.equal(ours.values, theirs.values)


def test_it_holds_every_position_in_order_beyond_its_room():
    ours, theirs = GrowingLayer(), DynamicLayer()
    for key, value in pieces(3, [5] + [1] * (2 * ROOM + 3), 0):
        grown, stock = ours.update(key, value), theirs.update(key, value)
        assert torch.equal(grown[0], stock[0])
        assert torch.equal(grown[1], stock[1])


def test_repeated_and_selected_rows_go_on_by_themselves():
    ours, theirs = GrowingLayer(), DynamicLayer()
    for key, value in pieces(2, [4], 1):
        ours.update(key, value)
        theirs.update(key, value)
    for layer in (ours, theirs):
        layer.batch_repeat_interleave(3)
    for key, value in pieces(6, [1, 1, 1], 2):
        ours.update(key, value)
        theirs.update(key, value)
    keep = torch.tensor([0, 3, 4])
    for layer in (ours, theirs):
        layer.batch_select_indices(keep)
    for key, value in pieces(3, [1, 1], 3):
        ours.update(key, value)
        theirs.update(key, value)
    assert_same(ours, theirs)


def test_new_positions_are_not_copied_again():
    layer = GrowingLayer()
    (first, *rest) = pieces(2, [3, 1, 1], 4)
    layer.update(*first)
    address = layer.keys.data_ptr()
    for key, value in rest:
        layer.update(key, value)
    assert layer.keys.data_ptr() == address
