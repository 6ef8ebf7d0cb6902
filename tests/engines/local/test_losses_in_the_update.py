"""Every policy loss inside the real update: its gradient at the weights against a loop in float64."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from archer.config.actor import ActorConfig, LossChoice, actor_config
from archer.engines.local.loss import Experience
from archer.engines.local.update import Updater
from archer.generation.policy import Policy

PROMPTS = [3, 3, 3, 1, 1, 1]
RESPONSES = [6, 9, 1, 7, 4, 8]
TEMPERATURE = 0.8
BASE = actor_config(ppo_mini_batch_size=2, grad_clip=1e9, token_entropy_quantile=0.5)


class RecordingSGD(torch.optim.SGD):
    """Keeps the gradients of the step and moves nothing."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, lr=0.0)
        self.gradients: list[Tensor] = []

    def step(self, closure=None):
        self.gradients = [p.grad.clone() for group in self.param_groups for p in group["params"]]


@pytest.fixture
def experience(make_responses, judged, qwen2, oracle):
    """Six responses of two prompts; old policy, reference and sampler lie around the model."""
    rng = torch.Generator().manual_seed(0)
    responses = make_responses(PROMPTS, RESPONSES)
    mask = responses.mask
    with torch.no_grad():
        now = oracle(qwen2(tied=True), TEMPERATURE).token_stats(responses)[0].float()

    def around(spread: float) -> Tensor:
        return torch.where(mask, now + spread * torch.randn(mask.shape, generator=rng), 0)

    return Experience(
        judged=judged(responses, [0] * 3 + [1] * 3),
        advantages=torch.where(mask, torch.randn(6, 1, generator=rng).expand(mask.shape), 0),
        old_log_probs=around(0.6),
        ref_log_probs=around(0.3),
        old_entropy=torch.where(mask, torch.rand(mask.shape, generator=rng), 0),
        rollout_is_weights=torch.where(mask, 2 * torch.rand(mask.shape, generator=rng), 0),
    )


@pytest.fixture
def run_update(compute, qwen2):
    def run(experience: Experience, config: ActorConfig) -> tuple[dict[str, float], list[Tensor]]:
        model = qwen2(tied=True)
        optimizer = RecordingSGD(model.parameters())
        updater = Updater(Policy(model, compute, TEMPERATURE), optimizer, config, max_response_length=10)
        return updater.update(experience, 1).metrics, optimizer.gradients

    return run


def pull(config: ActorConfig, ratio: float, sequence_ratio: float, a: float, reasoning: bool) -> float:
    """Derivative of a token's policy loss by its log-prob."""
    mode, c = config.policy_loss.loss_mode, config.clip_ratio_c
    low, high = config.clip_ratio_low, config.clip_ratio_high
    if mode == "aspo":
        if (a > 0 and ratio > 1 + high) or (a < 0 and ratio < 1 - low):
            return 0.0
        return -a * min(1 / ratio if a >= 0 else ratio, c)
    if mode == "cispo":
        return -a * min(max(ratio, 1 - low), 1 + high)
    if mode == "gspo":
        ratio, c = sequence_ratio, math.inf
    if mode == "dual_token":
        low = config.high_entropy_clip_ratio_low if reasoning else config.low_entropy_clip_ratio_low
        high = config.high_entropy_clip_ratio_high if reasoning else config.low_entropy_clip_ratio_high
    free = ratio <= 1 + high if a >= 0 else 1 - low <= ratio <= c
    return -a * ratio if free else 0.0


def brute_force(reference, data: Experience, config: ActorConfig) -> tuple[list[Tensor], dict[str, float]]:
    """Gradients of the token-mean loss, and means over the tokens of either class."""
    reference.model.zero_grad()
    total = sum(RESPONSES)
    seen: dict[str, list[float]] = {}
    for row, length in enumerate(RESPONSES):
        table, response = reference.distributions(data.responses, row)
        log_probs = torch.stack([table[t, token] for t, token in enumerate(response)])
        entropy = -(table.exp() * table).sum(-1)
        ratios = (log_probs.detach() - data.old_log_probs[row, :length].double()).exp().tolist()
        sequence_ratio = math.prod(ratios) ** (1 / length)
        classes = data.old_entropy[row, :length].double()
        reasoning = (classes > classes.quantile(config.token_entropy_quantile)).tolist()
        slopes = []
        for t in range(length):
            a = float(data.advantages[row, t])
            slope = pull(config, ratios[t], sequence_ratio, a, reasoning[t])
            slope *= float(data.rollout_is_weights[row, t])
            d = float(log_probs[t].detach()) - float(data.ref_log_probs[row, t])
            if config.use_kl_loss:
                dual = config.policy_loss.loss_mode == "dual_token" and reasoning[t]
                coefficient = config.high_entropy_kl_loss_scale_coef if dual else config.kl_loss_coef
                slope += coefficient * (1 - math.exp(-d))
            slopes.append(slope / total)
            kind = "reasoning" if reasoning[t] else "knowledge"
            seen.setdefault(f"entropy_{kind}", []).append(float(entropy[t].detach()))
            seen.setdefault(f"kl_{kind}", []).append(math.exp(-d) - 1 + d)
            seen.setdefault("reasoning_share", []).append(float(reasoning[t]))
        (torch.tensor(slopes, dtype=torch.float64) * log_probs).sum().backward()
    gradients = [p.grad.clone() for p in reference.model.parameters()]
    return gradients, {name: sum(values) / len(values) for name, values in seen.items()}


