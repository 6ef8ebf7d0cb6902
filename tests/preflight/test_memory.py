"""The memory estimate against what was measured: the CPU's allocator here, an H200's in recorded runs."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen2Config, Qwen2ForCausalLM

from archer.config import compose
from archer.config.actor import actor_config
from archer.config.root import TrainConfig
from archer.data.prompts import Prompt
from archer.engines.local.loss import Experience
from archer.engines.local.update import Updater
from archer.generation.batch import Responses, RolloutLimits
from archer.generation.config import ModelConfig
from archer.generation.device import Compute
from archer.generation.head import CHUNK_ELEMENTS
from archer.generation.judge import Judged
from archer.generation.lora import attach, lora_config
from archer.generation.model import SamplingWeights
from archer.generation.policy import Policy
from archer.generation.rollout import Rollout
from archer.generation.sampling import SampleStreams, SamplingParams
from archer.preflight import memory
from archer.preflight.machine import checkpoint_bytes, kept_checkpoints, trace_bytes
from archer.preflight.memory import (
    GIB,
    Demand,
    at_head_bytes,
    cache_bytes,
    check_token_kernel,
    decoding_bytes,
    local_demand,
    traced_tokens,
    verl_demand,
)
from archer.preflight.model import ModelFacts, ModelShape, shape_of, with_adapters
from archer.rewards import RewardResult
from archer.trace.files import MANIFEST
from archer.trace.schema import TraceStep
from archer.trace.writer import TraceWriter

ROOT = Path(__file__).parents[2]
TOLERANCE = 0.15  # of a measured peak
PROMPT, RESPONSE, ROWS, MICRO_BATCHES = 16, 112, 8, 2
CPU = Compute(torch.device("cpu"), torch.float32)


def peak_bytes(work: Callable[[], object]) -> int:
    """Most memory that tensors made by `work` held at a time, by the allocator's own account."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def model_of(vocabulary: int, checkpointing: bool = False) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config).eval()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    return model


def prompts_of(vocabulary: int, count: int) -> tuple[Prompt, ...]:
    ids = torch.randint(1, vocabulary, (count, PROMPT)).tolist()
    return tuple(Prompt(i, (), tuple(row), "test", "1", {}) for i, row in enumerate(ids))


def experience_of(vocabulary: int) -> Experience:
    mask = torch.ones(ROWS, RESPONSE, dtype=torch.bool)
    responses = Responses(
        prompts_of(vocabulary, ROWS),
        torch.randint(1, vocabulary, (ROWS, RESPONSE)),
        mask,
        torch.zeros(ROWS, RESPONSE),
        torch.ones(ROWS, dtype=torch.bool),
    )
    results = tuple(RewardResult.of_verdict(row % 2 == 0) for row in range(ROWS))
    judged = Judged(responses, torch.zeros(ROWS, dtype=torch.long), results, torch.zeros(ROWS))
    advantages = torch.where(torch.arange(ROWS) % 2 == 0, 1.0, -1.0)[:, None].expand(ROWS, RESPONSE)
    return Experience(judged, advantages.clone(), None, None)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("vocabulary", [512, 4096])  # the peak is inside a layer, and at the head
def test_an_update_takes_the_memory_that_was_estimated(vocabulary, checkpointing):
    model = model_of(vocabulary, checkpointing)
    tokens = ROWS * (PROMPT + RESPONSE) // MICRO_BATCHES
    options = actor_config(ppo_mini_batch_size=ROWS, ppo_max_token_len_per_gpu=tokens)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    updater = Updater(Policy(model, CPU, 1.0), optimizer, options, RESPONSE)
    experience = experience_of(vocabulary)
    updater.update(experience, 1)  # makes the optimizer's moments
    measured = peak_bytes(lambda: updater.update(experience, 2))
    shape = shape_of(model.config, model)
    inside = memory.inside_layer_bytes(shape, tokens, 4, checkpointing)
    estimate = (
        memory.state_bytes(shape)[1]
        + memory.kept_bytes(shape, tokens, 4, 4, checkpointing)
        + max(inside, at_head_bytes(shape, tokens, 4))
    )
    assert estimate == pytest.approx(measured, rel=TOLERANCE)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("vocabulary", [512, 4096])
