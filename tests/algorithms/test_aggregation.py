import re
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from archer.algorithms.aggregation import AGGREGATIONS, LossTotals, aggregate, sequence_weights
from archer.algorithms.policy_losses.base import ClipSettings, LossInputs
from archer.algorithms.policy_losses.measures import loss_measures
from archer.algorithms.policy_losses.ppo_clip import ppo_clip
from archer.errors import ArcherError

HORIZON = 32


def loop(per_token: torch.Tensor, mask: torch.Tensor, mode: str) -> float:
    rows = [
        [x for x, valid in zip(row, keep, strict=True) if valid]
        for row, keep in zip(per_token.tolist(), mask.tolist(), strict=True)
    ]
    rows = [row for row in rows if row]
    if mode == "token-mean":
        return sum(map(sum, rows)) / sum(map(len, rows))
    if mode == "seq-mean-token-sum":
        return sum(map(sum, rows)) / len(rows)
    if mode == "seq-mean-token-mean":
        return sum(sum(row) / len(row) for row in rows) / len(rows)
    assert mode == "seq-mean-token-sum-norm"
    return sum(map(sum, rows)) / len(rows) / HORIZON


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_each_mode_agrees_with_a_loop(mode, rng, ragged_mask):
    mask = ragged_mask(rng, 7, 9)
    per_token = torch.randn(7, 9, generator=rng, dtype=torch.float64)
    loss = aggregate(per_token.masked_fill(~mask, float("nan")), mask, mode, LossTotals.of(mask), HORIZON)
    assert loss.item() == pytest.approx(loop(per_token, mask, mode), abs=1e-12)


@given(data=st.data(), mode=st.sampled_from(sorted(AGGREGATIONS)))
@settings(deadline=None, max_examples=100)
def test_losses_gradients_and_metrics_of_micro_batches_add_up_whatever_the_split(data, mode):
    lengths = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=8))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(lengths)))) | {0, len(lengths)})
    order = data.draw(st.permutations(range(len(lengths))))
    rng = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    old, advantages, step = torch.randn(3, *mask.shape, generator=rng, dtype=torch.float64)
    totals = LossTotals.of(mask)

    def share(rows: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Loss, gradient and clip fraction that these rows contribute, padded to their own longest."""
        width = max(lengths[i] for i in rows)
        log_probs = (old + step)[rows, :width].requires_grad_()
        keep = mask[rows, :width]
        inputs = LossInputs(log_probs, old[rows, :width], advantages[rows, :width], keep)
        out = ppo_clip(inputs, ClipSettings())
        loss = aggregate(out.per_token, keep, mode, totals, HORIZON)
        loss.backward()
        gradient = torch.zeros_like(old)
        gradient[rows, :width] = log_probs.grad
        clipped = loss_measures(inputs, out)["pg_clipfrac"].values
        return loss.detach(), gradient, aggregate(clipped, keep, "token-mean", totals)

    parts = [share(list(order[a:b])) for a, b in pairwise(cuts)]
    for added, whole in zip(zip(*parts, strict=True), share(list(range(len(lengths)))), strict=True):
        torch.testing.assert_close(torch.stack(added).sum(0), whole, rtol=1e-12, atol=1e-13)


def test_token_mean_over_one_row_micro_batches_is_not_a_mean_of_sequence_means():
    mask = torch.tensor([[1.0, 1, 1, 1], [1, 0, 0, 0]])
    per_token = torch.tensor([[1.0, 1, 1, 1], [6, 0, 0, 0]])
    totals = LossTotals.of(mask)
    losses = [aggregate(per_token[i : i + 1], mask[i : i + 1], "token-mean", totals).item() for i in (0, 1)]
    assert sum(losses) == pytest.approx(10 / 5)  # a mean of the two means would be 3.5


def test_an_empty_response_is_no_sequence():
    mask = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    assert LossTotals.of(mask) == LossTotals(tokens=2.0, sequences=1.0)
    for mode in AGGREGATIONS:
        with_it = aggregate(torch.ones(2, 2), mask, mode, LossTotals.of(mask), HORIZON)
        without = aggregate(torch.ones(1, 2), mask[:1], mode, LossTotals.of(mask[:1]), HORIZON)
        assert with_it == without


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_a_mini_batch_without_valid_tokens_has_loss_zero_and_gradient_zero(mode):
    per_token = torch.ones(2, 3, requires_grad=True)
    mask = torch.zeros(2, 3)
    loss = aggregate(per_token, mask, mode, LossTotals.of(mask), HORIZON)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(per_token.grad, torch.zeros(2, 3))


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_the_weight_of_a_response_is_the_gradient_of_the_loss_at_its_tokens(mode, rng, ragged_mask):
    mask = ragged_mask(rng, 7, 9)
    per_token = torch.randn(7, 9, generator=rng, dtype=torch.float64).requires_grad_()
    aggregate(per_token, mask, mode, LossTotals.of(mask), HORIZON).backward()
    weights = sequence_weights(mask, mode, LossTotals.of(mask), HORIZON)
    assert torch.equal(per_token.grad, weights[:, None] * mask)


@pytest.mark.parametrize("horizon", [None, 0])
def test_the_norm_mode_asks_for_its_horizon(horizon):
    with pytest.raises(ArcherError, match=r"data\.max_response_length"):
        aggregate(torch.ones(1, 1), torch.ones(1, 1), "seq-mean-token-sum-norm", LossTotals(1, 1), horizon)


def test_an_unknown_mode_names_key_and_choices():
    with pytest.raises(ArcherError, match=re.escape("actor.loss_agg_mode='mean': choose one of")) as error:
        aggregate(torch.ones(1, 1), torch.ones(1, 1), "mean", LossTotals(1, 1))
    assert all(mode in str(error.value) for mode in AGGREGATIONS)
