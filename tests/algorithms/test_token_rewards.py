import pytest
import torch

from archer.algorithms.masked import penalised_rewards, place_scores


def test_scores_go_to_the_last_valid_token_and_nowhere_for_an_empty_response(rng, ragged_mask):
    mask = ragged_mask(rng, 9, 7)
    scores = torch.randn(9, generator=rng, dtype=torch.float64)
    expected = torch.zeros(9, 7, dtype=torch.float64)
    for i in range(9):
        valid = [t for t in range(7) if mask[i, t]]
        if valid:
            expected[i, valid[-1]] = scores[i]
    assert torch.equal(place_scores(scores, mask), expected)
    assert torch.equal(place_scores(scores, mask.float()), expected)


def test_placing_scores_with_no_token_at_all_does_not_crash():
    assert place_scores(torch.tensor([1.0, 2.0]), torch.zeros(2, 0)).shape == (2, 0)


def test_kl_is_taken_off_the_reward_of_each_valid_token(rng, ragged_mask):
    mask = ragged_mask(rng, 9, 7)
    rewards, kl = torch.randn(2, 9, 7, generator=rng, dtype=torch.float64)
    result = penalised_rewards(rewards, kl.masked_fill(~mask, float("nan")), mask, kl_coef=0.3)
    for i in range(9):
        for t in range(7):
            expected = rewards[i, t].item() - 0.3 * kl[i, t].item() if mask[i, t] else 0.0
            assert result[i, t].item() == pytest.approx(expected, abs=1e-12)
