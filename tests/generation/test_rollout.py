"""Cached, batched decoding against a plain forward pass of every response."""

import pytest
import torch

from archer.errors import ArcherError
from archer.generation import rollout as rollout_module
from archer.generation.batch import RolloutLimits
from archer.generation.decoder import Decoder
from archer.generation.model import SamplingWeights
from archer.generation.packed import can_pack, use_packed_attention
from archer.generation.rollout import Rollout
from archer.generation.sampling import SampleStreams, SamplingParams

STOP = (4, 9, 23)
PAD = 0
SAMPLED = SamplingParams()
GREEDY = SamplingParams(do_sample=False)
LENGTHS = [3, 9, 1, 5, 9]


def rng(seed: int = 0) -> SampleStreams:
    return SampleStreams.named(seed, "test")


@pytest.fixture
def make_rollout(compute):
    def make(model, limit: int = 16, at_once: int = 256) -> Rollout:
        return Rollout(SamplingWeights(model, compute), compute, RolloutLimits(limit, at_once), STOP, PAD)

    return make


def assert_log_probs_are_exact(responses, reference) -> None:
    with torch.no_grad():
        expected, _ = reference.token_stats(responses)
    torch.testing.assert_close(responses.log_probs.double(), expected, atol=1e-4, rtol=1e-4)


def greedy_by_hand(model, prompt, limit: int) -> list[int]:
    """The likeliest token after a full forward pass, again and again."""
    tokens = list(prompt.token_ids)
    while len(tokens) < len(prompt.token_ids) + limit:
        with torch.no_grad():
            tokens.append(
                int(model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax())
            )
        if tokens[-1] in STOP:
            break
    return tokens[len(prompt.token_ids) :]


def texts(responses) -> list[list[int]]:
    return [tokens[mask].tolist() for tokens, mask in zip(responses.tokens, responses.mask, strict=True)]


@pytest.mark.parametrize("at_once", [256, 6, 4, 1])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampled_log_probs_are_those_of_a_training_forward(
    any_model, make_rollout, make_prompts, oracle, at_once, temperature
):
    params = SamplingParams(temperature=temperature)
    responses = make_rollout(any_model, at_once=at_once).generate(make_prompts(LENGTHS), 3, params, rng())
    assert_log_probs_are_exact(responses, oracle(any_model, temperature))


@pytest.mark.parametrize("lengths", [[5, 5, 5], [2, 8, 4]])
def test_greedy_responses_are_those_of_decoding_without_a_cache(
    any_model, make_rollout, make_prompts, lengths
):
    prompts = make_prompts(lengths)
    responses = make_rollout(any_model).generate(prompts, 2, GREEDY, rng())
    assert texts(responses) == [greedy_by_hand(any_model, prompt, 16) for prompt in prompts for _ in range(2)]


def test_the_responses_of_a_prompt_are_consecutive_and_differ(qwen2, make_rollout, make_prompts):
    prompts = make_prompts(LENGTHS)
    responses = make_rollout(qwen2(tied=True), at_once=6).generate(prompts, 3, SAMPLED, rng())
    assert [prompt.index for prompt in responses.prompts] == [i for i in range(5) for _ in range(3)]
    assert len({tuple(text) for text in texts(responses)}) > 10


@pytest.mark.parametrize(("n", "at_once"), [(3, 7), (5, 2), (4, 4), (4, 1)])
def test_no_more_responses_are_decoded_at_a_time_than_allowed_also_within_a_group(
    qwen2, make_rollout, make_prompts, oracle, n, at_once
):
    model = qwen2(tied=True)
    rows = []
    handle = model.model.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(kwargs["input_ids"].shape[0]), with_kwargs=True
    )
    responses = make_rollout(model, at_once=at_once).generate(make_prompts(LENGTHS), n, SAMPLED, rng())
    handle.remove()
    assert max(rows) <= at_once
    assert [prompt.index for prompt in responses.prompts] == [i for i in range(5) for _ in range(n)]
    assert_log_probs_are_exact(responses, oracle(model))


