"""What only a CUDA device shows: compiled decoding, bfloat16 sampling weights, influence on the device.

Skipped elsewhere.
"""

import copy
import io
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from archer.config import compose
from archer.config.actor import actor_config
from archer.data.builtin import tiny_reasoner_path
from archer.engines.local import sizing
from archer.engines.local.influence import InfluenceRecorder
from archer.engines.local.sizing import choose_sizes
from archer.generation import head as head_module
from archer.generation.batch import RolloutLimits, micro_batch
from archer.generation.config import ModelConfig
from archer.generation.device import Compute
from archer.generation.fused import fuse
from archer.generation.model import SamplingWeights, prepare_for_cuda
from archer.generation.packed import NAME
from archer.generation.policy import Policy
from archer.generation.rollout import Rollout
from archer.generation.sampling import SampleStreams, SamplingParams
from archer.influence import Group, InfluenceConfig, InfluenceTracer
from archer.influence.bundle import make_bundles
from archer.influence.distributed import Exchange
from archer.influence.factors import TokenFactors
from archer.influence.scoring import Scorer
from archer.trace.check import check_trace
from archer.train import make_run
from archer.training.traces import prompt_groups

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

STOP = (4, 9, 23)
GREEDY = SamplingParams(do_sample=False)
STREAMS = SampleStreams.named(0, "test")
CUDA = torch.device("cuda")


@pytest.fixture
def cuda() -> Compute:
    return Compute(torch.device("cuda"), torch.float32)


BF16 = Compute(CUDA, torch.bfloat16)


def rollout(
    weights: SamplingWeights, longest: int = 16, limit: int = 24, slots: int = 256, **options
) -> Rollout:
    return Rollout(weights, BF16, RolloutLimits(limit, slots, longest), STOP, 0, **options)


def texts(responses) -> list[list[int]]:
    return [tokens[mask].tolist() for tokens, mask in zip(responses.tokens, responses.mask, strict=True)]


@pytest.fixture
def prepared(qwen2):
    """A policy as it is trained on CUDA in bfloat16: packed, fused."""
    model = qwen2(tied=True, head_dim=16).to("cuda")
    prepare_for_cuda(model, BF16)
    assert model.config._attn_implementation == NAME
    return model


@pytest.mark.parametrize("slots", [256, 5])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(temperature=0.8, top_p=0.9)])
def test_recorded_decoding_follows_the_policy_and_draws_what_decoding_without_graphs_draws(
    prepared, make_prompts, slots, params
):
    weights = SamplingWeights(prepared, BF16)
    prompts = make_prompts([3, 9, 1, 5, 9])
    recorded = rollout(weights, slots=slots)
    for _ in range(3):
        found = recorded.generate(prompts, 3, params, STREAMS)
        expected = rollout(weights, graphs=False).generate(prompts, 3, params, STREAMS)
        same = sum(a == b for a, b in zip(texts(found), texts(expected), strict=True))
        assert same >= 12, "bfloat16 ties may fall either way, but most responses agree"
        with torch.no_grad():
            for parameter in prepared.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        recorded.refresh()


def test_sampled_log_probs_are_those_of_a_training_forward(prepared, make_prompts):
    found = rollout(SamplingWeights(prepared, BF16)).generate(
        make_prompts([3, 9, 1, 5]), 4, SamplingParams(), STREAMS
    )
    batch = micro_batch(found, range(len(found)), CUDA, packed=True)
    with torch.no_grad():
        stats = Policy(prepared, BF16, 1.0).token_stats(batch)
    difference = (stats.log_probs.cpu() - found.log_probs).abs()[found.mask]
    assert difference.mean() < 0.03, "bfloat16 in another order of sums"
    assert (stats.entropy >= 0).all()


def test_packed_and_fused_in_bfloat16_give_what_the_plain_model_gives_in_float32(qwen2, make_responses):
    plain = qwen2(tied=True, head_dim=16).to("cuda")
    fast = copy.deepcopy(plain)
    prepare_for_cuda(fast, BF16)
    assert fuse(copy.deepcopy(plain)) == ["5 norms", "2 gated layers", "rotary angles"]
    responses = make_responses([3, 5, 1, 9], [9, 7, 12, 5])
    batches = (micro_batch(responses, range(4), CUDA), micro_batch(responses, range(4), CUDA, packed=True))
    policies = (Policy(plain, Compute(CUDA, torch.float32), 0.9), Policy(fast, BF16, 0.9))
    one, other = (p.token_stats(b) for p, b in zip(policies, batches, strict=True))
    torch.testing.assert_close(other.log_probs, one.log_probs, atol=0.1, rtol=0.05)
    torch.testing.assert_close(other.entropy, one.entropy, atol=0.05, rtol=0.05)
    for stats in (one, other):
        (stats.log_probs * torch.linspace(1, 2, 12, device=CUDA)).sum().backward()
    for (name, a), b in zip(plain.named_parameters(), fast.parameters(), strict=True):
        angle = torch.nn.functional.cosine_similarity(a.grad.flatten(), b.grad.flatten(), dim=0)
        assert angle > 0.99, name


