"""Token credit in whole steps of the local engine: the same weights on every way they can be made."""

from dataclasses import replace

import pytest
import torch

from archer.algorithms.token_credit.base import CREDIT_MODES
from archer.config import compose
from archer.data.arithmetic import first_mistake
from archer.engines.local.credit import StepCredit
from archer.engines.local.engine import LocalEngine
from archer.errors import ArcherError
from archer.trace.reader import TraceReader

SMALL = [
    "data.train_max_samples=40",
    "data.val_max_samples=6",
    "data.train_batch_size=6",
    "actor_rollout_ref.actor.ppo_mini_batch_size=6",
    "actor_rollout_ref.rollout.n=6",
    "trainer.total_training_steps=4",
    "engine.threads=1",
    "engine.device=cpu",
]
MODE = "algorithm.token_credit.mode"
EXACT = "algorithm.token_credit.projection_dim=0"
SLOW_WAYS = {
    "micro-batches by rows": (
        "actor_rollout_ref.actor.use_dynamic_bsz=False",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=5",
    ),
    "groups that do not fit": ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu=120",),
    "with old log-probs": (
        "algorithm.rollout_correction.rollout_is=token",
        "algorithm.rollout_correction.rollout_is_threshold=1e6",
    ),
}


@pytest.fixture
def steps(monkeypatch) -> list[StepCredit]:
    """The credit of every step that is trained."""
    seen: list[StepCredit] = []
    made = StepCredit.__init__

    def remember(self, *arguments):
        made(self, *arguments)
        seen.append(self)

    monkeypatch.setattr(StepCredit, "__init__", remember)
    return seen


def parameters(engine: LocalEngine) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in engine.trainer.policy.model.parameters()])


@pytest.mark.parametrize("way", SLOW_WAYS)
@pytest.mark.parametrize("mode", ["nthr", "spare_confident", "delta"])
def test_weights_made_ahead_are_those_made_in_the_update(make_engine, steps, mode, way):
    first, second = make_engine(f"{MODE}={mode}"), make_engine(f"{MODE}={mode}", *SLOW_WAYS[way])
    first.train_step(lambda: False)
    second.train_step(lambda: False)
    inside, ahead = steps
    assert not inside.ahead and (ahead.ahead or mode == "spare_confident")
    assert torch.allclose(inside.weights, ahead.weights, atol=1e-4)
    if mode != "spare_confident":
        known = inside.scores.isfinite()
        assert torch.equal(known, ahead.scores.isfinite()) and known.any()
        scale = inside.scores[known].abs().max()
        assert torch.allclose(inside.scores[known], ahead.scores[known], atol=float(scale) * 1e-4)
    assert torch.allclose(parameters(first), parameters(second), atol=2e-4)  # AdamW magnifies rounding


def test_the_heads_influence_is_that_of_a_backward_through_the_head(make_engine, steps):
    make_engine(f"{MODE}=nthr", EXACT).train_step(lambda: False)
    modules = "algorithm.token_credit.module_name_filter=[lm_head]"
    make_engine(f"{MODE}=influence", EXACT, modules).train_step(lambda: False)
    closed, backward = steps
    known = closed.scores.isfinite()
    assert known.any() and torch.equal(known, backward.scores.isfinite())
    scale = float(closed.scores[known].abs().max())
    assert torch.allclose(closed.scores[known], backward.scores[known], atol=scale * 1e-5)


@pytest.mark.parametrize("mode", [m for m in sorted(CREDIT_MODES.names()) if m != "none"])
def test_the_update_is_that_of_advantages_multiplied_by_the_weights(make_engine, steps, mode):
    """The same step once more without a mode, its advantages multiplied beforehand."""
    make = [f"{MODE}={mode}", "algorithm.token_credit.permute=True"]
    weighed = make_engine(*make)
    weighed.train_step(lambda: False)
    weights = steps[0].weights

    plain = make_engine()
    update = plain.trainer._updater.update

    def multiplied(experience, *arguments):
        return update(replace(experience, advantages=experience.advantages * weights), *arguments)

    plain.trainer._updater.update = multiplied
    plain.train_step(lambda: False)
    assert not torch.equal(parameters(plain), parameters(make_engine()))
    # a mode that reads the head keeps groups together, so that sums are rounded in another order
    assert torch.allclose(parameters(weighed), parameters(plain), atol=1e-6)


def test_a_strength_of_none_is_no_credit_to_the_last_bit(make_engine):
    none, still = make_engine(), make_engine(f"{MODE}=nthr", "algorithm.token_credit.strength=0")
    reports = [engine.train_step(lambda: False) for engine in (none, still)]
    assert torch.equal(parameters(none), parameters(still))
    assert not any(name.startswith("token_credit/") for report in reports for name in report.metrics)