def test_a_response_ends_with_its_first_stop_token_or_at_the_limit(qwen2, make_rollout, make_prompts):
    limit = 8
    responses = make_rollout(qwen2(tied=True), limit).generate(make_prompts(LENGTHS), 20, SAMPLED, rng())
    assert responses.tokens.shape[1] <= limit
    for row, text in enumerate(texts(responses)):
        length = len(text)
        assert 1 <= length <= limit
        assert responses.mask[row, :length].all() and not responses.mask[row, length:].any()
        assert not set(text[:-1]) & set(STOP)
        assert bool(responses.finished[row]) == (text[-1] in STOP)
        assert bool(responses.finished[row]) or length == limit
        assert (responses.tokens[row, length:] == PAD).all()
        assert (responses.log_probs[row, length:] == 0).all()
    both = responses.finished.float().mean()
    assert 0 < both < 1, "the sample must hold both endings for this to say anything"


def test_responses_are_no_wider_than_the_longest(qwen2, make_rollout, make_prompts):
    responses = make_rollout(qwen2(tied=True), 300).generate(make_prompts([4]), 4, SAMPLED, rng(3))
    assert responses.finished.all()
    assert responses.tokens.shape[1] == int(responses.lengths.max()) < 300


def test_a_limit_of_one_token_gives_one_token(qwen2, make_rollout, make_prompts):
    responses = make_rollout(qwen2(tied=True), 1).generate(make_prompts([4, 2]), 3, SAMPLED, rng())
    assert responses.mask.shape == (6, 1) and responses.mask.all()


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_dropping_ended_rows_early_or_never_changes_no_greedy_response_and_no_log_prob(
    monkeypatch, any_model, make_rollout, make_prompts, oracle, share
):
    prompts = make_prompts([3, 9, 1, 5, 9, 2, 4, 6], seed=1)
    expected = texts(make_rollout(any_model, 24).generate(prompts, 1, GREEDY, rng()))
    monkeypatch.setattr(rollout_module, "COMPACT_SHARE", share)
    rows = []
    real = rollout_module._compact
    monkeypatch.setattr(rollout_module, "_compact", lambda *a: rows.append(len((r := real(*a))[1])) or r)
    rollout = make_rollout(any_model, 24)
    assert texts(rollout.generate(prompts, 1, GREEDY, rng())) == expected
    rows.clear()
    responses = rollout.generate(prompts, 4, SAMPLED, rng())
    assert_log_probs_are_exact(responses, oracle(any_model))
    if share == 0.0:
        assert set(rows) == {32}
    else:  # a row is fed as long as its response goes on, and no longer
        assert rows == [int((responses.lengths > t).sum()) for t in range(1, len(rows) + 1)]


def test_the_same_seed_gives_the_same_responses_and_another_one_others(qwen2, make_rollout, make_prompts):
    rollout = make_rollout(qwen2(tied=True), at_once=6)
    prompts = make_prompts(LENGTHS)
    first, again, other = (rollout.generate(prompts, 3, SAMPLED, rng(seed)) for seed in (1, 1, 2))
    assert texts(first) == texts(again) and torch.equal(first.log_probs, again.log_probs)
    assert texts(first) != texts(other)


def test_a_model_in_training_mode_with_gradient_checkpointing_is_decoded_with_its_cache_and_left_as_it_was(
    qwen2, make_rollout, make_prompts, oracle
):
    model = qwen2(tied=True)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    widths = []
    handle = model.model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    responses = make_rollout(model).generate(make_prompts(LENGTHS), 2, SAMPLED, rng())
    handle.remove()
    assert model.training
    assert widths == [max(LENGTHS)] + [1] * (len(widths) - 1) and len(widths) > 2
    assert_log_probs_are_exact(responses, oracle(model))


def test_a_prompt_is_read_once_however_many_responses_it_gets(qwen2, make_rollout, make_prompts):
    model = qwen2(tied=True)
    shapes = []
    handle = model.model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    make_rollout(model).generate(make_prompts([4, 7]), 5, SAMPLED, rng())
    handle.remove()
    assert shapes[0] == (2, 7)


@pytest.fixture
def make_decoder(compute):
    """The decoder of CUDA runs, without graphs, which change nothing but the speed."""

    def make(model, limit: int = 16, slots: int = 256) -> Rollout:
        assert can_pack(model)
        use_packed_attention(model)
        limits = RolloutLimits(limit, slots, max_prompt_length=12)
        rollout = Rollout(SamplingWeights(model, compute), compute, limits, STOP, PAD)
        assert isinstance(rollout._decoder, Decoder)
        return rollout

    return make