def test_the_head_on_the_device_is_that_of_the_cpu_also_where_logits_are_not_kept(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(300, 64, generator=generator), torch.randn(1000, 64, generator=generator)
    tokens = torch.randint(1000, (300,), generator=generator)
    found = []
    for device, kept in (("cpu", 10**9), ("cuda", 10**9), ("cuda", 0)):
        monkeypatch.setattr(head_module, "kept_bytes", lambda device, kept=kept: kept)
        monkeypatch.setattr(head_module, "CUDA_CHUNK_ELEMENTS", 70_000)
        head = torch.nn.Linear(64, 1000, bias=False, device=device)
        head.weight.data.copy_(weight)
        h = hidden.clone().to(device).requires_grad_()
        log_probs, entropy, _ = head_module.head_statistics(head, h, tokens.to(device), 0.8)
        (log_probs * torch.linspace(-1, 1, 300, device=device)).sum().backward()
        found.append([x.detach().cpu() for x in (log_probs, entropy, h.grad, head.weight.grad)])
    for others in found[1:]:
        for mine, theirs in zip(others, found[0], strict=True):
            torch.testing.assert_close(mine, theirs, atol=2e-3 * float(theirs.abs().max()), rtol=1e-3)


def test_micro_batches_are_sized_by_what_a_token_costs(prepared):
    policy = Policy(prepared, BF16, 1.0)
    sizes = choose_sizes(policy, ModelConfig(), actor_config(), longest=64)
    assert sizes is not None and sizes.tokens == 32768 and not sizes.checkpointing
    assert choose_sizes(policy, ModelConfig(), actor_config(ppo_max_token_len_per_gpu=99), 64).tokens == 99
    given = ModelConfig(enable_gradient_checkpointing=True)
    assert choose_sizes(policy, given, actor_config(ppo_max_token_len_per_gpu=99), 64) is None


def test_activations_are_computed_again_where_they_would_not_fit(monkeypatch, prepared):
    policy = Policy(prepared, BF16, 1.0)
    monkeypatch.setattr(sizing, "tokens_that_fit", lambda policy, cost: 100)
    sizes = choose_sizes(policy, ModelConfig(), actor_config(), longest=64)
    assert sizes == sizing.MicroBatchSizes(100, True, sizes.bytes_per_token)
    assert prepared.is_gradient_checkpointing


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"hessian_source": "token"},
        {"grad_offload_to_cpu": True},
        {"grad_offload_to_cpu": True, "force_gpu_compute": False, "output_function": "log_prob"},
    ],
)
def test_influence_on_the_device_is_that_of_the_cpu(make_responses, judged, knobs):
    model = AutoModelForCausalLM.from_pretrained(tiny_reasoner_path(), dtype=torch.float32)
    responses = make_responses([4, 4, 4, 4], [9, 7, 12, 5])
    verdicts = judged(responses, [0, 0, 0, 0])
    found = {}
    for device in ("cpu", "cuda"):
        here = copy.deepcopy(model).to(device)
        recorder = InfluenceRecorder(here, InfluenceConfig(enable=True, projection_dim_factor=4, **knobs))
        recorder.begin(verdicts, True)
        batch = micro_batch(responses, [0, 1, 2, 3], torch.device(device))
        advantages = torch.linspace(1, 2, responses.mask.numel()).view(responses.mask.shape).to(device)
        with recorder.capture(batch):
            stats = Policy(here, Compute(torch.device(device), torch.float32), 1.0).token_stats(batch)
            loss = -(stats.log_probs * advantages * responses.mask.to(device)).sum()
            recorder.watch(loss, stats.log_probs, batch, advantages, torch.ones(4, device=device))
            loss.backward()
        recorder.score([0, 1, 2, 3])
        found[device] = recorder.influence
    largest = found["cpu"].nan_to_num().abs().max()
    assert largest > 0
    difference = (found["cuda"] - found["cpu"]).nan_to_num().abs().max()
    assert difference < 1e-3 * largest
    assert torch.equal(found["cuda"].isnan(), found["cpu"].isnan())


def captured(model, responses, verdicts, config) -> InfluenceTracer:
    """A tracer that holds the bfloat16 factors of all responses in two micro-batches."""
    recorder = InfluenceRecorder(model, config)
    recorder.begin(verdicts, True)
    for rows in ([0, 3, 4], [1, 2, 5]):
        batch = micro_batch(responses, rows, torch.device("cuda"))
        with recorder.capture(batch), torch.autocast("cuda", torch.bfloat16):
            logits = model(input_ids=batch.input_ids, use_cache=False).logits
            logits.float().log_softmax(-1)[..., 0].sum().backward()
    return recorder.tracer


def on_the_cpu_in_float64(batch: TokenFactors, tracer: InfluenceTracer) -> TokenFactors:
    def lines(factors, width):
        return {t.name: factors[t.name][:, : width(t)].cpu().double() for t in tracer.modules}

    u = lines(batch.u, lambda traced: traced.project_out.k)
    return replace(batch, u=u, v=lines(batch.v, lambda traced: traced.project_in.k))


