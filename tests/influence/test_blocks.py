"""Captured factors as rectangles of responses and tokens."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from archer.influence.block import RowGrid, make_blocks
from archer.influence.capture import Capture
from archer.influence.config import InfluenceConfig
from archer.influence.costs import Counters, Stopwatch
from archer.influence.factors import TokenFactors
from archer.influence.layout import Layout
from archer.influence.modules import NoProjection, TracedModule

MODULES = [TracedModule(name, nn.Identity(), NoProjection(3), NoProjection(2)) for name in ("a", "b")]
CPU = torch.device("cpu")
SEQUENCES = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6)), min_size=1, max_size=6)


def captured(layout: Layout, keep_all: bool, scaled: bool) -> TokenFactors:
    """Factors that tell their position; NaN scales and infinite factors where nothing is traced."""
    kept = torch.arange(layout.size) if keep_all else (layout.row >= 0).nonzero().squeeze(1)
    row, token = layout.row[kept], layout.token[kept]
    place = torch.where(row >= 0, torch.arange(len(kept), dtype=torch.float64), torch.inf)

    def side(width: int) -> dict[str, torch.Tensor]:
        return {m.name: place[:, None] + 100 * torch.arange(width) + 1000 * n for n, m in enumerate(MODULES)}

    scale = torch.where(row >= 0, 1.0 + torch.arange(len(kept)), torch.nan) if scaled else None
    return TokenFactors(row, token, side(2), side(3), scale, layout.lengths(), 0)


@given(sequences=SEQUENCES, data=st.data())
def test_runs_that_a_layout_knows_are_those_found_in_its_rows_and_tokens(sequences, data):
    prompts, lengths = zip(*sequences, strict=True)
    traced = [row if data.draw(st.booleans()) else -1 for row in range(len(sequences))]
    layout = Layout.packed(traced, prompts, lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("archer.influence.capture.KEEP_ALL", data.draw(st.sampled_from([0.0, 2.0])))
        capture = Capture(
            [], layout, InfluenceConfig(), Counters(), Stopwatch(Counters(), CPU, False), lockstep=False
        )
    row, token = layout.row[capture.kept], layout.token[capture.kept]
    found = TokenFactors(row, token, {}, {}, None, capture.lengths, 0)
    known = replace(found, known_runs=capture.runs())
    assert known.runs == found.runs
    assert known.counts == found.counts == {r: n for r, n in zip(traced, lengths, strict=True) if r >= 0}
    assert all(torch.equal(known.positions[r], where) for r, where in found.positions.items())


def test_tokens_in_another_order_are_no_run():
    batch = TokenFactors(torch.tensor([0, 0, 0]), torch.tensor([2, 0, 1]), {}, {}, None, {0: 3}, 0)
    assert batch.runs is None
    assert batch.counts == {0: 3}
    assert batch.positions[0].tolist() == [1, 2, 0]


@given(sequences=SEQUENCES, data=st.data())
def test_every_line_of_every_response_is_where_the_block_says(sequences, data):
    prompts, lengths = zip(*sequences, strict=True)
    rows = data.draw(st.permutations(range(len(sequences))))
    traced = [row if data.draw(st.integers(0, 3)) else -1 for row in rows]
    make = data.draw(st.sampled_from(["padded", "packed"]))
    width = max(p + n for p, n in sequences) + data.draw(st.integers(0, 2))
    layout = (
        Layout.padded(traced, prompts, lengths, width)
        if make == "padded"
        else Layout.packed(traced, prompts, lengths)
    )
    batch = captured(layout, data.draw(st.booleans()), data.draw(st.booleans()))
    wanted = sorted(row for row in traced if row >= 0 and data.draw(st.integers(0, 4)))
    found = set()
    for block in make_blocks([batch], wanted, MODULES, CPU, torch.float64):
        u, v = block.lines(MODULES)
        for number, (member, first) in enumerate(zip(block.responses, block.first, strict=True)):
            where = batch.positions[wanted[member]]
            columns = torch.arange(first, first + len(where))
            found.add(wanted[member])
            assert block.mask[number].nonzero().squeeze(1).tolist() == columns.tolist()
            scales = torch.zeros(block.width, dtype=torch.float64)
            if batch.scale is not None and block.scale is not None:
                scales[columns] = batch.scale[where].double()
                assert torch.equal(block.scale[number], scales)
            for m, traced_module in enumerate(MODULES):
                assert torch.equal(u[m, number, columns], batch.u[traced_module.name][where])
                assert torch.equal(v[m, number, columns], batch.v[traced_module.name][where])
        assert (block.scale is None) == (batch.scale is None)
        assert block.padded == (not block.mask.all())
        assert block.members.tolist() == list(block.responses)
    assert found == set(wanted)


def test_responses_in_rows_of_one_width_are_seen_without_a_copy():
    batch = captured(Layout.padded([0, 1, 2], [2, 3, 1], [4, 2, 5], 7), keep_all=True, scaled=False)
    (block,) = make_blocks([batch], [0, 1, 2], MODULES, CPU, torch.float64)
    assert isinstance(block.place, RowGrid) and block.first == (1, 2, 0)
    u, _ = block.lines(MODULES[:1])
    assert u.data_ptr() == batch.u["a"].data_ptr()


def test_responses_of_other_lengths_without_padding_are_gathered():
    batch = captured(Layout.packed([0, 1, 2], [1, 1, 1], [4, 2, 5]), keep_all=False, scaled=False)
    (block,) = make_blocks([batch], [0, 1, 2], MODULES, CPU, torch.float64)
    assert isinstance(block.place, torch.Tensor)
    assert block.mask.sum(1).sort().values.tolist() == [2, 4, 5]


def test_a_small_part_of_a_micro_batch_is_gathered_although_it_lies_on_a_grid():
    batch = captured(Layout.padded([0, 1, 2, 3], [1] * 4, [4] * 4, 5), keep_all=True, scaled=False)
    (block,) = make_blocks([batch], [0], MODULES, CPU, torch.float64)
    assert isinstance(block.place, torch.Tensor) and block.place.tolist() == [[0, 1, 2, 3]]