@pytest.fixture(params=["plain", "window"])
def packable(request, qwen2):
    """A model with full attention, or with a window of 6 tokens in its last layer."""
    if request.param == "plain":
        return qwen2(tied=False)
    return qwen2(tied=True, use_sliding_window=True, sliding_window=6, max_window_layers=1)


def test_a_decoder_has_its_memory_before_it_samples(qwen2, make_decoder):
    """So what is free afterwards can be given to others (`engines/local/sizing.py`)."""
    cache = make_decoder(qwen2(tied=True), slots=5)._decoder._cache
    assert cache._store.shape[2:4] == (6, 64)  # slots and one for scrap, 12 + 16 positions rounded up


@pytest.mark.parametrize("slots", [256, 7, 1])
@pytest.mark.parametrize("params", [SAMPLED, GREEDY, SamplingParams(temperature=0.8, top_p=0.9, top_k=20)])
def test_the_decoder_draws_what_plain_decoding_draws_however_few_slots_it_has(
    packable, make_rollout, make_decoder, make_prompts, slots, params
):
    model, prompts = packable.double(), make_prompts(LENGTHS)
    plain = make_rollout(model, limit=40).generate(prompts, 3, params, rng(4))
    found = make_decoder(model, limit=40, slots=slots).generate(prompts, 3, params, rng(4))
    assert texts(found) == texts(plain)
    torch.testing.assert_close(found.log_probs, plain.log_probs, atol=1e-6, rtol=1e-6)
    assert torch.equal(found.finished, plain.finished)


def test_models_whose_attention_is_not_plain_are_decoded_the_plain_way(gemma2, qwen2):
    assert not can_pack(gemma2())
    assert not can_pack(qwen2(tied=True, head_dim=12))  # which flash attention has no kernel for


@pytest.mark.parametrize("params", [SAMPLED, SamplingParams(temperature=0.8, top_p=0.9, top_k=20)])
def test_neither_the_number_decoded_at_a_time_nor_the_company_changes_a_response(
    qwen2, make_rollout, make_prompts, params
):
    model, prompts = qwen2(tied=True).double(), make_prompts(LENGTHS)
    whole = texts(make_rollout(model).generate(prompts, 4, params, rng()))
    assert len({len(text) for text in whole}) > 3, "responses of many lengths, so that rows leave the batch"
    for at_once in (1, 2, 3, 4, 5, 8, 13):
        assert texts(make_rollout(model, at_once=at_once).generate(prompts, 4, params, rng())) == whole
    for place, prompt in enumerate(prompts):  # alone, and with fewer samples each
        streams = SampleStreams.named(0, "test", first_prompt=place)
        alone = texts(make_rollout(model).generate([prompt], 2, params, streams))
        assert alone == whole[4 * place : 4 * place + 2]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("params", [SAMPLED, GREEDY, SamplingParams(top_p=0.5)])
def test_logits_that_are_not_finite_are_an_error_that_says_so(
    qwen2, make_rollout, make_prompts, params, value
):
    model = qwen2(tied=True)
    with torch.no_grad():
        model.model.norm.weight.fill_(value)
    with pytest.raises(ArcherError, match="logits are not finite") as raised:
        make_rollout(model).generate(make_prompts(LENGTHS), 2, params, rng())
    assert "actor.optim.lr" in str(raised.value)


def test_slots_are_reused_without_a_trace_of_the_batch_before(qwen2, make_decoder, make_prompts, oracle):
    model = qwen2(tied=False)
    rollout = make_decoder(model, limit=40, slots=8)
    first = rollout.generate(make_prompts([9, 12, 10], seed=1), 2, SAMPLED, rng())
    second = rollout.generate(make_prompts([3, 2, 8], seed=2), 2, SAMPLED, rng())
    third = rollout.generate(make_prompts([5, 5, 5], seed=3), 2, SAMPLED, rng())
    for responses in (first, second, third):
        assert_log_probs_are_exact(responses, oracle(model))


def test_the_decoder_follows_the_weights(qwen2, make_decoder, make_prompts, oracle):
    model = qwen2(tied=True)
    rollout, prompts = make_decoder(model), make_prompts(LENGTHS)
    rollout.generate(prompts, 2, SAMPLED, rng())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    assert_log_probs_are_exact(rollout.generate(prompts, 2, SAMPLED, rng()), oracle(model))