def test_the_oracle_penalises_the_first_mistake_of_each_rejected_response(make_engine, steps):
    engine = make_engine(f"{MODE}=oracle")
    engine.train_step(lambda: False)
    credit = steps[0]
    responses = credit.judged.responses
    for row in range(len(responses)):
        mask, weights = responses.mask[row], credit.weights[row]
        if credit.judged.correct[row]:
            assert (weights[mask] == 1).all()
            continue
        (places,) = weights.nonzero(as_tuple=True)
        assert len(places) == 1 and weights[places] == 1
        before = engine.tokenizer.decode(responses.tokens[row, : int(places)], skip_special_tokens=True)
        through = engine.tokenizer.decode(responses.tokens[row, : int(places) + 1], skip_special_tokens=True)
        prompt = responses.prompts[row].extra_info
        whole = engine.tokenizer.decode(responses.tokens[row][mask], skip_special_tokens=True)
        mistake = first_mistake(prompt["a"], prompt["b"], whole)
        assert len(before) <= mistake.start and (mistake.start < len(through) or mistake.start == len(whole))


def test_traces_hold_weights_scores_and_what_each_token_was_paid(make_engine, steps):
    engine = make_engine(
        f"{MODE}=nthr", "trainer.entropy_trace.enable=True", "trainer.influence_trace.enable=True"
    )
    report = engine.train_step(lambda: False)
    engine.traces.flush()
    credit = steps[0]
    for name in ("entropy_trace", "influence_trace"):
        step = TraceReader(engine.config.run_dir / name).read(1).arrays
        rows, width = torch.as_tensor(step.response_index).long(), step.response_mask.shape[1]
        mask = torch.as_tensor(step.response_mask)
        weights = credit.weights[rows, :width]
        assert torch.equal(torch.as_tensor(step.credit).float()[mask], weights[mask])
        scores, written = credit.scores[rows, :width][mask], torch.as_tensor(step.credit_score)[mask]
        assert torch.equal(scores.nan_to_num(0.5), written.nan_to_num(0.5))
        paid = torch.as_tensor(step.paid).float()
        if name == "influence_trace":
            expected = torch.as_tensor(step.advantage) * weights
            assert torch.allclose(paid[mask], expected[mask], rtol=1e-3)
    spared = (credit.weights < 1) & credit.judged.responses.mask & ~credit.judged.correct[:, None]
    among = (credit.judged.responses.mask & ~credit.judged.correct[:, None]).sum()
    assert report.metrics["token_credit/spared_share"] == pytest.approx(float(spared.sum() / among))
    assert report.metrics["token_credit/strength"] == 1.0


def test_influence_and_credit_read_the_same_step_together(make_engine, steps):
    """Tracing the head, too, changes neither the scores that credit reads nor what is made of them."""
    alone = make_engine(f"{MODE}=nthr")
    both = make_engine(
        f"{MODE}=nthr",
        "trainer.influence_trace.enable=True",
        "trainer.influence_trace.output_function=log_prob",
        "trainer.influence_trace.module_name_filter=[q_proj,lm_head]",
    )
    alone.train_step(lambda: False)
    both.train_step(lambda: False)
    scores, again = steps[0].scores, steps[1].scores
    known = scores.isfinite()
    scale = float(scores[known].abs().max())
    assert known.any() and torch.allclose(scores[known], again[known], atol=scale * 1e-5)
    clear = ~(scores.abs() < scale * 1e-5)  # a score of rounding noise may have either sign
    assert torch.equal(steps[0].weights[clear], steps[1].weights[clear])
    if torch.equal(steps[0].weights, steps[1].weights):
        assert torch.allclose(parameters(alone), parameters(both), atol=1e-5)


def test_a_second_mini_batch_is_weighed_by_the_policy_before_the_first(make_engine, steps):
    engine = make_engine(f"{MODE}=spare_confident", "actor_rollout_ref.actor.ppo_mini_batch_size=2")
    before = {name: p.detach().clone() for name, p in engine.trainer.policy.model.named_parameters()}
    engine.train_step(lambda: False)
    credit = steps[0]
    with torch.no_grad():
        for name, parameter in engine.trainer.policy.model.named_parameters():
            parameter.copy_(before[name])
    responses = credit.judged.responses
    log_probs = engine.trainer._forward(engine.trainer.policy, responses).log_probs
    rejected = ~credit.judged.correct[:, None] & responses.mask
    sure = log_probs.exp() > 0.5
    clear = (log_probs.exp() - 0.5).abs() > 1e-4  # no token at the very threshold
    assert torch.equal(credit.weights[rejected & clear] == 0, sure[rejected & clear])


def test_the_oracle_needs_the_built_in_task(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "1+1=", "data_source": "math", "reward_model": {"ground_truth": "2"}}\n')
    with pytest.raises(ArcherError, match=r"token_credit.mode=oracle.*builtin:arithmetic"):
        compose([*SMALL, f"{MODE}=oracle", f"data.train_files={file}"])
