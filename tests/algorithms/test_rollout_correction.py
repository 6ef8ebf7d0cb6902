import math

import pytest
import torch
from torch import Tensor

from archer.algorithms.rollout_correction import Threshold, rollout_is_weights, rollout_mismatch
from archer.errors import ArcherError


@pytest.fixture
def policies(rng, ragged_mask) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs of training and of the sampler, and the mask; garbage outside it."""
    mask = ragged_mask(rng, 9, 6)
    old = -torch.rand(mask.shape, generator=rng, dtype=torch.float64)
    rollout = old + 0.5 * torch.randn(mask.shape, generator=rng, dtype=torch.float64)
    return old.masked_fill(~mask, float("nan")), rollout.masked_fill(~mask, float("nan")), mask


def loop(old: Tensor, rollout: Tensor, mask: Tensor, level: str, threshold: Threshold) -> list[list[float]]:
    rows = []
    for i in range(len(mask)):
        logs = [(old[i, t] - rollout[i, t]).item() for t in range(mask.shape[1]) if mask[i, t]]
        raw = [math.exp(sum(logs))] * len(logs) if level == "sequence" else [math.exp(x) for x in logs]
        if threshold.lower is None:
            rows.append([min(w, threshold.upper) for w in raw])
        else:
            rows.append([w if threshold.lower <= w <= threshold.upper else 0.0 for w in raw])
    return rows


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("threshold", [Threshold(1.2), Threshold(2.0, 0.7)], ids=["truncated", "dropped"])
@pytest.mark.parametrize("normalize", [False, True])
def test_weights_agree_with_a_loop(policies, level, threshold, normalize):
    old, rollout, mask = policies
    correction = rollout_is_weights(old, rollout, mask, level, threshold, normalize)
    expected = loop(old, rollout, mask, level, threshold)
    if normalize:
        filled = [row for row in expected if row]
        tokens = [w for row in filled for w in row]
        mean = sum(tokens) / len(tokens) if level == "token" else sum(r[0] for r in filled) / len(filled)
        expected = [[w / mean for w in row] for row in expected]
        assert correction.metrics["rollout_is_batch_norm_factor"] == pytest.approx(mean)
    for i, row in enumerate(expected):
        assert correction.weights[i][mask[i]].tolist() == pytest.approx(row, rel=1e-12)
    assert correction.weights[~mask].eq(0).all()


def test_equal_policies_have_weight_one(policies):
    old, _, mask = policies
    for level in ("token", "sequence"):
        correction = rollout_is_weights(old, old, mask, level, Threshold(2.0), False)
        assert correction.weights[mask].eq(1).all()
        assert correction.metrics["rollout_is_eff_sample_size"] == pytest.approx(1)
        assert correction.metrics["rollout_is_ratio_fraction_high"] == 0
    assert all(
        value == pytest.approx(1.0 if name == "ppl_ratio" else 0.0)
        for name, value in rollout_mismatch(old, old, mask).items()
    )


def test_metrics_describe_the_applied_weights_and_how_many_were_truncated(policies):
    old, rollout, mask = policies
    correction = rollout_is_weights(old, rollout, mask, "token", Threshold(1.2), False)
    raw = [math.exp(x) for x in (old - rollout)[mask].tolist()]
    applied = [min(w, 1.2) for w in raw]
    n, mean = len(raw), sum(applied) / len(applied)
    variance = sum((w - mean) ** 2 for w in applied) / n
    assert correction.metrics == pytest.approx(
        {
            "rollout_is_mean": mean,
            "rollout_is_max": max(applied),
            "rollout_is_min": min(applied),
            "rollout_is_std": variance**0.5,
            "rollout_is_eff_sample_size": sum(applied) ** 2 / sum(w * w for w in applied) / n,
            "rollout_is_ratio_fraction_high": sum(w > 1.2 for w in raw) / n,
            "rollout_is_ratio_fraction_low": sum(w < 1 / 1.2 for w in raw) / n,
        }
    )


def test_the_mismatch_agrees_with_a_loop(policies):
    old, rollout, mask = policies
    rows = [(old - rollout)[i][mask[i]].tolist() for i in range(len(mask)) if mask[i].any()]
    d = [x for row in rows for x in row]
    assert rollout_mismatch(old, rollout, mask) == pytest.approx(
        {
            "kl": -sum(d) / len(d),
            "k3_kl": sum(math.exp(x) - 1 - x for x in d) / len(d),
            "chi2_token": sum(math.exp(2 * x) for x in d) / len(d) - 1,
            "ppl_ratio": sum(math.exp(-sum(row) / len(row)) for row in rows) / len(rows),
        }
    )


@pytest.mark.parametrize(
    ("text", "expected"), [("2.0", Threshold(2.0)), ("5", Threshold(5.0)), ("0.5_5.0", Threshold(5.0, 0.5))]
)
def test_thresholds_are_read_in_verls_notation(text, expected):
    assert Threshold.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "two", "-1", "0", "0.55", "5.0_0.5", "1.1_2.0", "0.5_1.0_2.0", "0_2.0"),
        *("nan", "nan_2.0", "inf", "0.5_inf"),
    ],
)
def test_a_threshold_that_makes_no_sense_is_named(text):
    with pytest.raises(ArcherError, match=r"rollout_is_threshold=.*such as 2\.0"):
        Threshold.parse(text)
