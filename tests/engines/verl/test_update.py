"""verl's real engine on a fixed batch: one rank and two give the local engine's influence and metrics."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from archer.engines.local.credit import LocalCredit
from archer.engines.local.influence import InfluenceRecorder
from archer.engines.local.update import Updater
from archer.engines.verl.checkpoints import check_adapter
from archer.errors import ArcherError
from archer.evaluation.choice import choose_model, model_settings
from archer.generation.adapter_files import load_adapted
from archer.generation.batch import micro_batch
from archer.generation.config import ModelConfig
from archer.generation.device import Compute
from archer.generation.model import load_tokenizer
from archer.generation.policy import Policy
from archer.runs.checkpoint import Checkpoint
from archer.training.credit import TokenCredit

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from fixed_batch import (  # noqa: E402
    ALL,
    BF16,
    CANARY,
    CASES,
    CREDIT,
    CREDIT_MODES,
    CREDIT_TEMPERATURE,
    FUSED,
    LONGEST,
    LOSSES,
    LR,
    MODEL,
    Case,
    actor,
    advantages,
    experience,
    responses,
)

pytestmark = pytest.mark.slow
torch.set_num_threads(1)


def policy() -> Policy:
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    return Policy(model, Compute(torch.device("cpu"), torch.float32), 1.0)


@pytest.fixture(scope="module")
def given():
    """Old log-probs and entropies: of the policy itself, and of another one, far from it."""
    batch = responses()
    with torch.no_grad():
        stats = policy().token_stats(micro_batch(batch, range(len(batch)), torch.device("cpu")))
    noise = torch.randn(stats.log_probs.shape, generator=torch.Generator().manual_seed(1))
    away = torch.where(batch.mask, stats.log_probs + 0.3 * noise, 0.0)
    return {
        "on": {"old_log_probs": stats.log_probs, "entropy": stats.entropy},
        "off": {"old_log_probs": away, "entropy": stats.entropy},
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def outputs(given, folder):
    """{number of ranks: what each rank found}, from three processes side by side."""
    torch.save(given, folder / "given.pt")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = {}
    for ranks in (1, 2):
        for rank in range(ranks):
            arguments = [str(rank), str(ranks), str(folder / f"store{ranks}"), str(folder / "given.pt")]
            out = folder / f"{ranks}-{rank}.pt"
            log = (folder / f"{ranks}-{rank}.log").open("w")
            processes[ranks, rank] = (
                subprocess.Popen(
                    [sys.executable, str(HERE / "rank.py"), *arguments, str(out)],
                    cwd=HERE.parents[2],
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                ),
                out,
            )
    found = {1: [], 2: []}
    for (ranks, rank), (process, out) in processes.items():
        code = process.wait(timeout=600)
        assert code == 0, (folder / f"{ranks}-{rank}.log").read_text()[-3000:]
        found[ranks].append(torch.load(out, weights_only=False))
    return found


def local_update(case: Case, given):
    the_policy = policy()
    recorder = InfluenceRecorder(the_policy.model, case.influence)
    optimizer = torch.optim.AdamW(the_policy.model.parameters(), lr=LR, weight_decay=0.01)
    updater = Updater(the_policy, optimizer, actor(case), LONGEST, recorder=recorder)
    old = given["off" if case.off_policy else "on"]
    step = experience(old["old_log_probs"], old["entropy"])
    return updater.update(step, step=1, traced=True), recorder.influence.numpy()


def gathered(outputs, case: str) -> np.ndarray:
    """The ranks' scores as [N, L]; a row that two ranks scored would be an error."""
    influence = np.full(responses().mask.shape, np.nan, dtype=np.float32)
    for found in outputs:
        for row, scores in found[case]["trace"].scores.items():
            assert np.isnan(influence[row]).all()
            influence[row, : len(scores)] = scores
    return influence


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest deviation over all tokens, relative to the largest score."""
    assert (np.isnan(found) == np.isnan(expected)).all()
    return float(np.nanmax(np.abs(found - expected)) / np.nanmax(np.abs(expected)))


@pytest.mark.parametrize("case", [*CASES, *FUSED])
@pytest.mark.parametrize("ranks", [1, 2])
def test_influence_is_the_local_engines(outputs, given, ranks, case):
    _, expected = local_update(ALL[case], given)
    assert np.isfinite(expected).sum() == int(responses().mask.sum()) - int(responses().mask[8:12].sum())
    # After a step of Adam the weights themselves differ by what rounding makes of tiny gradients.
    tolerance = 2e-5 if ALL[case].mini_batches == 1 else 2e-4
    assert relative_error(gathered(outputs[ranks], case), expected) < tolerance


@pytest.mark.parametrize(
    "case",
    [
        "packed",
        "two mini-batches",
        "another objective, second backward",
        "portions",
        "portions of two mini-batches",
        *LOSSES,
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_update_is_the_local_engines(outputs, given, ranks, case):
    result, _ = local_update(CASES[case], given)
    found = [rank[case] for rank in outputs[ranks]]
    for rank in found:
        assert sum(rank["norms"]) / len(rank["norms"]) == pytest.approx(
            result.metrics["actor/grad_norm"], rel=1e-4
        )
    loss = sum(rank["terms"]["pg_loss"] for rank in found) / CASES[case].mini_batches
    assert loss == pytest.approx(result.metrics["actor/pg_loss"], rel=1e-4, abs=1e-7)
    for name in ("pg_clipfrac", "ppo_kl"):
        assert mean_over_ranks(found, name) == pytest.approx(
            result.metrics[f"actor/{name}"], rel=1e-4, abs=1e-6
        )


def local_credit(mode: str) -> np.ndarray:
    """The influence that the local engine's token credit reads."""
    temperature = CREDIT_TEMPERATURE if mode == "head" else 1.0
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    the_policy = Policy(model, Compute(torch.device("cpu"), torch.float32), temperature)
    credit = LocalCredit(TokenCredit(CREDIT_MODES[mode], seed=0), the_policy, actor(Case()), None)
    batch = responses()
    zeros = torch.zeros(batch.mask.shape)
    step = credit.step(experience(zeros, zeros).judged, 1)
    step.forward() if mode == "head" else step.pass_of_its_own()
    return step.scores.numpy()


