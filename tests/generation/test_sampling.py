"""Choosing tokens: what top-k and top-p keep, how often each comes, log-probabilities, random numbers."""

import math

import pytest
import torch

from archer.generation.sampling import (
    SampleStreams,
    SamplingParams,
    sample_by_blocks,
    sample_tokens,
    truncate,
)

DRAWS = 40_000
FIXED = [[0.6121582936071602, 0.5473521766712803], [0.18978447244489327, 0.3202730468585059]]


def numbers(count: int, *name: int | str, position: int = 0) -> torch.Tensor:
    """Random numbers of `count` responses, 8 a prompt."""
    rows = torch.arange(count)
    return SampleStreams.named("test", *name).draws(rows // 8, rows % 8).at(position, rows)


def kept_probabilities(log_probs: list[float], top_k: int, top_p: float) -> list[float]:
    """Probabilities left by a plain loop, likeliest first; a tie with the k-th token stays too."""
    probs = sorted((math.exp(x) for x in log_probs), reverse=True)
    if 0 < top_k < len(probs):
        probs = [p for p in probs if p >= probs[top_k - 1]]
    total, kept, reached = sum(probs), [], 0.0
    for p in probs:
        if top_p < 1.0 and kept and reached >= top_p:
            break
        kept.append(p)
        reached += p / total
    return kept


@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.5, 0.1, 1e-9])
@pytest.mark.parametrize("top_k", [-1, 1, 3, 19, 20, 100])
def test_truncation_keeps_what_a_plain_loop_keeps(top_k, top_p):
    rng = torch.Generator().manual_seed(top_k + 7)
    log_probs = (torch.randn(30, 20, generator=rng) * 2).log_softmax(-1)
    cut = truncate(log_probs, top_k, top_p)
    for row in range(30):
        kept = cut[row].isfinite()
        assert torch.equal(cut[row][kept], log_probs[row][kept])
        wanted = kept_probabilities(log_probs[row].double().tolist(), top_k, top_p)
        got = sorted(log_probs[row][kept].double().exp().tolist(), reverse=True)
        assert got == pytest.approx(wanted)


def test_ties_with_the_kth_token_stay_and_top_p_splits_a_tie_only_as_far_as_needed():
    log_probs = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.5, 0.125, 0.125, 0.25]]).log()
    assert truncate(log_probs, 2, 1.0).isfinite().sum(-1).tolist() == [4, 2]
    assert truncate(log_probs, 3, 1.0).isfinite().sum(-1).tolist() == [4, 4]
    assert truncate(log_probs, -1, 0.5).isfinite().sum(-1).tolist() == [2, 1]
    assert truncate(log_probs, -1, 0.8).isfinite().sum(-1).tolist() == [4, 3]


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        (SamplingParams(), 6),
        (SamplingParams(temperature=0.5), 6),
        (SamplingParams(temperature=2.0, top_k=4), 4),
        (SamplingParams(top_p=0.8), 3),
        (SamplingParams(top_k=3, top_p=0.9), 3),
    ],
)
def test_tokens_come_as_often_as_their_renormalised_probability_says(params, allowed):
    logits = torch.tensor([0.3, 2.0, -1.0, 1.2, 0.9, -0.4])
    tokens, _ = sample_tokens(logits.expand(DRAWS, -1), params, numbers(DRAWS, 5))
    probs = (logits.double() / params.temperature).softmax(-1)
    cut = truncate((logits / params.temperature).log_softmax(-1)[None], params.top_k, params.top_p)[0]
    probs = torch.where(cut.isfinite(), probs, 0.0)
    expected = DRAWS * probs / probs.sum()
    counts = torch.bincount(tokens, minlength=6).double()
    assert (counts[expected == 0] == 0).all() and int((expected > 0).sum()) == allowed
    here = expected > 0
    chi_square = float(((counts - expected)[here] ** 2 / expected[here]).sum())
    assert chi_square < 25  # with at most 5 degrees of freedom, exceeded once in 7,000


def test_rows_are_drawn_independently():
    tokens, _ = sample_tokens(torch.zeros(DRAWS, 2), SamplingParams(), numbers(DRAWS))
    agree = (tokens[0::2] == tokens[1::2]).double().mean()
    assert agree.item() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7, top_k=2, top_p=0.5),
        SamplingParams(temperature=1.3),
        SamplingParams(temperature=0.7, do_sample=False),
    ],
)
def test_the_log_prob_is_that_of_the_full_distribution_at_the_temperature(params):
    logits = torch.randn(200, 30, generator=torch.Generator().manual_seed(1))
    tokens, log_probs = sample_tokens(logits, params, numbers(200))
    full = (logits.double() / params.temperature).log_softmax(-1)
    torch.testing.assert_close(log_probs.double(), full[torch.arange(200), tokens], atol=1e-5, rtol=1e-5)


