import math

import pytest
import torch

from archer.algorithms.masked import masked_mean, masked_sum, whiten

NAN = float("nan")


def test_sums_and_means_agree_with_a_loop_and_ignore_nan_in_padding(rng, ragged_mask):
    mask = ragged_mask(rng, 6, 9)
    values = torch.randn(6, 9, generator=rng, dtype=torch.float64)
    valid = [[values[i, t].item() for t in range(9) if mask[i, t]] for i in range(6)]
    dirty = values.masked_fill(~mask, NAN)

    assert masked_sum(dirty, mask).item() == pytest.approx(sum(map(sum, valid)), abs=1e-12)
    assert masked_sum(dirty, mask, dim=-1).tolist() == pytest.approx([sum(v) for v in valid], abs=1e-12)
    assert masked_mean(dirty, mask).item() == pytest.approx(
        sum(map(sum, valid)) / sum(map(len, valid)), abs=1e-12
    )
    expected = [sum(v) / len(v) if v else 0.0 for v in valid]
    assert masked_mean(dirty, mask, dim=-1).tolist() == pytest.approx(expected, abs=1e-12)


def test_a_float_mask_means_the_same_as_a_bool_mask(rng, ragged_mask):
    mask = ragged_mask(rng, 6, 9)
    values = torch.randn(6, 9, generator=rng)
    assert masked_mean(values, mask.float()) == masked_mean(values, mask)
    assert torch.equal(whiten(values, mask.float()), whiten(values, mask))


def test_mean_over_nothing_is_zero():
    assert masked_mean(torch.full((2, 3), NAN), torch.zeros(2, 3)).item() == 0.0


def test_whiten_agrees_with_a_loop(rng, ragged_mask):
    mask = ragged_mask(rng, 6, 9)
    values = 5 + 3 * torch.randn(6, 9, generator=rng, dtype=torch.float64)
    valid = [values[i, t].item() for i in range(6) for t in range(9) if mask[i, t]]
    mean = sum(valid) / len(valid)
    variance = sum((v - mean) ** 2 for v in valid) / (len(valid) - 1)

    whitened = whiten(values.masked_fill(~mask, NAN), mask)

    for i in range(6):
        for t in range(9):
            expected = (values[i, t].item() - mean) / math.sqrt(variance + 1e-8) if mask[i, t] else 0.0
            assert whitened[i, t].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("valid_tokens", [0, 1, 6, 7])
def test_whitening_equal_values_gives_exact_zeros(valid_tokens, dtype):
    mask = torch.arange(10).view(2, 5) < valid_tokens
    whitened = whiten(torch.full((2, 5), 0.1, dtype=dtype), mask)
    assert torch.equal(whitened, torch.zeros(2, 5, dtype=dtype))
