"""The policy update against a brute-force computation of the loss in float64, one response at a time."""

import copy
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from archer.config.actor import ActorConfig, actor_config
from archer.engines.local.batching import filled_up, mini_batches
from archer.engines.local.influence import InfluenceRecorder
from archer.engines.local.loss import Experience
from archer.engines.local.update import Updater
from archer.generation.packed import use_packed_attention
from archer.generation.policy import Policy
from archer.influence import InfluenceConfig

PROMPTS = [3, 3, 3, 1, 1, 1, 6, 6, 6, 2, 2, 2]
RESPONSES = [4, 7, 1, 5, 2, 8, 3, 3, 6, 1, 2, 9]
GROUPS = [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
HORIZON = 10
TEMPERATURE = 0.8
WHOLE = actor_config(ppo_mini_batch_size=4, grad_clip=1e9)


class RecordingSGD(torch.optim.SGD):
    """Plain gradient descent that keeps the gradients of every step."""

    def __init__(self, parameters, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.gradients: list[list[Tensor]] = []

    def step(self, closure=None):
        self.gradients.append([p.grad.clone() for group in self.param_groups for p in group["params"]])
        return super().step(closure)


@pytest.fixture
def experience(make_responses, judged):
    """Twelve responses of four prompts; old and reference log-probs lie around those of the model."""

    def make(model, oracle, off_policy: bool, seed: int = 0, lost: tuple[int, ...] = ()) -> Experience:
        rng = torch.Generator().manual_seed(seed)
        responses = make_responses(PROMPTS, RESPONSES, seed)
        mask = responses.mask
        with torch.no_grad():
            now = oracle(model, TEMPERATURE).token_stats(responses)[0].float()
        advantages = torch.randn(len(mask), 1, generator=rng).expand(mask.shape)
        old = now + 0.5 * torch.randn(mask.shape, generator=rng)
        reference = now + 0.3 * torch.randn(mask.shape, generator=rng)
        return Experience(
            judged=judged(responses, GROUPS, lost),
            advantages=torch.where(mask, advantages, 0),
            old_log_probs=torch.where(mask, old, 0) if off_policy else None,
            ref_log_probs=torch.where(mask, reference, 0),
        )

    return make


@pytest.fixture
def run_update(compute):
    def run(model, experience: Experience, config: ActorConfig, lr: float = 0.0, step: int = 1, **options):
        optimizer = RecordingSGD(model.parameters(), lr)
        updater = Updater(Policy(model, compute, TEMPERATURE), optimizer, config, HORIZON, **options)
        return updater.update(experience, step), optimizer.gradients

    return run


@dataclass
class BruteForce:
    """One mini-batch in float64: loss terms, gradients, and the marks of every token."""

    terms: dict[str, float]
    gradients: list[Tensor]
    marks: dict[str, list[float]] = field(default_factory=dict)


def token_weight(config: ActorConfig, length: int, tokens: int, sequences: int) -> float:
    return {
        "token-mean": 1 / tokens,
        "seq-mean-token-sum": 1 / sequences,
        "seq-mean-token-mean": 1 / (sequences * length),
        "seq-mean-token-sum-norm": 1 / (sequences * (config.loss_scale_factor or HORIZON)),
    }[config.loss_agg_mode]


def brute_force(reference, experience: Experience, rows: list[int], config: ActorConfig) -> BruteForce:
    """The textbook loss, token by token: max(-A r, -A clip(r)), at most -A c where A < 0."""
    responses = experience.responses
    tokens = sum(RESPONSES[row] for row in rows)
    low = config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low
    high = config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high
    terms = {"pg_loss": 0.0, "kl_loss": 0.0, "entropy_loss": 0.0}
    marks = {"pg_clipfrac": [], "pg_clipfrac_lower": [], "ppo_kl": [], "entropy": []}
    reference.model.zero_grad()
    for row in rows:
        table, response = reference.distributions(responses, row)
        loss = torch.zeros((), dtype=torch.float64)
        for t, token in enumerate(response):
            weight = token_weight(config, len(response), tokens, len(rows))
            log_prob, entropy = table[t, token], -(table[t].exp() * table[t]).sum()
            old = log_prob.detach()
            if experience.old_log_probs is not None:
                old = experience.old_log_probs[row, t].double()
            ratio, advantage = (log_prob - old).exp(), float(experience.advantages[row, t])
            clipped = ratio.clamp(1 - low, 1 + high)
            policy = torch.maximum(-advantage * ratio, -advantage * clipped)
            stopped = float((-advantage * clipped > -advantage * ratio).detach())
            dual = advantage < 0 and float(policy.detach()) > -advantage * config.clip_ratio_c
            if dual:
                policy = torch.tensor(-advantage * config.clip_ratio_c)
            d = log_prob - experience.ref_log_probs[row, t].double()
            kl = {"low_var_kl": (-d).exp() - 1 + d, "k2": d**2 / 2}[config.kl_loss_type]
            terms["pg_loss"] += weight * float(policy.detach())
            terms["kl_loss"] += weight * float(kl.detach())
            terms["entropy_loss"] += weight * float(entropy.detach())
            loss = loss + weight * (policy - config.entropy_coeff * entropy)
            if config.use_kl_loss:
                loss = loss + weight * config.kl_loss_coef * kl
            marks["pg_clipfrac"].append(stopped)
            marks["pg_clipfrac_lower"].append(float(dual))
            marks["ppo_kl"].append(float(old - log_prob.detach()))
            marks["entropy"].append(float(entropy.detach()))
        loss.backward()
    return BruteForce(terms, [p.grad.clone() for p in reference.model.parameters()], marks)


def assert_same(got: list[Tensor], wanted: list[Tensor], rtol: float = 2e-5) -> None:
    largest = max(float(w.abs().max()) for w in wanted)
    assert largest > 0
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), atol=rtol * largest, rtol=0)