@pytest.mark.parametrize(
    ("knobs", "tolerance"),
    [
        ({}, 1e-5),
        ({"hessian_source": "token"}, 1e-4),
        ({"hessian_mode": "identity"}, 1e-5),
        ({"score_normalization": "token_norm"}, 1e-3),  # a difference of two near numbers
    ],
)
@pytest.mark.parametrize("factor", [4, 5])  # 5: no projection has a width that tensor cores like
def test_bfloat16_factors_are_scored_as_in_float64(make_responses, judged, knobs, tolerance, factor):
    model = AutoModelForCausalLM.from_pretrained(tiny_reasoner_path(), dtype=torch.float32)
    responses = make_responses([4, 4, 4, 2, 2, 2], [9, 7, 12, 5, 1, 8])
    verdicts = judged(responses, [0, 0, 0, 1, 1, 1])
    config = InfluenceConfig(enable=True, projection_dim_factor=factor, **knobs)
    groups = [
        group
        for group in prompt_groups(verdicts.groups.tolist(), verdicts.correct.tolist())
        if len(set(group.accepted)) == 2
    ]
    assert groups
    on_device = captured(copy.deepcopy(model).to("cuda"), responses, verdicts, config)
    assert {u.dtype for batch in on_device.captured for u in batch.u.values()} == {torch.bfloat16}
    oracle = InfluenceTracer(model, replace(config, factor_dtype="float64"))
    oracle.take([on_the_cpu_in_float64(batch, on_device) for batch in on_device.captured])
    expected = oracle.scores(groups, torch.float64)
    found = on_device.scores(groups)
    assert found.keys() == expected.keys()
    for group in groups:
        largest = max(float(expected[row].abs().max()) for row in group.rows)
        for row in group.rows:
            assert float((found[row] - expected[row]).abs().max()) < tolerance * largest


def test_scoring_asks_nothing_of_the_device_before_the_scores_are_read(make_responses, judged):
    model = AutoModelForCausalLM.from_pretrained(tiny_reasoner_path(), dtype=torch.float32).to("cuda")
    responses = make_responses([4, 4, 4, 2, 2, 2], [9, 7, 12, 5, 1, 8])
    verdicts = judged(responses, [0, 0, 0, 1, 1, 1])
    config = InfluenceConfig(enable=True, projection_dim_factor=4)
    for attempt in range(2):  # the first one draws the projections and warms up the libraries
        tracer = captured(model, responses, verdicts, config)
        scorer = Scorer(tracer.modules, config, tracer.counters, tracer._stopwatch, CUDA, torch.float32)
        torch.cuda.set_sync_debug_mode("error" if attempt else "default")
        try:
            bundles = make_bundles(
                prompt_groups(verdicts.groups.tolist(), verdicts.correct.tolist()),
                tracer.captured,
                tracer.modules,
                config,
                Exchange(),
                CUDA,
                torch.float32,
            )
            scores = [part for bundle in bundles for part in scorer.scores(bundle)]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert all(part.isfinite().all() for part in scorer.read(scores, torch.float32))


def test_a_group_with_a_gradient_that_is_not_finite_does_not_touch_the_others(make_responses, judged):
    model = AutoModelForCausalLM.from_pretrained(tiny_reasoner_path(), dtype=torch.float32).to("cuda")
    responses = make_responses([4, 4, 4, 2, 2, 2], [9, 7, 12, 5, 1, 8])
    verdicts = judged(responses, [0, 0, 0, 1, 1, 1])
    config = InfluenceConfig(enable=True, projection_dim_factor=4)
    groups = [
        Group(g.uid, g.rows, (True, False, True))
        for g in prompt_groups(verdicts.groups.tolist(), verdicts.correct.tolist())
    ]
    clean = captured(model, responses, verdicts, config).scores(groups)
    tracer = captured(model, responses, verdicts, config)
    name = tracer.modules[0].name
    first = tracer.captured[0]
    first.u[name][first.positions[0][0]] = torch.inf
    found = tracer.scores(groups)
    assert all(found[row].isnan().all() for row in groups[0].rows)
    for row in groups[1].rows:
        torch.testing.assert_close(
            found[row], clean[row], rtol=1e-3, atol=1e-3 * float(clean[row].abs().max())
        )
    assert tracer.counters.debug_nonfinite_groups == 1


def test_a_run_in_bfloat16_leaves_whole_traces(tmp_path):
    config = compose(
        [
            "engine.device=cuda",
            "data.val_max_samples=16",
            "trainer.total_training_steps=3",
            f"trainer.default_local_dir={tmp_path / 'run'}",
        ]
    )
    make_run(config, Console(file=io.StringIO())).execute()
    for kind in ("entropy_trace", "influence_trace"):
        report = check_trace(tmp_path / "run" / kind)
        assert report.whole and len(report.steps) == 3
