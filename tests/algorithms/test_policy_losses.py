"""ASPO, dual-token, GSPO and CISPO: values and gradients against plain loops over the published formulas."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from archer.algorithms.aggregation import LossTotals, aggregate
from archer.algorithms.policy_losses.base import POLICY_LOSSES, LossInputs, LossOutputs, bound_loss
from archer.algorithms.policy_losses.measures import loss_measures
from archer.algorithms.policy_losses.token_marks import token_marks
from archer.config.actor import actor_config

CLIP = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}
CLASSES = {
    "low_entropy_clip_ratio_low": 0.1,
    "low_entropy_clip_ratio_high": 0.15,
    "high_entropy_clip_ratio_low": 0.5,
    "high_entropy_clip_ratio_high": 0.6,
}
BOUNDS = ("up", "down", "dual")
Token = tuple[float, float, set[str]]  # value of the loss, its derivative by log pi, bounds that took effect


def policy_loss(mode: str, **changes: Any) -> Callable[[LossInputs], LossOutputs]:
    return bound_loss(mode, actor_config(**CLIP | CLASSES | changes))


def random_inputs(rng: torch.Generator, mask: Tensor, spread: float = 2.0) -> LossInputs:
    """Ratios from e^-6 to e^6, so that every bound is met; one advantage a response, 0 for the last."""
    old = -torch.rand(mask.shape, generator=rng, dtype=torch.float64)
    new = old + spread * torch.randn(mask.shape, generator=rng, dtype=torch.float64)
    advantages = torch.randn(len(mask), 1, generator=rng, dtype=torch.float64).expand(mask.shape).clone()
    advantages[-1] = 0
    reasoning = (torch.rand(mask.shape, generator=rng) < 0.4) & mask
    return LossInputs(new.requires_grad_(), old, advantages, mask, reasoning)


def aspo(i: int, t: int, x: LossInputs) -> Token:
    r, a = math.exp(x.log_probs[i, t].item() - x.old_log_probs[i, t].item()), x.advantages[i, t].item()
    if a > 0 and r > 1.28:
        return 0.0, 0.0, {"up"}
    if a < 0 and r < 0.8:
        return 0.0, 0.0, {"down"}
    plain = 1 / r if a >= 0 else r
    weight = min(plain, 3.0)
    return -a * weight, -a * weight, {"dual"} if a != 0 and plain > 3.0 else set()


def ppo(r: float, a: float, low: float, high: float, c: float) -> Token:
    """max(-A r, -A clip(r)), at most -A c where A < 0."""
    inside = min(max(r, 1 - low), 1 + high)
    value = max(-a * r, -a * inside)
    if a < 0 and r > c:
        return -a * c, 0.0, {"dual"}
    if -a * inside > -a * r:
        return value, 0.0, {"up" if r > 1 + high else "down"}
    return value, -a * r, set()


def dual_token(i: int, t: int, x: LossInputs) -> Token:
    r, a = math.exp(x.log_probs[i, t].item() - x.old_log_probs[i, t].item()), x.advantages[i, t].item()
    low, high = (0.5, 0.6) if x.reasoning[i, t] else (0.1, 0.15)
    return ppo(r, a, low, high, 3.0)


def gspo(i: int, t: int, x: LossInputs) -> Token:
    tokens = [s for s in range(x.mask.shape[1]) if x.mask[i, s]]
    mean = sum(x.log_probs[i, s].item() - x.old_log_probs[i, s].item() for s in tokens) / len(tokens)
    return ppo(math.exp(mean), x.advantages[i, t].item(), 0.2, 0.28, math.inf)


def cispo(i: int, t: int, x: LossInputs) -> Token:
    log_prob, a = x.log_probs[i, t].item(), x.advantages[i, t].item()
    r = math.exp(log_prob - x.old_log_probs[i, t].item())
    weight = min(max(r, 0.8), 1.28)
    stopped = {"up"} if r > 1.28 else {"down"} if r < 0.8 else set()
    return -weight * a * log_prob, -weight * a, stopped


ORACLES: dict[str, Callable[[int, int, LossInputs], Token]] = {
    "aspo": aspo,
    "dual_token": dual_token,
    "gspo": gspo,
    "cispo": cispo,
}


@pytest.mark.parametrize("mode", ORACLES)
def test_value_gradient_and_bounds_of_every_token_agree_with_a_loop(mode, rng, ragged_mask):
    mask = ragged_mask(rng, 40, 15)
    inputs = random_inputs(rng, mask, spread=0.8 if mode == "gspo" else 1.2)
    out = policy_loss(mode)(inputs)
    out.per_token.sum().backward()
    for i in range(40):
        for t in range(15):
            value, gradient, stopped = (0.0, 0.0, set())
            if mask[i, t]:
                value, gradient, stopped = ORACLES[mode](i, t, inputs)
            assert out.per_token[i, t].item() == pytest.approx(value, rel=1e-12, abs=1e-12)
            assert inputs.log_probs.grad[i, t].item() == pytest.approx(gradient, rel=1e-12, abs=1e-12)
            assert {name for name in BOUNDS if getattr(out, name)[i, t]} == stopped
    expected = BOUNDS if mode in ("aspo", "dual_token") else BOUNDS[:2]
    assert all(getattr(out, name).any() for name in expected), "the inputs meet every bound"


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"),
    [
        (1.0, 2.0, 1.0),
        (0.5, 2.0, 2.0),  # a token that became unlikely is pushed harder, where PPO would push less
        (1.2, 2.0, 1 / 1.2),
        (1.281, 2.0, 0.0),  # hard clip
        (0.2, 2.0, 3.0),  # soft dual clip: the gradient stays, at weight c
        (1e-4, 2.0, 3.0),
        (1.0, -2.0, 1.0),
        (2.5, -2.0, 2.5),
        (0.81, -2.0, 0.81),
        (0.79, -2.0, 0.0),
        (3.5, -2.0, 3.0),
        (1e4, -2.0, 3.0),
    ],
)
def test_aspo_weights_the_gradient_as_published(ratio, advantage, weight):
    log_probs = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, 1, dtype=torch.float64)
    out = policy_loss("aspo")(LossInputs(log_probs, 0 * one, advantage * one, one))
    out.per_token.sum().backward()
    assert log_probs.grad.item() == pytest.approx(-advantage * weight, rel=1e-12)


def test_aspo_uses_every_bound_it_is_given():
    def weight(ratio: float, advantage: float, **changes: float) -> float:
        log_probs = torch.tensor([[math.log(ratio)]], dtype=torch.float64)
        one = torch.ones_like(log_probs)
        inputs = LossInputs(log_probs, 0 * one, advantage * one, one)
        return -policy_loss("aspo", **changes)(inputs).per_token.item() / advantage

    assert weight(1.4, 1.0) == 0.0 and weight(1.4, 1.0, clip_ratio_high=0.5) == pytest.approx(1 / 1.4)
    assert weight(0.7, -1.0) == 0.0 and weight(0.7, -1.0, clip_ratio_low=0.4) == pytest.approx(0.7)
    assert weight(9.0, -1.0, clip_ratio_c=7.0) == weight(1 / 9, 1.0, clip_ratio_c=7.0) == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("changed", "reasoning", "ratio", "advantage", "value"),
    [
        ("low_entropy_clip_ratio_high", False, 9.0, 1.0, -1.3),
        ("low_entropy_clip_ratio_low", False, 0.01, -1.0, 0.7),
        ("high_entropy_clip_ratio_high", True, 9.0, 1.0, -1.3),
        ("high_entropy_clip_ratio_low", True, 0.01, -1.0, 0.7),
    ],
)
def test_every_bound_of_the_dual_token_loss_is_used_at_its_own_tokens(
    changed, reasoning, ratio, advantage, value
):
    def loss(classes: dict[str, float], kind: bool) -> float:
        log_probs = torch.tensor([[math.log(ratio)]], dtype=torch.float64)
        one = torch.ones_like(log_probs)
        inputs = LossInputs(log_probs, 0 * one, advantage * one, one, torch.tensor([[kind]]))
        return bound_loss("dual_token", actor_config(**classes))(inputs).per_token.item()

    default, narrow = {}, {changed: 0.3}
    assert loss(narrow, reasoning) == pytest.approx(value)
    assert loss(default, reasoning) != loss(narrow, reasoning)
    assert loss(default, not reasoning) == loss(narrow, not reasoning)


def test_the_dual_token_loss_with_equal_bounds_is_ppo_clip(rng, ragged_mask):
    inputs = random_inputs(rng, ragged_mask(rng, 6, 9))
    same = dict(zip(CLASSES, (0.2, 0.28, 0.2, 0.28), strict=True))
    dual = policy_loss("dual_token", **same)(inputs)
    assert torch.equal(dual.per_token, policy_loss("vanilla")(inputs).per_token)


def test_the_dual_token_loss_asks_for_the_classes():
    x = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="reasoning"):
        policy_loss("dual_token")(LossInputs(x, x, x, x))


def test_gspo_with_seq_mean_token_mean_is_the_papers_sequence_loss(rng, ragged_mask):
    mask = ragged_mask(rng, 8, 11)
    inputs = random_inputs(rng, mask, spread=0.6)
    out = policy_loss("gspo")(inputs)
    loss = aggregate(out.per_token, mask, "seq-mean-token-mean", LossTotals.of(mask))
    (gradient,) = torch.autograd.grad(loss, inputs.log_probs)

    rows = [i for i in range(8) if mask[i].any()]
    published = torch.zeros((), dtype=torch.float64)
    for i in rows:
        s = (inputs.log_probs[i] - inputs.old_log_probs[i])[mask[i]].mean().exp()
        a = inputs.advantages[i, 0]
        published = published + torch.maximum(-a * s, -a * s.clamp(0.8, 1.28)) / len(rows)
    (expected,) = torch.autograd.grad(published, inputs.log_probs)
    assert loss.item() == pytest.approx(published.item(), rel=1e-12)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("mode", POLICY_LOSSES.names())
@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_on_policy_every_loss_has_the_plain_policy_gradient(mode, advantage):
    log_probs = torch.full((1, 3), -1.3, requires_grad=True)
    inputs = LossInputs(
        log_probs,
        log_probs.detach(),
        torch.full((1, 3), advantage),
        torch.ones(1, 3),
        torch.tensor([[True, False, False]]),
    )
    out = policy_loss(mode)(inputs)
    out.per_token.sum().backward()
    assert log_probs.grad.tolist() == [[-advantage] * 3]
    assert not (out.up | out.down | out.dual).any()


@pytest.mark.parametrize("mode", POLICY_LOSSES.names())
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf")])
def test_garbage_in_the_padding_reaches_neither_loss_nor_gradient_nor_measures(mode, garbage):
    mask = torch.tensor([[True, False], [False, False]])
    clean = torch.tensor([[-1.0, 0.0], [0.0, 0.0]])
    log_probs = clean.masked_fill(~mask, garbage).requires_grad_()
    padded = torch.where(mask, 1.0, garbage)
    inputs = LossInputs(log_probs, clean, padded, mask, torch.zeros_like(mask), padded)
    out = policy_loss(mode)(inputs)
    out.per_token.sum().backward()
    assert log_probs.grad.tolist() == [[-1.0, 0.0], [0.0, 0.0]]
    assert torch.isfinite(out.per_token).all() and out.per_token[~mask].eq(0).all()
    assert all((measure.values[measure.over] == 0).all() for measure in loss_measures(inputs, out).values())


@pytest.mark.parametrize("mode", POLICY_LOSSES.names())
@pytest.mark.parametrize("difference", [1e4, -1e4])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_an_absurd_ratio_leaves_loss_and_gradient_finite(mode, difference, advantage):
    log_probs = torch.tensor([[difference]], requires_grad=True)
    one = torch.ones(1, 1)
    out = policy_loss(mode)(LossInputs(log_probs, 0 * one, advantage * one, one, one.bool()))
    out.per_token.sum().backward()
    assert math.isfinite(out.per_token.item()) and math.isfinite(log_probs.grad.item())


@pytest.mark.parametrize("mode", POLICY_LOSSES.names())
def test_rollout_weights_multiply_the_loss_and_gradient_of_every_token(mode, rng, ragged_mask):
    mask = ragged_mask(rng, 6, 9)
    inputs = random_inputs(rng, mask, spread=0.6)
    weights = torch.rand(mask.shape, generator=rng, dtype=torch.float64)
    loss = policy_loss(mode)
    plain, weighted = loss(inputs), loss(replace(inputs, rollout_is_weights=weights))
    torch.testing.assert_close(weighted.per_token, plain.per_token * weights, rtol=1e-14, atol=0)
    gradients = [torch.autograd.grad(out.per_token.sum(), inputs.log_probs)[0] for out in (plain, weighted)]
    torch.testing.assert_close(gradients[1], gradients[0] * weights, rtol=1e-14, atol=0)


@pytest.mark.parametrize("mode", POLICY_LOSSES.names())
def test_measures_are_fractions_of_the_tokens_of_their_sign_and_class(mode, rng, ragged_mask):
    mask = ragged_mask(rng, 10, 9)
    inputs = random_inputs(rng, mask, spread=0.6)
    out = policy_loss(mode)(inputs)
    means = {
        name: float(measure.values[measure.over].mean())
        for name, measure in loss_measures(inputs, out).items()
        if measure.over.any()
    }
    tokens = [(i, t) for i in range(10) for t in range(9) if mask[i, t]]

    def share(indicator: Callable[[int, int], bool], among: Callable[[int, int], bool]) -> float:
        chosen = [indicator(i, t) for i, t in tokens if among(i, t)]
        return sum(chosen) / len(chosen)

    signs = {"positive": lambda i, t: inputs.advantages[i, t] > 0}
    signs["negative"] = lambda i, t: inputs.advantages[i, t] < 0
    for sign, among in signs.items():
        for bound in BOUNDS:
            expected = share(lambda i, t, bound=bound: bool(getattr(out, bound)[i, t]), among)
            assert means[f"{sign}_pg_clipfrac_{bound}"] == pytest.approx(expected, abs=1e-12)
    stopped = lambda i, t: bool(out.up[i, t] | out.down[i, t])  # noqa: E731
    kinds = {"": lambda i, t: True, "_reasoning": lambda i, t: bool(inputs.reasoning[i, t])}
    kinds["_knowledge"] = lambda i, t: not inputs.reasoning[i, t]
    for kind, among in kinds.items():
        assert means[f"pg_clipfrac{kind}"] == pytest.approx(share(stopped, among), abs=1e-12)
        kl = [(inputs.old_log_probs - inputs.log_probs)[i, t].item() for i, t in tokens if among(i, t)]
        assert means[f"ppo_kl{kind}"] == pytest.approx(sum(kl) / len(kl), abs=1e-12)
    assert means["reasoning_share"] == pytest.approx(share(kinds["_reasoning"], kinds[""]), abs=1e-12)


def vanilla(i: int, t: int, x: LossInputs) -> Token:
    r = math.exp(x.log_probs[i, t].item() - x.old_log_probs[i, t].item())
    return ppo(r, x.advantages[i, t].item(), 0.2, 0.28, 3.0)


def sapo(i: int, t: int, x: LossInputs) -> Token:
    return 0.0, 0.0, set()  # it bounds nothing


@pytest.mark.parametrize("mode", [*ORACLES, "vanilla", "sapo"])
def test_the_ratio_and_the_side_of_the_bound_are_those_of_a_loop(mode, rng, ragged_mask):
    mask = ragged_mask(rng, 40, 15)
    inputs = random_inputs(rng, mask, spread=0.8 if mode == "gspo" else 1.2)
    marks = token_marks(inputs, policy_loss(mode)(inputs))
    oracle = {**ORACLES, "vanilla": vanilla, "sapo": sapo}[mode]
    for i in range(40):
        tokens = [t for t in range(15) if mask[i, t]]
        logs = {t: inputs.log_probs[i, t].item() - inputs.old_log_probs[i, t].item() for t in tokens}
        for t in range(15):
            ratio = side = 0.0
            if mask[i, t]:
                ratio = math.exp(sum(logs.values()) / len(logs) if mode == "gspo" else logs[t])
                stopped = oracle(i, t, inputs)[2]
                side = 0 if not stopped else 1 if ratio > 1 else -1
            assert marks.ratio[i, t].item() == pytest.approx(ratio, rel=1e-12)
            assert marks.clipped[i, t].item() == side
    assert not marks.ratio.requires_grad
    assert {*marks.clipped.unique().tolist()} == ({0} if mode == "sapo" else {-1, 0, 1})