def test_greedy_takes_the_likeliest_token_whatever_the_random_numbers():
    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(1))
    for uniform in (torch.zeros(50), torch.full((50,), 0.999)):
        tokens, _ = sample_tokens(logits, SamplingParams(do_sample=False), uniform.double())
        assert torch.equal(tokens, logits.argmax(-1))


def test_an_impossible_token_never_comes():
    logits = torch.tensor([0.0, -torch.inf, 0.0, -torch.inf]).expand(DRAWS, -1)
    tokens, log_probs = sample_tokens(logits, SamplingParams(), numbers(DRAWS))
    assert set(tokens.tolist()) == {0, 2}
    torch.testing.assert_close(log_probs, torch.full((DRAWS,), math.log(0.5)))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_k=3, top_p=0.9)])
def test_logits_that_are_not_finite_show_in_the_log_prob_and_spoil_no_other_row(value, params):
    logits = torch.zeros(3, 10)
    logits[1, 4] = value
    tokens, log_probs = sample_tokens(logits, params, torch.tensor([0.1, 0.99, 0.5]).double())
    assert log_probs.isfinite().tolist() == [True, False, True]
    assert int(tokens.max()) < 10


def test_the_random_numbers_of_a_response_depend_on_its_own_name_and_position_only():
    streams = SampleStreams.named(42, "rollout", 7)
    rows = torch.arange(24)
    whole = streams.draws(rows // 4, rows % 4)
    table = torch.stack([whole.at(t, rows) for t in range(150)])  # [position, response]
    picked = torch.tensor([17, 2])
    alone = streams.draws(picked // 4, picked % 4)
    later = SampleStreams.named(42, "rollout", 7, first_prompt=4).draws(torch.tensor([0]), torch.tensor([1]))
    for t in range(150):
        assert alone.at(t, torch.tensor([0, 1])).tolist() == table[t, [17, 2]].tolist()
        assert later.at(t, torch.tensor([0])).item() == table[t, 17].item()
    assert len(table.flatten().unique()) == table.numel()


def test_the_random_numbers_stay_what_they_were_so_that_old_runs_resume_on_them():
    first = SampleStreams.named(42, "rollout", 1).draws(torch.tensor([0, 5]), torch.tensor([0, 3]))
    assert [first.at(t, torch.tensor([0, 1])).tolist() for t in (0, 1)] == FIXED


def test_random_numbers_are_uniform_and_neither_prompts_samples_positions_nor_seeds_go_together():
    table = torch.stack([numbers(DRAWS, seed, position=t) for seed in (1, 2) for t in (0, 1, 63, 64)])
    assert float(table.min()) >= 0 and float(table.max()) < 1
    for row in table:
        counts = torch.histc(row, bins=100, min=0, max=1)
        assert float(((counts - 400) ** 2 / 400).sum()) < 180  # 99 degrees of freedom, once in a million
    assert (torch.corrcoef(table).fill_diagonal_(0).abs() < 0.025).all()
    for shift in (1, 8, 64):
        pair = torch.stack([table[0, :-shift], table[0, shift:]])
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.025


@pytest.mark.parametrize("vocabulary", [7, 128, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_drawing_by_blocks_is_drawing(vocabulary, temperature):
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(4000, vocabulary, generator=generator, dtype=torch.float64) * 3
    logits[::7, vocabulary // 2 :] = -torch.inf
    uniform = torch.rand(4000, generator=generator, dtype=torch.float64)
    uniform[:3] = torch.tensor([0.0, 1.0 - 2.0**-53, 0.5])
    params = SamplingParams(temperature=temperature)
    tokens, log_probs = sample_by_blocks(logits, params, uniform)
    expected, exact = sample_tokens(logits, params, uniform)
    assert (tokens == expected).float().mean() > 0.999, "but for rounding at a token's edge"
    chosen = logits.gather(1, tokens[:, None])
    assert chosen.isfinite().all(), "a token of probability 0 is never drawn"
    same = tokens == expected
    torch.testing.assert_close(log_probs[same], exact[same].float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_not_finite_give_a_log_prob_that_says_so(value):
    logits = torch.zeros(2, 300)
    logits[1] = value
    tokens, log_probs = sample_by_blocks(logits, SamplingParams(), torch.tensor([0.5, 0.5]).double())
    assert log_probs.isfinite().tolist() == [True, False]
    assert (tokens < 300).all()