@pytest.mark.parametrize("case", CREDIT)
@pytest.mark.parametrize("mode", CREDIT_MODES)
@pytest.mark.parametrize("ranks", [1, 2])
def test_influence_for_token_credit_is_the_local_engines(outputs, ranks, mode, case):
    expected = local_credit(mode)
    assert np.isfinite(expected).sum() == int(responses().mask.sum()) - int(responses().mask[8:12].sum())
    found = np.full(expected.shape, np.nan, dtype=np.float32)
    for rank in outputs[ranks]:
        for row, scores in rank[case][mode].items():
            assert np.isnan(found[row]).all()
            found[row, : len(scores)] = scores
    assert relative_error(found, expected) < 2e-5


@pytest.mark.parametrize("case", ["packed", "two mini-batches"])
def test_the_entropy_reported_is_that_of_the_policy_that_sampled(outputs, given, case):
    """verl's update computes no entropies unless they are in the loss."""
    expected = float(given["on"]["entropy"][responses().mask].mean())
    for ranks in (1, 2):
        found = [rank[case] for rank in outputs[ranks]]
        assert mean_over_ranks(found, "entropy") == pytest.approx(expected, rel=1e-5)


def mean_over_ranks(found, name: str) -> float:
    total = sum(rank["sums"][name][0] for rank in found)
    return total / sum(rank["sums"][name][1] for rank in found)