def test_an_update_of_adapters_takes_the_memory_that_was_estimated(vocabulary, checkpointing):
    model = model_of(vocabulary, checkpointing)
    settings = ModelConfig(path="x/y", lora_rank=16)
    facts = with_adapters(ModelFacts("x/y", model.config, model, shape_of(model.config, model)), settings)
    shape, adapters = facts.shape, facts.adapters
    trained = list(attach(model, lora_config(settings)).named_parameters().values())
    assert adapters.trained == sum(p.numel() for p in trained)
    tokens = ROWS * (PROMPT + RESPONSE) // MICRO_BATCHES
    options = actor_config(ppo_mini_batch_size=ROWS, ppo_max_token_len_per_gpu=tokens)
    updater = Updater(
        Policy(model, CPU, 1.0), torch.optim.AdamW(trained, lr=1e-6, fused=True), options, RESPONSE
    )
    experience = experience_of(vocabulary)
    updater.update(experience, 1)
    measured = peak_bytes(lambda: updater.update(experience, 2))
    inside = memory.inside_layer_bytes(shape, tokens, 4, checkpointing, adapters)
    estimate = (
        4 * adapters.trained
        + memory.kept_bytes(shape, tokens, 4, 4, checkpointing, adapters)
        + max(inside, at_head_bytes(shape, tokens, 4, trained=False))
    )
    assert estimate == pytest.approx(measured, rel=TOLERANCE)


