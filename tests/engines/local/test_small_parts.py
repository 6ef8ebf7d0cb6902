"""Token sums, random streams, rollout metrics, device choice, the sampling copy."""

import pytest
import torch

from archer.config.trainer import EngineConfig
from archer.errors import ArcherError
from archer.generation.device import Compute, available_cores, set_up
from archer.generation.model import SamplingWeights
from archer.generation.sampling import stream, stream_seed
from archer.training.metrics import Timings, TokenSums, rollout_difference

CPU = torch.device("cpu")


def test_the_mean_is_over_all_tokens_not_over_micro_batches():
    sums = TokenSums()
    sums.add("x", torch.tensor([[1.0, 2.0, 99.0]]), torch.tensor([[True, True, False]]))
    sums.add("x", torch.tensor([[7.0], [float("nan")]]), torch.tensor([[True], [False]]))
    sums.add("y", torch.tensor([[4.0]], requires_grad=True), torch.tensor([[True]]))
    assert sums.means() == pytest.approx({"x": 10 / 3, "y": 4.0})


def test_a_mean_over_no_token_is_left_out():
    sums = TokenSums()
    sums.add("x", torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.bool))
    assert sums.means() == {}
    sums.add("x", torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool))
    assert sums.means() == {"x": 1.0}


def test_a_stream_depends_on_every_part_of_its_name_and_on_nothing_else():
    torch.manual_seed(0)
    names = [
        (42, "rollout", 1, 0),
        (42, "rollout", 0, 1),
        (42, "rollout", 1, 1),
        (43, "rollout", 1, 0),
        (42, "val"),
    ]
    seeds = [stream_seed(*name) for name in names]
    assert len(set(seeds)) == len(names) and all(0 <= seed < 2**63 for seed in seeds)
    first = torch.rand(5, generator=stream(CPU, *names[0]))
    torch.manual_seed(1)
    assert torch.equal(first, torch.rand(5, generator=stream(CPU, *names[0])))
    assert stream_seed(42, "rollout", 1, 0) == 1241230254898001872, "old runs must resume on the same stream"


def test_the_difference_of_sampler_and_training_is_taken_at_response_tokens(make_responses):
    responses = make_responses([2, 2], [3, 1])
    trained = responses.log_probs + torch.tensor([[0.1, 0.0, -0.2], [0.3, 50.0, 50.0]])
    metrics = rollout_difference(responses.log_probs, trained, responses.mask)
    pairs = [
        (float(responses.log_probs[r, t]), float(trained[r, t])) for r, t in responses.mask.nonzero().tolist()
    ]
    logs = [abs(a - b) for a, b in pairs]
    probs = [abs(torch.tensor(a).exp() - torch.tensor(b).exp()).item() for a, b in pairs]
    assert metrics["training/rollout_log_probs_diff_mean"] == pytest.approx(sum(logs) / 4, rel=1e-5)
    assert metrics["training/rollout_log_probs_diff_max"] == pytest.approx(0.3, rel=1e-5)
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(sum(probs) / 4, rel=1e-5)
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(max(probs), rel=1e-5)


def test_phases_add_up_under_verls_names():
    timings = Timings()
    for _ in range(2):
        with timings("gen"):
            pass
    assert list(timings.metrics()) == ["timing_s/gen"] and timings.metrics()["timing_s/gen"] > 0


def test_the_run_uses_the_threads_it_is_told_or_the_cores_it_has():
    before = torch.get_num_threads()
    try:
        assert set_up(EngineConfig(device="cpu", threads=2)) == Compute(CPU, torch.float32)
        assert torch.get_num_threads() == 2
        set_up(EngineConfig(device="cpu"))
        assert torch.get_num_threads() == available_cores()
    finally:
        torch.set_num_threads(before)


def test_asking_for_a_device_that_is_not_there_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ArcherError, match=r"engine\.device=cuda"):
        set_up(EngineConfig(device="cuda", threads=1))


def test_in_float32_the_policy_itself_samples(qwen2, compute):
    model = qwen2(tied=True)
    assert SamplingWeights(model, compute).model is model


@pytest.mark.parametrize("tied", [True, False])
def test_in_bfloat16_a_copy_samples_that_follows_the_policy_when_refreshed(qwen2, tied):
    model = qwen2(tied=tied)
    weights = SamplingWeights(model, Compute(CPU, torch.bfloat16))
    assert weights.model is not model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    weights.refresh()
    copies, originals = dict(weights.model.named_parameters()), dict(model.named_parameters())
    assert copies.keys() == originals.keys()
    for name, copied in copies.items():
        assert not copied.requires_grad
        assert torch.equal(copied, originals[name].bfloat16())
    assert all(p.dtype == torch.float32 and p.requires_grad for p in model.parameters())


def test_the_bfloat16_copy_keeps_the_rotary_frequencies_exact(qwen2):
    """Rounded to bfloat16 they turn a late position by another angle than in training."""
    model = qwen2(tied=True)
    copied = SamplingWeights(model, Compute(CPU, torch.bfloat16)).model
    for name, buffer in model.named_buffers():
        assert torch.equal(copied.get_buffer(name), buffer) and copied.get_buffer(name).dtype == buffer.dtype
