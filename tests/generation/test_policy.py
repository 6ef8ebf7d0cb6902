"""Log-probs and entropies of response tokens, against a loop over full float64 forward passes."""

import pytest
import torch
from torch import Tensor

from archer.generation import head as head_module
from archer.generation import policy as policy_module
from archer.generation.batch import micro_batch
from archer.generation.head import token_statistics
from archer.generation.packed import use_packed_attention
from archer.generation.policy import Policy

PROMPTS, RESPONSES = [3, 1, 6, 2], [4, 7, 1, 5]
CPU = torch.device("cpu")


def gradients(model, *values: Tensor) -> list[Tensor]:
    """Gradient of a fixed combination of the values."""
    model.zero_grad()
    total = sum(
        (i + 1) * (value * torch.arange(value.numel()).view_as(value)).sum() for i, value in enumerate(values)
    )
    total.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_token_stats_are_those_of_the_full_distribution(
    any_model, compute, make_responses, oracle, temperature
):
    responses = make_responses(PROMPTS, RESPONSES)
    batch = micro_batch(responses, range(4), CPU)
    stats = Policy(any_model, compute, temperature).token_stats(batch)
    log_probs, entropy = oracle(any_model, temperature).token_stats(responses)
    torch.testing.assert_close(stats.log_probs.double(), log_probs, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(stats.entropy.double(), entropy, atol=2e-5, rtol=1e-5)


def test_the_head_runs_at_response_positions_only(monkeypatch, qwen2, compute, make_responses):
    policy = Policy(qwen2(tied=False), compute, 1.0)
    seen, real = [], head_module.F.linear
    monkeypatch.setattr(head_module.F, "linear", lambda x, w, b: seen.append(len(x)) or real(x, w, b))
    batch = micro_batch(make_responses(PROMPTS, RESPONSES), range(4), CPU)
    hidden = policy.model.base_model(input_ids=batch.input_ids).last_hidden_state
    seen.clear()
    policy._through_head(batch.gather(hidden), batch.response_tokens, entropy_grad=False, sketch=None)
    assert seen == [sum(RESPONSES)]


def test_running_the_head_everywhere_gives_the_same_values(qwen2, compute, make_responses):
    batch = micro_batch(make_responses(PROMPTS, RESPONSES), range(4), CPU)
    policy = Policy(qwen2(tied=False), compute, 0.7)
    expected = policy.token_stats(batch)
    policy.run_head_everywhere()
    got = policy.token_stats(batch)
    torch.testing.assert_close(got.log_probs, expected.log_probs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got.entropy, expected.entropy, atol=1e-5, rtol=1e-5)


def test_a_capped_head_is_noticed_even_where_logits_are_too_small_to_be_capped_visibly(
    gemma2, compute, make_responses, oracle
):
    model = gemma2(initializer_range=0.02, cap=30.0)
    policy = Policy(model, compute, 1.0)
    with torch.no_grad():  # what training may do
        model.model.norm.weight.fill_(60.0)
    responses = make_responses(PROMPTS, RESPONSES)
    stats = policy.token_stats(micro_batch(responses, range(4), CPU))
    log_probs, _ = oracle(model).token_stats(responses)
    torch.testing.assert_close(stats.log_probs.double(), log_probs, atol=1e-4, rtol=1e-4)


def test_a_row_does_not_depend_on_the_rows_beside_it_nor_on_padding(any_model, compute, make_responses):
    responses = make_responses(PROMPTS, RESPONSES)
    policy = Policy(any_model, compute, 1.0)
    together = policy.token_stats(micro_batch(responses, [3, 1, 0, 2], CPU))
    for place, row in enumerate([3, 1, 0, 2]):
        alone = policy.token_stats(micro_batch(responses, [row], CPU))
        length = RESPONSES[row]
        torch.testing.assert_close(
            together.log_probs[place, :length], alone.log_probs[0], atol=1e-5, rtol=1e-5
        )
        torch.testing.assert_close(together.entropy[place, :length], alone.entropy[0], atol=1e-5, rtol=1e-5)
        assert (together.log_probs[place, length:] == 0).all()
        assert (together.entropy[place, length:] == 0).all()


@pytest.mark.parametrize("entropy_grad", [False, True])
@pytest.mark.parametrize(("chunk", "kept"), [(1, 10**9), (150, 10**9), (150, 0), (10**9, 0)])
def test_chunks_and_recomputation_change_neither_values_nor_gradients(
    monkeypatch, any_model, compute, make_responses, chunk, kept, entropy_grad
):
    batch = micro_batch(make_responses(PROMPTS, RESPONSES), range(4), CPU)
    policy = Policy(any_model, compute, 0.8)
    whole = policy.token_stats(batch, entropy_grad=True)
    of = [whole.log_probs, whole.entropy] if entropy_grad else [whole.log_probs]
    expected = gradients(any_model, *of)
    monkeypatch.setattr(policy_module, "CHUNK_ELEMENTS", chunk)
    monkeypatch.setattr(head_module, "CHUNK_ELEMENTS", chunk)
    monkeypatch.setattr(head_module, "kept_bytes", lambda device: kept)
    parts = policy.token_stats(batch, entropy_grad)
    torch.testing.assert_close(parts.log_probs, whole.log_probs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(parts.entropy, whole.entropy, atol=1e-5, rtol=1e-5)
    of = [parts.log_probs, parts.entropy] if entropy_grad else [parts.log_probs]
    for got, wanted in zip(gradients(any_model, *of), expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize("kept", [0, 10**9])
def test_a_graph_that_is_kept_can_be_run_backward_again(monkeypatch, qwen2, compute, make_responses, kept):
    monkeypatch.setattr(head_module, "kept_bytes", lambda device: kept)
    model = qwen2(tied=True)
    batch = micro_batch(make_responses(PROMPTS, RESPONSES), range(4), CPU)
    log_probs = Policy(model, compute, 1.0).token_stats(batch).log_probs
    runs = [torch.autograd.grad(log_probs.sum(), list(model.parameters()), retain_graph=True) for _ in "ab"]
    for first, second in zip(*runs, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("size", [1.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_entropy_is_never_negative(dtype, size):
    noise = torch.randn(400, 3000, generator=torch.Generator().manual_seed(1))
    logits = (noise * size).to(dtype)
    logits[:, 5] += torch.linspace(0, 60, 400).to(dtype)  # from undecided to as good as sure
    _, entropy = token_statistics(logits, torch.full((400,), 5), 1.0)
    exact = logits.double().log_softmax(-1)
    assert (entropy >= 0).all()
    torch.testing.assert_close(entropy.double(), -(exact.exp() * exact).sum(-1), atol=1e-5, rtol=1e-5)


def test_rows_in_one_line_give_what_padded_rows_give(qwen2, compute, make_responses):
    responses = make_responses(PROMPTS, RESPONSES)
    for changes in ({}, {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}):
        padded, packed = (Policy(qwen2(tied=True, **changes), compute, 0.9) for _ in "ab")
        use_packed_attention(packed.model)
        assert packed.packs and not padded.packs
        one = padded.token_stats(micro_batch(responses, [3, 1, 0, 2], CPU))
        line = micro_batch(responses, [3, 1, 0, 2], CPU, packed=True)
        assert line.input_ids.shape == (1, sum(PROMPTS) + sum(RESPONSES))
        other = packed.token_stats(line)
        torch.testing.assert_close(other.log_probs, one.log_probs, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(other.entropy, one.entropy, atol=1e-5, rtol=1e-5)
        mine, theirs = (gradients(p.model, s.log_probs) for p, s in ((packed, other), (padded, one)))
        for got, wanted in zip(mine, theirs, strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("entropy_grad", [False, True])
def test_gradients_are_those_of_the_float64_loop(any_model, compute, make_responses, oracle, entropy_grad):
    responses = make_responses(PROMPTS, RESPONSES)
    reference = oracle(any_model, 0.7)
    stats = Policy(any_model, compute, 0.7).token_stats(micro_batch(responses, range(4), CPU), entropy_grad)
    log_probs, entropy = reference.token_stats(responses)
    assert stats.entropy.requires_grad == entropy_grad
    if entropy_grad:
        got = gradients(any_model, stats.log_probs, stats.entropy)
        wanted = gradients(reference.model, log_probs, entropy)
    else:
        got, wanted = gradients(any_model, stats.log_probs), gradients(reference.model, log_probs)
    for mine, theirs in zip(got, wanted, strict=True):
        scale = float(theirs.abs().max())
        torch.testing.assert_close(mine.double(), theirs, atol=1e-5 * max(scale, 1.0), rtol=1e-4)


def test_gradient_checkpointing_gives_the_same_gradients(qwen2, compute, make_responses):
    batch = micro_batch(make_responses(PROMPTS, RESPONSES), range(4), CPU)
    plain, saving = qwen2(tied=True), qwen2(tied=True)
    saving.gradient_checkpointing_enable({"use_reentrant": False})
    saving.train()
    expected = gradients(plain, Policy(plain, compute, 1.0).token_stats(batch).log_probs)
    got = gradients(saving, Policy(saving, compute, 1.0).token_stats(batch).log_probs)
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_logit_of_minus_infinity_has_probability_zero_and_a_finite_gradient():
    logits = torch.tensor(
        [[1.0, -torch.inf, 0.5, 2.0], [0.0, 0.0, -torch.inf, -torch.inf]], requires_grad=True
    )
    tokens = torch.tensor([3, 1])
    log_probs, entropy = token_statistics(logits, tokens, 1.0, entropy_grad=True)
    for row, allowed in enumerate([[0, 2, 3], [0, 1]]):
        p = logits.detach()[row, allowed].double().softmax(-1)
        assert log_probs[row].item() == pytest.approx(
            float(p[allowed.index(int(tokens[row]))].log()), abs=1e-6
        )
        assert entropy[row].item() == pytest.approx(float(-(p * p.log()).sum()), abs=1e-6)
    (log_probs.sum() + entropy.sum()).backward()
    assert torch.isfinite(logits.grad).all()


def test_extreme_logits_give_entropies_near_zero_and_near_the_maximum():
    sharp = torch.zeros(1, 1000)
    sharp[0, 7] = 200.0
    _, entropy = token_statistics(torch.cat([sharp, torch.full((1, 1000), 50.0)]), torch.tensor([7, 0]), 1.0)
    assert entropy[0].item() == pytest.approx(0.0, abs=1e-4)
    assert entropy[1].item() == pytest.approx(float(torch.tensor(1000.0).log()), abs=1e-4)


def test_bfloat16_logits_are_normalised_in_float32():
    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)).bfloat16()
    tokens = torch.tensor([1, 2, 3])
    log_probs, entropy = token_statistics(logits, tokens, 1.0)
    exact = logits.double().log_softmax(-1)
    assert log_probs.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(log_probs.double(), exact[torch.arange(3), tokens], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy.double(), -(exact.exp() * exact).sum(-1), atol=1e-5, rtol=1e-5)