def assert_same(got: list[Tensor], wanted: list[Tensor]) -> None:
    largest = max(float(w.abs().max()) for w in wanted)
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), atol=3e-5 * largest, rtol=0)


def settings(mode: str, **changes: float) -> ActorConfig:
    bounds = {} if mode == "dual_token" else {"clip_ratio_low": 0.2, "clip_ratio_high": 0.3}
    return replace(BASE, policy_loss=LossChoice(mode), **(bounds | changes))


CONFIGS = {
    "vanilla": settings("vanilla"),
    "aspo": settings("aspo", clip_ratio_c=1.4),
    "aspo with KL": settings("aspo", use_kl_loss=True, kl_loss_coef=0.5),
    "gspo": settings("gspo", clip_ratio_low=0.05, clip_ratio_high=0.05),
    "cispo": settings("cispo"),
    "dual token": settings("dual_token"),
    "dual token, other bounds": settings(
        "dual_token",
        low_entropy_clip_ratio_low=0.1,
        low_entropy_clip_ratio_high=0.05,
        high_entropy_clip_ratio_low=0.6,
        high_entropy_clip_ratio_high=0.9,
        token_entropy_quantile=0.3,
    ),
    "dual token with KL": settings("dual_token", use_kl_loss=True, kl_loss_coef=0.5),
    "dual token with KL of both kinds": settings(
        "dual_token", use_kl_loss=True, kl_loss_coef=0.5, high_entropy_kl_loss_scale_coef=2.0
    ),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_the_update_has_the_gradient_of_a_loop_over_tokens(config, experience, run_update, qwen2, oracle):
    metrics, gradients = run_update(experience, config)
    expected, means = brute_force(oracle(qwen2(tied=True), TEMPERATURE), experience, config)
    assert_same(gradients, expected)
    for name in ("entropy_reasoning", "entropy_knowledge", "reasoning_share"):
        assert metrics[f"actor/{name}"] == pytest.approx(means[name], rel=1e-4)
    for name in ("kl_reasoning", "kl_knowledge"):
        assert (f"actor/{name}" in metrics) == config.use_kl_loss
        if config.use_kl_loss:
            assert metrics[f"actor/{name}"] == pytest.approx(means[name], rel=1e-3)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_gradient_and_metrics_do_not_depend_on_the_split_into_micro_batches(config, experience, run_update):
    whole, expected = run_update(experience, config)
    parts, gradients = run_update(
        experience, replace(config, use_dynamic_bsz=False, ppo_micro_batch_size_per_gpu=1)
    )
    assert_same(gradients, expected)
    assert parts == pytest.approx(whole, rel=1e-4, abs=1e-6)


def changes_of_the_dual_token_loss() -> list[dict[str, float]]:
    return [
        {"low_entropy_clip_ratio_low": 0.01},
        {"low_entropy_clip_ratio_high": 0.01},
        {"high_entropy_clip_ratio_low": 0.01},
        {"high_entropy_clip_ratio_high": 0.01},
        {"token_entropy_quantile": 0.9},
        {"kl_loss_coef": 0.7},
        {"high_entropy_kl_loss_scale_coef": 0.7},
        {"clip_ratio_c": 1.05},
    ]


@pytest.mark.parametrize("change", changes_of_the_dual_token_loss(), ids=lambda change: next(iter(change)))
def test_every_setting_of_the_dual_token_loss_changes_the_gradient(change, experience, run_update):
    config = settings("dual_token", use_kl_loss=True)
    _, before = run_update(experience, config)
    _, after = run_update(experience, replace(config, **change))
    assert max(float((a - b).abs().max()) for a, b in zip(before, after, strict=True)) > 1e-5


def test_on_policy_the_classes_come_from_the_updates_own_entropies(experience, run_update, qwen2, oracle):
    on_policy = replace(experience, old_log_probs=None, old_entropy=None)
    metrics, _ = run_update(on_policy, settings("dual_token"))
    with torch.no_grad():
        entropy = oracle(qwen2(tied=True), TEMPERATURE).token_stats(experience.responses)[1]
    high = [
        value
        for row, n in enumerate(RESPONSES)
        for value in entropy[row, :n].tolist()
        if value > float(entropy[row, :n].quantile(0.5))
    ]
    assert metrics["actor/entropy_reasoning"] == pytest.approx(sum(high) / len(high), rel=1e-4)
    assert metrics["actor/ppo_kl_reasoning"] == 0.0
