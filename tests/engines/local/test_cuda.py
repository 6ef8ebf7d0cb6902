"""What only a CUDA device shows: compiled decoding, bfloat16 sampling weights, influence on the device.

Skipped elsewhere.
"""

import copy
import io

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from archer.config import compose
from archer.data.builtin import tiny_reasoner_path
from archer.engines.local.batch import micro_batch
from archer.engines.local.device import Compute
from archer.engines.local.rollout import Rollout, RolloutLimits
from archer.engines.local.run import Run
from archer.engines.local.sampling import SamplingParams
from archer.engines.local.tracing import InfluenceRecorder
from archer.engines.local.weights import SamplingWeights
from archer.influence import InfluenceConfig
from archer.trace.check import check_trace

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

STOP = (4, 9, 23)
GREEDY = SamplingParams(do_sample=False)


@pytest.fixture
def cuda() -> Compute:
    return Compute(torch.device("cuda"), torch.float32)


def rollout(model, compute: Compute, compiled: bool, limit: int = 24) -> Rollout:
    return Rollout(model, compute, RolloutLimits(limit, 256, 16), STOP, 0, compile_decoding=compiled)


def texts(responses) -> list[list[int]]:
    return [tokens[mask].tolist() for tokens, mask in zip(responses.tokens, responses.mask, strict=True)]


@pytest.mark.parametrize("lengths", [[5, 5, 5], [3, 9, 1, 5, 9]])
def test_compiled_decoding_gives_the_greedy_responses_of_plain_decoding(
    any_model, cuda, make_prompts, lengths
):
    model, prompts = any_model.to("cuda"), make_prompts(lengths)
    plain = rollout(model, cuda, False).generate(prompts, 2, GREEDY, torch.Generator("cuda"))
    compiled = rollout(model, cuda, True)
    assert compiled._static is not None
    for _ in range(3):  # the first calls warm up and record, later ones replay
        found = compiled.generate(prompts, 2, GREEDY, torch.Generator("cuda"))
        assert texts(found) == texts(plain)
        torch.testing.assert_close(found.log_probs, plain.log_probs, atol=1e-3, rtol=1e-3)


def test_compiled_decoding_follows_the_policy_through_the_bfloat16_copy(qwen2, make_prompts):
    compute = Compute(torch.device("cuda"), torch.bfloat16)
    policy = qwen2(tied=True).to("cuda")
    weights = SamplingWeights(policy, compute)
    compiled, prompts = rollout(weights.model, compute, True), make_prompts([3, 9, 1, 5])
    for _ in range(3):
        found = compiled.generate(prompts, 2, GREEDY, torch.Generator("cuda"))
        expected = rollout(copy.deepcopy(weights.model), compute, False).generate(
            prompts, 2, GREEDY, torch.Generator("cuda")
        )
        same = sum(a == b for a, b in zip(texts(found), texts(expected), strict=True))
        assert same >= 6, "bfloat16 ties may fall either way, but most greedy responses agree"
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        weights.refresh()


@pytest.mark.parametrize("knobs", [{}, {"hessian_source": "token"}, {"grad_offload_to_cpu": True}])
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
        with recorder.capture(batch):
            logits = here(input_ids=batch.input_ids, use_cache=False).logits
            logits.log_softmax(-1)[..., 0].sum().backward()
        recorder.score([0, 1, 2, 3])
        found[device] = recorder.influence
    largest = found["cpu"].nan_to_num().abs().max()
    assert largest > 0
    difference = (found["cuda"] - found["cpu"]).nan_to_num().abs().max()
    assert difference < 1e-3 * largest
    assert torch.equal(found["cuda"].isnan(), found["cpu"].isnan())


def test_a_run_in_bfloat16_leaves_whole_traces(tmp_path):
    config = compose(
        [
            "engine.device=cuda",
            "data.val_max_samples=16",
            "trainer.total_training_steps=3",
            f"trainer.default_local_dir={tmp_path / 'run'}",
        ]
    )
    Run(config, Console(file=io.StringIO())).execute()
    for kind in ("entropy_trace", "influence_trace"):
        report = check_trace(tmp_path / "run" / kind)
        assert report.whole and len(report.steps) == 3