CONFIGS = {
    "token-mean": {},
    "seq-mean-token-sum": {"loss_agg_mode": "seq-mean-token-sum"},
    "seq-mean-token-mean": {"loss_agg_mode": "seq-mean-token-mean"},
    "norm": {"loss_agg_mode": "seq-mean-token-sum-norm"},
    "norm-by-factor": {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": 7},
    "kl": {"use_kl_loss": True, "kl_loss_coef": 0.5},
    "k2": {"use_kl_loss": True, "kl_loss_coef": 2.0, "kl_loss_type": "k2"},
    "entropy-bonus": {"entropy_coeff": 0.3},
    "clip-higher": {"clip_ratio_low": 0.1, "clip_ratio_high": 0.6, "clip_ratio_c": 1.5},
    "everything": {
        "use_kl_loss": True,
        "kl_loss_coef": 0.1,
        "entropy_coeff": -0.1,
        "loss_agg_mode": "seq-mean-token-mean",
        "clip_ratio": 0.05,
    },
}


@pytest.mark.parametrize("lost", [(), (1, 5, 6, 7, 8)], ids=["all judged", "five unjudged"])
@pytest.mark.parametrize("off_policy", [False, True], ids=["on-policy", "off-policy"])
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS.keys())
def test_one_optimizer_step_has_the_gradient_and_metrics_of_the_brute_force_loss(
    qwen2, oracle, experience, run_update, changes, off_policy, lost
):
    """Unjudged responses are in no term and no total, though their advantages here are not even zero."""
    model, config = qwen2(tied=True), replace(WHOLE, **changes)
    data = experience(model, oracle, off_policy, lost=lost)
    result, (gradients,) = run_update(model, data, config)
    rows = [row for row in range(12) if row not in lost]
    expected = brute_force(oracle(model, TEMPERATURE), data, rows, config)
    assert_same(gradients, expected.gradients)
    for name, values in expected.marks.items():
        assert result.metrics[f"actor/{name}"] == pytest.approx(sum(values) / len(values), abs=1e-5)
    assert result.metrics["actor/pg_loss"] == pytest.approx(expected.terms["pg_loss"], abs=1e-5)
    assert ("actor/kl_loss" in result.metrics) == config.use_kl_loss
    if config.use_kl_loss:
        assert result.metrics["actor/kl_loss"] == pytest.approx(expected.terms["kl_loss"], rel=1e-4)
    if config.entropy_coeff:
        assert result.metrics["actor/entropy_loss"] == pytest.approx(expected.terms["entropy_loss"], rel=1e-4)
    norm = float(sum(g.square().sum() for g in expected.gradients)) ** 0.5
    assert result.metrics["actor/grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_the_off_policy_case_really_clips(qwen2, oracle, experience, run_update):
    model = qwen2(tied=True)
    metrics = run_update(model, experience(model, oracle, True), replace(WHOLE, clip_ratio_c=1.5))[0].metrics
    assert 0.1 < metrics["actor/pg_clipfrac"] < 0.9
    assert 0.05 < metrics["actor/pg_clipfrac_lower"] < 0.9


@pytest.mark.parametrize(
    "split",
    [
        {"ppo_max_token_len_per_gpu": 1},
        {"ppo_max_token_len_per_gpu": 30},
        {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 1},
        {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 5},
    ],
    ids=["rows alone", "30 tokens", "1 row", "5 rows"],
)
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_the_split_into_micro_batches_does_not_matter(qwen2, oracle, experience, run_update, split, mode):
    model = qwen2(tied=True)
    data = experience(model, oracle, True)
    config = replace(WHOLE, loss_agg_mode=mode, use_kl_loss=True, entropy_coeff=0.1)
    whole, (expected,) = run_update(model, data, config)
    parts, (gradients,) = run_update(model, data, replace(config, **split))
    assert_same(gradients, expected, rtol=1e-5)
    assert parts.metrics.keys() == whole.metrics.keys()
    for name, value in whole.metrics.items():
        assert parts.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(parts.log_probs, whole.log_probs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(parts.entropy, whole.entropy, atol=1e-5, rtol=1e-5)


def test_the_order_of_rows_does_not_matter(qwen2, oracle, experience, run_update):
    model = qwen2(tied=True)
    data = experience(model, oracle, True)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1)).tolist()
    shuffled = Experience(
        data.judged.rows(order), data.advantages[order], data.old_log_probs[order], data.ref_log_probs[order]
    )
    _, (expected,) = run_update(model, data, WHOLE)
    _, (gradients,) = run_update(model, shuffled, WHOLE)
    assert_same(gradients, expected, rtol=1e-5)


