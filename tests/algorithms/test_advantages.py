import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from archer.algorithms.advantages.base import (
    ADVANTAGES,
    AdvantageInputs,
    bound_advantage,
    judged_advantages,
)
from archer.algorithms.advantages.returns import discounted_returns
from archer.algorithms.config import AlgorithmConfig
from archer.errors import ArcherError
from archer.plugins import extended

GROUP_ESTIMATORS = ["grpo", "dr_grpo", "rloo"]
WITHOUT_CRITIC = [name for name in ADVANTAGES.names() if not ADVANTAGES.find(name).facts.get("needs_critic")]


def advantage(name: str, **settings: Any) -> Callable[[AdvantageInputs], Tensor]:
    return bound_advantage(name, extended(AlgorithmConfig)(**settings))


@pytest.fixture
def inputs(rng, ragged_mask) -> AdvantageInputs:
    """12 responses in groups of 5, 4, 2 and 1, interleaved, with ids that are neither dense nor sorted."""
    mask = ragged_mask(rng, 12, 8)
    groups = torch.tensor([70, -3, 70, 9, 9, 70, 4, 70, -3, 9, 70, 9])
    rewards = torch.randn(12, 8, generator=rng, dtype=torch.float64) * mask
    return AdvantageInputs(rewards, mask, groups)


def loop_scores(inputs: AdvantageInputs) -> list[float]:
    return [sum(row) for row in inputs.token_rewards.tolist()]


def loop_group(inputs: AdvantageInputs, i: int) -> list[int]:
    return [j for j in range(len(inputs.groups)) if inputs.groups[j] == inputs.groups[i]]


def loop_outcome(name: str, inputs: AdvantageInputs) -> list[float]:
    """The advantage of each response, written as in the papers."""
    r = loop_scores(inputs)
    result = []
    for i in range(len(r)):
        group = loop_group(inputs, i)
        mean = sum(r[j] for j in group) / len(group)
        if len(group) == 1:
            result.append(0.0)
        elif name == "grpo":
            std = math.sqrt(sum((r[j] - mean) ** 2 for j in group) / (len(group) - 1))
            result.append((r[i] - mean) / (std + 1e-6))
        elif name == "rloo":
            result.append(r[i] - sum(r[j] for j in group if j != i) / (len(group) - 1))
        else:
            result.append(r[i] - mean)
    return result


def loop_whiten(per_token: list[list[float]], mask: torch.Tensor) -> list[list[float]]:
    valid = [
        x for row, keep in zip(per_token, mask, strict=True) for x, k in zip(row, keep, strict=True) if k
    ]
    mean = sum(valid) / len(valid)
    std = math.sqrt(sum((x - mean) ** 2 for x in valid) / (len(valid) - 1) + 1e-8)
    return [
        [(x - mean) / std if k else 0.0 for x, k in zip(row, keep, strict=True)]
        for row, keep in zip(per_token, mask, strict=True)
    ]


@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
def test_group_estimators_agree_with_a_loop(name, inputs):
    expected = torch.tensor(loop_outcome(name, inputs), dtype=torch.float64)[:, None] * inputs.mask
    torch.testing.assert_close(advantage(name)(inputs), expected, rtol=1e-10, atol=1e-12)


def test_reinforce_plus_plus_baseline_agrees_with_a_loop(inputs):
    deviations = loop_outcome("dr_grpo", inputs)
    expected = loop_whiten([[d] * 8 for d in deviations], inputs.mask)
    torch.testing.assert_close(
        advantage("reinforce_plus_plus_baseline")(inputs),
        torch.tensor(expected, dtype=torch.float64),
        rtol=1e-10,
        atol=1e-12,
    )


def test_reinforce_plus_plus_agrees_with_a_loop(inputs):
    returns = [[0.0] * 8 for _ in range(12)]
    for i in range(12):
        valid = [t for t in range(8) if inputs.mask[i, t]]
        for k, t in enumerate(valid):
            returns[i][t] = sum(0.9**m * inputs.token_rewards[i, s].item() for m, s in enumerate(valid[k:]))
    torch.testing.assert_close(
        discounted_returns(inputs.token_rewards, inputs.mask, 0.9),
        torch.tensor(returns, dtype=torch.float64),
        rtol=1e-10,
        atol=1e-12,
    )
    torch.testing.assert_close(
        advantage("reinforce_plus_plus", gamma=0.9)(inputs),
        torch.tensor(loop_whiten(returns, inputs.mask), dtype=torch.float64),
        rtol=1e-10,
        atol=1e-12,
    )


@pytest.mark.parametrize("name", WITHOUT_CRITIC)
def test_advantages_are_zero_outside_the_mask_and_keep_shape_and_dtype(name, inputs):
    single = AdvantageInputs(inputs.token_rewards.float(), inputs.mask.float(), inputs.groups)
    result = advantage(name)(single)
    assert result.shape == (12, 8)
    assert result.dtype == torch.float32
    assert torch.all(result[~inputs.mask] == 0)


@pytest.mark.parametrize("name", WITHOUT_CRITIC)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reward", [0.1, 1.0, -0.7])
def test_equal_rewards_give_exact_zeros(name, reward, dtype):
    """Also for rewards such as 0.1 whose float64 sum is rounded: added up, seven are not seven times one."""
    rewards = torch.full((7, 1), reward, dtype=dtype)
    result = advantage(name)(AdvantageInputs(rewards, torch.ones(7, 1), torch.zeros(7).long()))
    assert torch.equal(result, torch.zeros(7, 1, dtype=dtype))