def test_groups_that_cross_ranks_are_counted_once(outputs):
    metrics = [rank["packed"]["trace"].metrics for rank in outputs[2]]
    assert [counts["influence_trace/debug_cross_rank_groups"] for counts in metrics] == [3, 0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_gradients_are_reduced_once_a_mini_batch(outputs, ranks):
    """verl is told to here; the parts of a mini-batch are no reason to do it more often."""
    for case, mini_batches in (("packed", 1), ("portions", 1), ("portions of two mini-batches", 2)):
        for rank in outputs[ranks]:
            reductions = rank[case]["reductions"]
            assert len(reductions) == 8 // ranks
            each = len(reductions) // mini_batches
            assert reductions == ([False] * (each - 1) + [True]) * mini_batches, case


@pytest.mark.parametrize("ranks", [1, 2])
def test_factors_are_kept_for_a_portion_at_a_time(outputs, ranks):
    """Groups 0 to 3 of four rows each; the responses of group 2 are all wrong, so it is not traced."""
    by_group = [{0, 1, 2, 3}, {4, 5, 6, 7}, set(), {12, 13, 14, 15}]
    for case, expected in (
        ("packed", [set.union(*by_group)]),
        ("portions", by_group),
        ("portions of two mini-batches", by_group),
        ("portions of two groups, dynamic batch size", [by_group[0] | by_group[1], by_group[3]]),
    ):
        kept = [rank[case]["kept"] for rank in outputs[ranks]]
        found = [set().union(*(rank[number] for rank in kept)) for number in range(len(kept[0]))]
        assert found == expected, case


def test_the_second_backward_is_one_on_all_ranks(outputs):
    counts = [
        rank["another objective, second backward"]["trace"].metrics["influence_trace/debug_second_backwards"]
        for rank in outputs[2]
    ]
    assert counts[0] == counts[1] > 0


def test_bfloat16_keeps_the_order_of_scores(outputs, given):
    _, expected = local_update(ALL[BF16], given)
    for ranks in (1, 2):
        found = gathered(outputs[ranks], BF16)
        valid = np.isfinite(expected)
        a, b = found[valid].argsort().argsort(), expected[valid].argsort().argsort()
        assert np.corrcoef(a, b)[0, 1] > 0.98


def test_adapters_are_traced_in_place_of_frozen_weights(outputs):
    one, two = gathered(outputs[1], "lora"), gathered(outputs[2], "lora")
    assert np.isfinite(one).any()
    assert relative_error(two, one) < 2e-5


@pytest.mark.parametrize("ranks", [1, 2])
def test_adapters_of_a_checkpoint_make_the_model_that_the_rollout_is_given(outputs, folder, ranks):
    checkpoint = folder / f"adapters{ranks}" / "global_step_1"
    chosen = choose_model(str(checkpoint))
    config = model_settings(chosen)
    assert (config.path, config.lora_rank) == (MODEL, ALL["lora"].lora_rank)
    assert load_tokenizer(config).vocab_size == load_tokenizer(ModelConfig(path=MODEL)).vocab_size
    merged, _ = load_adapted(config, Compute(torch.device("cpu"), torch.float32), trains=False)
    own, given = merged.state_dict(), outputs[ranks][0]["adapters"]
    plain = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).state_dict()
    adapted = {name for name in own if name.endswith(("q_proj.weight", "v_proj.weight"))}
    for name, weight in given.items():
        torch.testing.assert_close(own[name], weight.float(), rtol=2**-8, atol=1e-6)  # verl's are bfloat16
        assert torch.equal(own[name], plain[name]) != (name in adapted)
    assert adapted <= given.keys()


def test_a_checkpoint_with_adapters_is_resumed_with_the_same_alone(outputs, folder):
    checkpoint = Checkpoint(folder / "adapters2" / "global_step_1", 1)
    same = ModelConfig(path=MODEL, lora_rank=4, lora_alpha=16)
    check_adapter(checkpoint, same)
    for other, named in (
        (replace(same, lora_rank=8), "lora_rank=4"),
        (replace(same, lora_rank=0), "lora_rank=4"),
    ):
        with pytest.raises(ArcherError, match=named):
            check_adapter(checkpoint, other)
    with pytest.raises(ArcherError, match="lora_alpha=16"):
        check_adapter(checkpoint, replace(same, lora_alpha=32))
    with pytest.raises(ArcherError, match="lora_rank=0"):
        check_adapter(Checkpoint(folder, 1), same)
    meta = checkpoint.path / "actor" / "lora_train_meta.json"
    meta.write_text("[")
    with pytest.raises(ArcherError, match=r"lora_train_meta\.json is damaged"):
        check_adapter(checkpoint, same)


def identity(outputs, case: str, given, ranks: int) -> tuple[float, float]:
    """(slope, relative error) of the captured gradient of each token's logit against -A (1 - p) dp / N."""
    mask = responses().mask
    p = given["on"]["old_log_probs"].exp()
    wanted = -advantages(mask) * (1 - p) / int(mask.sum())
    measured = {key: value for rank in outputs[ranks] for key, value in rank[case].items()}
    got = np.array(list(measured.values()))
    expected = np.array([float(wanted[key]) for key in measured])
    slope = float(got @ expected / (expected @ expected))
    return slope, float(np.linalg.norm(got - slope * expected) / np.linalg.norm(got))


@pytest.mark.parametrize("case", [name for name in CANARY if not CANARY[name].shifted])
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_gradient_is_that_of_its_row_and_token(outputs, given, ranks, case):
    slope, error = identity(outputs, case, given, ranks)
    assert slope == pytest.approx(ranks, rel=1e-5)  # verl multiplies the loss by the number of ranks
    assert error < 1e-5


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_shifted_layout_is_found_out(outputs, given, ranks):
    slope, error = identity(outputs, "canary shifted", given, ranks)
    assert error > 0.5
    assert abs(slope - ranks) > 0.1