def test_sampling_takes_the_memory_that_was_estimated():
    vocabulary, groups, n = 2048, 4, 4
    model = model_of(vocabulary)
    rollout = Rollout(SamplingWeights(model, CPU), CPU, RolloutLimits(RESPONSE, groups * n), (vocabulary,), 0)
    params = SamplingParams(do_sample=True, temperature=1.0, top_p=1.0, top_k=-1)
    prompts = prompts_of(vocabulary, groups)
    measured = peak_bytes(lambda: rollout.generate(prompts, n, params, SampleStreams(0)))
    shape = shape_of(model.config, model)
    positions = -(-(PROMPT + RESPONSE) // 64) * 64
    cached = cache_bytes(shape, groups * n, positions, 4)
    drawing = decoding_bytes(shape, groups * n, groups * PROMPT, 4, nucleus=False)
    assert cached < measured
    assert cached + drawing == pytest.approx(measured, rel=0.25)


def updating(demand: Demand) -> float:
    """GiB of an update alone: what a benchmark without sampling holds on its GPU."""
    left_out = ("program", "KV cache", "copy that samples")
    return sum(p.bytes for p in demand.parts if p.updating and p.name not in left_out) / GIB


def benchmark_update(
    rows: int, length: int, micro_batch: int, influence: bool, *settings: str
) -> TrainConfig:
    """The update that a benchmark measures, in micro-batches of as many rows as it really has."""
    return compose(
        [
            *("recipe=base", "actor_rollout_ref.model.path=x/y", "data.train_files=[x]"),
            f"data.train_batch_size={rows // 8}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={rows // 8}",
            *("actor_rollout_ref.rollout.n=8", "data.max_prompt_length=11"),
            f"data.max_response_length={length}",
            f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={micro_batch * (11 + length)}",
            f"trainer.influence_trace.enable={influence}",
            *settings,
        ]
    )


@pytest.mark.parametrize(
    ("checkpointing", "influence", "measured"),
    [(True, False, 30.689), (True, True, 32.641), (False, False, 71.040), (False, True, 72.669)],
)
def test_an_update_of_1_5b_on_an_h200(facts, checkpointing, influence, measured):
    """benchmarks/tracing_overhead.py --model 1.5b --rows 64 --length 1024 --budget 16384 [--checkpointing]"""
    saves = f"actor_rollout_ref.model.enable_gradient_checkpointing={checkpointing}"
    config = benchmark_update(64, 1024, 13, influence, saves)
    demand = local_demand(config, facts("Qwen/Qwen2.5-1.5B-Instruct"), "cuda")
    assert updating(demand) == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize(
    ("rows", "length", "micro_batch", "influence", "measured"),
    [
        (64, 1024, 13, False, 72.673),
        (64, 1024, 13, True, 74.679),
        (256, 2048, 7, False, 76.128),
        (256, 2048, 7, True, 79.655),
    ],
)
def test_an_update_of_1_5b_in_verl_on_an_h200(facts, rows, length, micro_batch, influence, measured):
    """benchmarks/verl_overhead.py --model 1.5b --rows ROWS --length LENGTH --budget 16384"""
    config = benchmark_update(
        rows,
        length,
        micro_batch,
        influence,
        "engine=verl",
        "actor_rollout_ref.model.enable_gradient_checkpointing=False",
    )
    demand = verl_demand(config, facts("Qwen/Qwen2.5-1.5B-Instruct"), None)
    assert updating(demand) == pytest.approx(measured, rel=0.05)


def test_a_whole_run_of_smollm2_on_an_h200(facts):
    """512 responses a step, both traces on; perf/max_memory_allocated_gb of its last step."""
    config = compose(
        [
            *(
                "recipe=base",
                "actor_rollout_ref.model.path=x/y",
                "data.train_files=[x]",
                "data.val_files=[x]",
            ),
            *("data.train_batch_size=32", "actor_rollout_ref.actor.ppo_mini_batch_size=32"),
            *("actor_rollout_ref.rollout.n=16", "actor_rollout_ref.rollout.max_num_seqs=512"),
            *("data.max_prompt_length=96", "data.max_response_length=128"),
            "trainer.influence_trace.enable=True",
        ]
    )
    demand = local_demand(config, facts("HuggingFaceTB/SmolLM2-135M-Instruct"), "cuda")
    parts = {part.name: part.bytes for part in demand.parts}
    beside = parts["program"] + parts["recorded graphs"]  # reserved, but not allocated
    assert (demand.peak - beside) / GIB == pytest.approx(9.778, rel=0.10)


def test_the_head_runs_in_the_chunks_that_the_estimate_assumes():
    assert memory.CHUNK_ELEMENTS == CHUNK_ELEMENTS


def test_published_sizes_are_counted_without_weights(facts):
    counted = facts("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B").shape
    assert counted == ModelShape(1_777_088_000, 28, 1536, 1536, 256, 8960, 151936)


def test_a_reference_and_sharding_change_the_state_as_they_should(facts):
    model = facts("Qwen/Qwen3-0.6B")
    plain = compose(["recipe=qwen3_0.6b_math", "engine=verl"])
    eight = compose(["recipe=qwen3_0.6b_math", "engine=verl", "trainer.n_gpus_per_node=8"])
    with_kl = compose(["recipe=qwen3_0.6b_math", "actor_rollout_ref.actor.use_kl_loss=True"])

    def part(demand: Demand, name: str) -> int:
        return next(p.bytes for p in demand.parts if p.name == name)

    assert part(verl_demand(plain, model, None), "weights") == 4 * model.shape.parameters
    assert part(verl_demand(eight, model, None), "optimizer") == model.shape.parameters // 8 * 8
    assert part(local_demand(with_kl, model, "cuda"), "reference") == 4 * model.shape.parameters
    deferred = "actor_rollout_ref.actor.fsdp_config.use_no_sync_for_gradient_accumulation=True"
    whole = compose(["recipe=qwen3_0.6b_math", "engine=verl", "trainer.n_gpus_per_node=8", deferred])
    assert part(verl_demand(eight, model, None), "gradients") == model.shape.parameters // 8 * 4
    assert part(verl_demand(whole, model, None), "gradients") == model.shape.parameters // 8 * 4 * 8


def test_a_critic_counts_with_its_weights_and_moments_unless_they_are_offloaded(facts):
    model = facts("Qwen/Qwen3-0.6B")
    gae = ["recipe=qwen3_0.6b_math", "engine=verl", "algorithm.adv_estimator=gae"]

    def critic(*overrides: str) -> int:
        demand = verl_demand(compose([*overrides]), model, None)
        return next(part.bytes for part in demand.parts if part.name == "critic")

    assert critic(*gae[:2]) == 0
    assert critic(*gae) == 12 * model.shape.parameters
    assert critic(*gae, "critic.fsdp.optimizer_offload=True") == 4 * model.shape.parameters
    assert critic(*gae, "critic.model.fsdp_config.param_offload=True") == 8 * model.shape.parameters


def test_a_hessian_over_tokens_is_warned_of_where_its_solve_is_large(facts):
    model = facts("Qwen/Qwen3-0.6B")
    traced = ["recipe=qwen3_0.6b_math", "trainer.influence_trace.enable=True"]
    token = [*traced, "trainer.influence_trace.hessian_source=token"]
    large = [*token, "trainer.influence_trace.solver=dual", "data.max_response_length=2048"]
    assert check_token_kernel(compose(traced), model) == []
    (warning,) = check_token_kernel(compose(large), model)
    assert warning.level == "note"
    assert "hessian_source=token needs up to" in warning.text
    assert check_token_kernel(compose([*large[:-2], "trainer.influence_trace.solver=primal"]), model) == []


def test_factors_are_counted_for_as_long_as_they_are_kept():
    traced = ["recipe=qwen2.5_1.5b_math_influence_trace"]
    prompt = compose(traced).data.max_prompt_length
    whole = 64 * 16 * (8192 + prompt)  # prompts are kept beside long responses
    together = [*traced, "trainer.influence_trace.accepted_rejected_scope=all_selected"]
    assert traced_tokens(compose(together)) == whole
    short = compose([*together, "data.max_response_length=700"])
    assert traced_tokens(short) == 64 * 16 * (700 + 300)  # and never more than 3 of 10 lines
    assert traced_tokens(compose(traced)) == 16 * (8192 + prompt)  # scored group by group,
    assert traced_tokens(compose([*traced, "data.max_response_length=2048"])) == 8 * 16384  # or by portions,
    on_four = compose([*traced, "engine=verl"])
    assert traced_tokens(on_four, ranks=4) == 4 * 8 * 16384  # of every rank
    limited = compose([*together, "trainer.influence_trace.max_prompts_per_step=2"])
    assert traced_tokens(limited) == whole // 32


def test_disk_counts_kept_checkpoints_and_compressed_traces(facts):
    config = compose(["recipe=qwen2.5_1.5b_math_entropy_trace", "trainer.max_actor_ckpt_to_keep=2"])
    assert kept_checkpoints(config, 100) == 3  # two, and the one being written
    assert kept_checkpoints(compose(["recipe=qwen3_4b_math", "trainer.save_freq=-1"]), 500) == 1
    shape = facts("Qwen/Qwen3-0.6B").shape
    assert checkpoint_bytes(shape, "local") == 12 * shape.parameters
    assert trace_bytes(config, 100) == pytest.approx(100 * 64 * 16 * 8192 * 16 * 0.47, rel=1e-6)


@pytest.mark.parametrize("alone", [False, True])
def test_traces_take_no_more_than_the_estimate_when_every_response_is_as_long_as_it_may_get(tmp_path, alone):
    made = runpy.run_path(str(ROOT / "benchmarks" / "trace_writer.py"))
    batch = made["make_batch"](32, 2048, seed=0, off_policy=True, full=True)
    whole = TraceStep.from_batch(**batch)
    kept = {name: value for name, value in batch.items() if name not in ("influence", "advantage")}
    with (
        TraceWriter(tmp_path / "entropy", kind="entropy") as entropy,
        TraceWriter(tmp_path / "influence", kind="influence", beside=entropy) as influence,
    ):
        entropy.write(1, TraceStep.from_batch(**kept))
        influence.write(1, whole, refers=not alone)
    written = sum(
        json.loads((tmp_path / kind / MANIFEST).read_text())["bytes"] for kind in ("entropy", "influence")
    )
    config = compose(
        [
            *("recipe=base", "actor_rollout_ref.model.path=any", "data.train_files=any.jsonl"),
            *("data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
            *("actor_rollout_ref.rollout.n=16", "data.max_response_length=2048"),
            *("trainer.entropy_trace.enable=True", "trainer.influence_trace.enable=True"),
            f"trainer.influence_trace.self_contained={alone}",
        ]
    )
    assert 0.8 * trace_bytes(config, 1) < written < 1.05 * trace_bytes(config, 1)


def sizes(demand) -> dict[str, tuple[float, bool, bool]]:
    return {part.name: (part.bytes, part.sampling, part.updating) for part in demand.parts}


@pytest.mark.parametrize("gives_back", [True, False])
def test_vllm_in_the_same_process_takes_its_share_instead_of_a_cache_of_the_models_own(facts, gives_back):
    rollout = "actor_rollout_ref.rollout"
    config = compose(
        [
            f"{rollout}.name=vllm",
            f"{rollout}.gpu_memory_utilization=0.3",
            f"{rollout}.free_cache_engine={gives_back}",
        ]
    )
    found = sizes(local_demand(config, facts("Qwen/Qwen2.5-1.5B-Instruct"), "cuda", 80 * GIB))
    assert found["vLLM (weights and KV cache)"] == (24 * GIB, True, not gives_back)
    assert not {"copy that samples", "KV cache", "recorded graphs"} & set(found)


def test_on_a_gpu_the_cache_has_room_for_all_slots_whatever_a_step_samples(facts):
    few = ["data.val_files=[]", "data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2"]
    model = facts("Qwen/Qwen2.5-1.5B-Instruct")
    for device, ratio in (("cuda", 257 / 65), ("cpu", 1.0)):
        caches = [
            sizes(
                local_demand(
                    compose([*few, f"actor_rollout_ref.rollout.max_num_seqs={slots}"]), model, device
                )
            )["KV cache"][0]
            for slots in (256, 64)
        ]
        assert caches[0] / caches[1] == pytest.approx(ratio)