@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
def test_a_singleton_group_gets_zero(name):
    inputs = AdvantageInputs(
        torch.tensor([[0.0, 5.0], [1.0, 0.0], [0.0, 3.0]]), torch.ones(3, 2), torch.tensor([8, 1, 1])
    )
    result = advantage(name)(inputs)
    assert result[0].tolist() == [0.0, 0.0]
    assert result[1, 0] < 0 < result[2, 0]


@pytest.mark.parametrize("name", WITHOUT_CRITIC)
def test_a_single_response_of_one_token_gives_zero_not_nan(name):
    inputs = AdvantageInputs(torch.tensor([[2.0]]), torch.ones(1, 1), torch.tensor([0]))
    assert advantage(name)(inputs).tolist() == [[0.0]]


@pytest.mark.parametrize("name", WITHOUT_CRITIC)
def test_a_batch_of_empty_responses_gives_zeros(name):
    inputs = AdvantageInputs(torch.zeros(4, 3), torch.zeros(4, 3), torch.tensor([0, 0, 1, 1]))
    assert torch.equal(advantage(name)(inputs), torch.zeros(4, 3))


@pytest.mark.parametrize("name", WITHOUT_CRITIC)
def test_a_batch_without_responses_gives_no_advantages(name):
    inputs = AdvantageInputs(torch.zeros(0, 3), torch.zeros(0, 3), torch.zeros(0).long())
    assert advantage(name)(inputs).shape == (0, 3)


@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
def test_a_response_with_masked_loss_still_counts_in_its_group(name):
    rewards = torch.tensor([[1.0], [0.0], [0.0]])
    groups = torch.zeros(3).long()
    whole = advantage(name)(AdvantageInputs(rewards, torch.ones(3, 1), groups))
    masked = advantage(name)(AdvantageInputs(rewards, torch.tensor([[0.0], [1.0], [1.0]]), groups))
    assert masked[0].item() == 0
    assert torch.equal(masked[1:], whole[1:])


@pytest.mark.parametrize("name", WITHOUT_CRITIC)
def test_the_order_of_responses_does_not_matter(name, inputs, rng):
    order = torch.randperm(12, generator=rng)
    shuffled = AdvantageInputs(inputs.token_rewards[order], inputs.mask[order], inputs.groups[order])
    estimator = advantage(name, gamma=0.9)
    torch.testing.assert_close(estimator(shuffled), estimator(inputs)[order])


def test_mismatched_shapes_are_refused_instead_of_broadcast():
    with pytest.raises(ValueError, match=r"groups \[N\]"):
        AdvantageInputs(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3).long())


def test_gae_points_to_the_verl_engine(inputs):
    with pytest.raises(ArcherError, match=r"needs a critic.*engine=verl"):
        advantage("gae")(inputs)


def test_grpo_without_its_division_is_dr_grpo(inputs):
    ours = advantage("grpo", norm_adv_by_std_in_grpo=False)(inputs)
    assert torch.equal(ours, advantage("dr_grpo")(inputs))
    assert not torch.equal(ours, advantage("grpo")(inputs))


@pytest.mark.parametrize("gamma", [-0.1, 1.1, math.nan, math.inf])
def test_an_impossible_discount_is_named(gamma):
    with pytest.raises(ArcherError, match=r"gamma=.*: must be (finite and )?in \[0, 1\]"):
        advantage("reinforce_plus_plus", gamma=gamma)


def test_an_unknown_estimator_names_the_choices():
    with pytest.raises(ArcherError, match=re.escape("algorithm.adv_estimator='gropo'")) as error:
        advantage("gropo")
    assert all(name in str(error.value) for name in ADVANTAGES.names())
    assert "Did you mean 'grpo'?" in str(error.value)


UNJUDGED = (2, 4, 6, 8)  # two of 70 and 9, one of the two of -3, the whole of group 4


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
def test_a_baseline_is_made_of_the_judged_responses_alone(inputs, name):
    judged = torch.tensor([i not in UNJUDGED for i in range(12)])
    got = judged_advantages(advantage(name), inputs, judged)
    scores = loop_scores(inputs)
    for i in range(12):
        group = [scores[j] for j in loop_group(inputs, i) if j not in UNJUDGED]
        expected = 0.0
        if i not in UNJUDGED and len(group) > 1:
            mean = sum(group) / len(group)
            std = math.sqrt(sum((r - mean) ** 2 for r in group) / (len(group) - 1))
            others = (sum(group) - scores[i]) / (len(group) - 1)
            expected = {
                "grpo": (scores[i] - mean) / (std + 1e-6),
                "dr_grpo": scores[i] - mean,
                "rloo": scores[i] - others,
            }[name]
        for t in range(8):
            wanted = expected if inputs.mask[i, t] else 0.0
            assert float(got[i, t]) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("name", WITHOUT_CRITIC)
def test_what_an_unjudged_response_would_have_scored_changes_nothing(inputs, name):
    judged = torch.tensor([i not in UNJUDGED for i in range(12)])
    other = inputs.token_rewards.clone()
    other[~judged] = 1e6
    moved = AdvantageInputs(other, inputs.mask, inputs.groups)
    got = judged_advantages(advantage(name), inputs, judged)
    assert torch.equal(got, judged_advantages(advantage(name), moved, judged))
    assert (got[~judged] == 0).all() and (got[judged] != 0).any()


@pytest.mark.parametrize("name", WITHOUT_CRITIC)
def test_where_all_are_judged_nothing_is_different(inputs, name):
    everything = torch.ones(12, dtype=torch.bool)
    assert torch.equal(judged_advantages(advantage(name), inputs, everything), advantage(name)(inputs))
