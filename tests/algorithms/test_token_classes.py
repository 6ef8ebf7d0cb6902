import pytest
import torch

from archer.algorithms.token_classes import by_class, reasoning_tokens
from archer.config.actor import actor_config
from archer.errors import ArcherError


def loop(entropies: list[float], quantile: float) -> list[bool]:
    """Sort, walk to the quantile, compare."""
    ordered = sorted(entropies)
    position = quantile * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    threshold = ordered[below] + (position - below) * (ordered[above] - ordered[below])
    return [entropy > threshold for entropy in entropies]


@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.8, 0.95, 1.0])
def test_reasoning_tokens_agree_with_a_loop_over_each_response(quantile, rng, ragged_mask):
    mask = ragged_mask(rng, 9, 17)
    entropy = torch.rand(mask.shape, generator=rng)
    got = reasoning_tokens(entropy.masked_fill(~mask, float("nan")), mask, quantile)
    assert not got[~mask].any()
    for i in range(9):
        expected = loop(entropy[i][mask[i]].double().tolist(), quantile) if mask[i].any() else []
        assert got[i][mask[i]].tolist() == expected


def test_the_default_quantile_makes_a_fifth_of_a_response_reasoning_tokens():
    entropy = torch.rand(3, 100, generator=torch.Generator().manual_seed(0))
    quantile = actor_config().token_entropy_quantile
    assert reasoning_tokens(entropy, torch.ones(3, 100), quantile).sum(-1).tolist() == [20, 20, 20]


def test_the_quantile_is_that_of_the_response_and_not_of_the_batch():
    sure, unsure = torch.linspace(0, 0.1, 10), torch.linspace(1, 2, 10)
    got = reasoning_tokens(torch.stack([sure, unsure]), torch.ones(2, 10), 0.8)
    assert got.sum(-1).tolist() == [2, 2]


def test_padding_and_the_split_into_micro_batches_do_not_matter(rng, ragged_mask):
    mask = ragged_mask(rng, 8, 12)
    entropy = torch.rand(mask.shape, generator=rng)
    whole = reasoning_tokens(entropy, mask, 0.7)
    rows = torch.cat([reasoning_tokens(entropy[i : i + 1], mask[i : i + 1], 0.7) for i in range(8)])
    assert torch.equal(whole, rows)


@pytest.mark.parametrize("values", [[0.7], [0.3] * 6])
def test_a_response_of_one_token_or_of_one_entropy_has_no_reasoning_token(values):
    entropy = torch.tensor([values])
    assert not reasoning_tokens(entropy, torch.ones_like(entropy), 0.8).any()


def test_an_empty_batch_has_no_reasoning_token():
    assert reasoning_tokens(torch.zeros(0, 0), torch.zeros(0, 0), 0.8).shape == (0, 0)


def test_values_by_class():
    reasoning = torch.tensor([[True, False]])
    assert by_class(reasoning, 0.4, 0.2, torch.zeros(1, dtype=torch.float64)).tolist() == [[0.4, 0.2]]


@pytest.mark.parametrize("setting", [{"token_entropy_quantile": 1.2}, {"low_entropy_clip_ratio_low": -0.1}])
def test_impossible_values_are_named(setting):
    (name,) = setting
    with pytest.raises(ArcherError, match=f"{name}=.*: must be"):
        actor_config(**setting)