def test_without_old_log_probs_the_first_pass_is_the_old_policy(qwen2, oracle, experience, run_update):
    model = qwen2(tied=True)
    data = experience(model, oracle, False)
    result, (gradients,) = run_update(model, data, WHOLE)
    explicit = replace(data, old_log_probs=result.log_probs)
    _, (expected,) = run_update(model, explicit, WHOLE)
    assert_same(gradients, expected, rtol=1e-5)
    assert result.metrics["actor/ppo_kl"] == 0.0 and result.metrics["actor/pg_clipfrac"] == 0.0


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_epochs_and_ragged_mini_batches_follow_gradient_descent_with_old_log_probs_held_fixed(
    qwen2, oracle, experience, run_update, mode
):
    config = replace(WHOLE, ppo_mini_batch_size=3, ppo_epochs=2, loss_agg_mode=mode)
    model, lr = qwen2(tied=True), 0.05
    data = experience(model, oracle, True)
    reference = oracle(model, TEMPERATURE)
    with torch.no_grad():
        at_first = reference.token_stats(data.responses)[0]
    result, gradients = run_update(model, data, config, lr=lr)
    assert len(gradients) == 4
    marks: dict[str, list[float]] = {}
    losses = []
    for got, rows in zip(gradients, [list(range(9)), [9, 10, 11]] * 2, strict=True):
        expected = brute_force(reference, data, rows, config)
        assert_same(got, expected.gradients, rtol=5e-4)
        losses.append(expected.terms["pg_loss"])
        for name, values in expected.marks.items():
            marks.setdefault(name, []).extend(values)
        with torch.no_grad():
            for parameter, gradient in zip(reference.model.parameters(), expected.gradients, strict=True):
                parameter -= lr * gradient
    assert result.metrics["actor/pg_loss"] == pytest.approx(sum(losses) / 4, abs=1e-4)
    for name, values in marks.items():
        assert result.metrics[f"actor/{name}"] == pytest.approx(sum(values) / len(values), abs=2e-2)
    # What is handed on is the first epoch's view: rows of the first mini-batch before any step.
    torch.testing.assert_close(result.log_probs[:9].double(), at_first[:9], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(result.log_probs[9:].double(), at_first[9:], atol=1e-4)


def test_clipping_scales_the_gradient_to_the_norm_allowed_and_reports_the_norm_before(
    qwen2, oracle, experience, run_update
):
    model = qwen2(tied=True)
    data = experience(model, oracle, False)
    free, (whole,) = run_update(model, data, WHOLE)
    norm = free.metrics["actor/grad_norm"]
    clipped, (scaled,) = run_update(model, data, replace(WHOLE, grad_clip=norm / 4))
    assert clipped.metrics["actor/grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert_same(scaled, [g / 4 for g in whole], rtol=1e-4)


def weights(model) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def test_skipping_the_optimizer_step_leaves_the_weights_and_measures_everything(
    qwen2, oracle, experience, run_update
):
    model = qwen2(tied=True)
    data = experience(model, oracle, True)
    expected, _ = run_update(model, data, WHOLE)
    before = weights(model)
    result, gradients = run_update(model, data, WHOLE, lr=1.0, skip_optimizer_step=True)
    assert not gradients and all(map(torch.equal, weights(model), before))
    assert result.metrics.keys() == expected.metrics.keys()
    assert result.metrics["actor/grad_norm"] == pytest.approx(expected.metrics["actor/grad_norm"], rel=1e-5)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("poison", [torch.inf, torch.nan])
def test_a_gradient_that_is_not_finite_leaves_the_weights_is_counted_and_is_gone_afterwards(
    qwen2, oracle, experience, run_update, poison
):
    model = qwen2(tied=True)
    data = experience(model, oracle, False)
    advantages = data.advantages.clone()
    advantages[0, 0] = poison
    before = weights(model)
    result, gradients = run_update(model, replace(data, advantages=advantages), WHOLE, lr=1.0)
    assert not gradients and all(map(torch.equal, weights(model), before))
    assert result.metrics["actor/skipped_updates"] == 1.0
    good, (gradient,) = run_update(model, data, WHOLE, lr=0.01)
    assert good.metrics["actor/skipped_updates"] == 0.0
    assert all(torch.isfinite(g).all() for g in gradient)
    assert not all(map(torch.equal, weights(model), before))


def test_only_the_poisoned_mini_batch_is_skipped(qwen2, oracle, experience, run_update):
    model = qwen2(tied=True)
    data = experience(model, oracle, True)
    advantages = data.advantages.clone()
    advantages[3:6] = torch.nan  # the second group
    config = replace(WHOLE, ppo_mini_batch_size=1)
    result, gradients = run_update(model, replace(data, advantages=advantages), config, lr=0.01)
    assert len(gradients) == 3 and result.metrics["actor/skipped_updates"] == 1.0


def test_advantages_of_zero_give_no_gradient(qwen2, oracle, experience, run_update):
    model = qwen2(tied=True)
    data = experience(model, oracle, True)
    result, (gradients,) = run_update(
        model, replace(data, advantages=torch.zeros_like(data.advantages)), WHOLE
    )
    assert all((g == 0).all() for g in gradients) and result.metrics["actor/grad_norm"] == 0.0


@pytest.mark.parametrize("off_policy", [False, True])
def test_rows_without_an_advantage_cost_no_backward_and_change_nothing(
    qwen2, oracle, experience, run_update, monkeypatch, off_policy
):
    model = qwen2(tied=True)
    given = experience(model, oracle, off_policy)
    given.advantages[3:9] = 0  # two groups without a contrast
    backward_rows = []
    original = Policy.token_stats

    def watched(self, batch, *args):
        if torch.is_grad_enabled():
            backward_rows.extend(batch.rows.tolist())
        return original(self, batch, *args)

    monkeypatch.setattr(Policy, "token_stats", watched)
    spared, spared_gradients = run_update(model, given, WHOLE)
    assert sorted(backward_rows) == [0, 1, 2, 9, 10, 11]
    monkeypatch.setattr(Updater, "_idle_rows", lambda *_: set())
    full, full_gradients = run_update(model, given, WHOLE)
    for ours, theirs in zip(spared_gradients[0], full_gradients[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)
    assert spared.metrics == pytest.approx(full.metrics, rel=1e-4, abs=1e-7)
    torch.testing.assert_close(spared.entropy, full.entropy)
    torch.testing.assert_close(spared.log_probs, full.log_probs)


@pytest.mark.parametrize("change", [{"use_kl_loss": True}, {"entropy_coeff": 0.1}])
def test_rows_without_an_advantage_still_learn_from_other_loss_terms(
    qwen2, oracle, experience, run_update, change
):
    model = qwen2(tied=True)
    given = experience(model, oracle, off_policy=False)
    given.advantages.zero_()
    _, gradients = run_update(model, given, replace(WHOLE, **change))
    assert any(gradient.abs().max() > 0 for gradient in gradients[0])


def test_mini_batches_are_whole_groups_in_order():
    groups = torch.tensor([7, 7, 3, 3, 3, 9, 9, 5])
    batches = list(mini_batches(groups, actor_config(ppo_mini_batch_size=3), epoch=0, step=1))
    assert batches == [[0, 1, 2, 3, 4, 5, 6], [7]]


def test_groups_stay_whole_when_their_rows_are_scattered():
    groups = torch.tensor([1, 2, 1, 3, 2, 1])
    batches = list(mini_batches(groups, actor_config(ppo_mini_batch_size=1), epoch=0, step=1))
    assert batches == [[0, 2, 5], [1, 4], [3]]


def test_shuffled_mini_batches_depend_on_seed_step_and_epoch_alone_and_keep_groups_whole():
    groups = torch.arange(12).repeat_interleave(3)
    config = actor_config(ppo_mini_batch_size=5, shuffle=True)

    def order(epoch: int = 0, step: int = 1, seed: int = 42) -> list[list[int]]:
        return list(mini_batches(groups, replace(config, data_loader_seed=seed), epoch, step))

    first = order()
    assert first == order()
    assert [len(batch) for batch in first] == [15, 15, 6]
    assert sorted(row for batch in first for row in batch) == list(range(36))
    for batch in first:
        assert all(
            groups[batch[i]] == groups[batch[i + 1]] == groups[batch[i + 2]] for i in range(0, len(batch), 3)
        )
    assert len({str(o) for o in (first, order(epoch=1), order(step=2), order(seed=43))}) == 4


@pytest.mark.parametrize("budget", [12, 40, 10_000])
@pytest.mark.parametrize("prompts_traced", [0, 2])
def test_rows_in_one_line_give_the_update_and_the_influence_of_padded_rows(
    qwen2, compute, oracle, experience, budget, prompts_traced
):
    model = qwen2(tied=True)
    data = experience(model, oracle, off_policy=False)
    knobs = InfluenceConfig(
        enable=True, output_function="log_prob", projection="none", max_prompts_per_step=prompts_traced
    )
    found = []
    for packed in (False, True):
        here = copy.deepcopy(model)
        if packed:
            use_packed_attention(here)
        optimizer = RecordingSGD(here.parameters(), 0.0)
        recorder = InfluenceRecorder(here, knobs)
        config = replace(WHOLE, ppo_max_token_len_per_gpu=budget)
        updater = Updater(Policy(here, compute, TEMPERATURE), optimizer, config, HORIZON, recorder=recorder)
        result = updater.update(data, 1, traced=True)
        found.append((result, optimizer.gradients[0], recorder.influence))
    (padded, expected, scores), (line, gradients, found_scores) = found
    assert_same(gradients, expected, rtol=1e-4)
    torch.testing.assert_close(line.log_probs, padded.log_probs, atol=1e-5, rtol=1e-5)
    assert torch.equal(found_scores.isnan(), scores.isnan())
    groups_traced = prompts_traced or 4
    assert (~scores.isnan()).any(-1).sum() == 3 * groups_traced
    largest = float(scores.nan_to_num().abs().max())
    torch.testing.assert_close(found_scores, scores, atol=1e-3 * largest, rtol=1e-2, equal_nan=True)


def test_traced_rows_are_joined_by_others_up_to_the_budget_and_by_no_more(make_responses):
    responses = make_responses(PROMPTS, RESPONSES)  # 7 10 4 | 6 3 9 | 9 9 12 | 3 4 11 tokens
    joined, left = filled_up([0, 1, 2], [3, 4, 5, 6, 7, 8, 9, 10, 11], responses, budget=30)
    assert joined == [0, 1, 2, 3, 4] and left == [5, 6, 7, 8, 9, 10, 11], "21 tokens, and room for 9"
    joined, left = filled_up([0, 1, 2], [8, 9], responses, budget=21)
    assert joined == [0, 1, 2] and left == [8, 9], "a full micro-batch takes nothing"
    assert filled_up([0], [], responses, budget=100) == ([0], [])
