"""TRL's own trainer with Archer's adapter: the local engine's numbers, and TRL's training as it was."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from fixed import Fixed
from local_side import local_step
from transformers import AutoTokenizer

from archer.data.builtin import tiny_reasoner_path
from archer.trace.check import check_trace
from archer.trace.reader import TraceReader
from archer.trace.schema import TraceStep

pytestmark = pytest.mark.slow

READING = {
    "output_function": "log_prob",
    "exclude_self_response": True,
    "contrastive_agg": "mean",
    "reg_rule": "kernel_trace",
}
WHOLE = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 1}
LIVELY = {"learning_rate": 1e-3, "max_steps": 4}
OFF_POLICY = {
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 2,
    "num_iterations": 2,
    "max_steps": 8,
    "learning_rate": 1e-3,
}
MODULES = {"mode": "influence", "projection_dim": 16, "module_name_filter": ["_proj"]}
RUNS = {
    "reading": {},
    "training loss": {"archer": {"influence": {}}, "args": {"temperature": 0.7}},
    "head, in the update": {"archer": {"credit": {"mode": "nthr"}}, "args": WHOLE},
    "head, ahead": {"archer": {"credit": {"mode": "nthr"}}},
    "modules": {"archer": {"credit": MODULES}},
    "all modules": {"archer": {"credit": {"mode": "influence"}}},
    "permuted": {"archer": {"credit": {"mode": "spare_confident", "permute": True, "threshold": 0.9}}},
    "off policy": {"archer": {"credit": {"mode": "nthr"}}, "args": OFF_POLICY, "repeat": 2},
    "adapters": {
        "lora": {"target_modules": "all-linear"},
        "archer": {"credit": {"mode": "nthr"}},
        "args": {**LIVELY, "max_steps": 2, "gradient_checkpointing": True, "beta": 0.1},
        "repeat": 2,
    },
    "trained head": {
        "lora": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
        "archer": {"credit": {"mode": "influence"}},
    },
    "gaps": {"gaps": True, "archer": {"credit": {"mode": "spare_confident"}}},
    "mixin": {"class": "mixin", "shaped": True, "archer": {"accepted_by": "right", "truth_column": "prompt"}},
    "traced": {"args": LIVELY, "repeat": 4},
    "plain": {"args": LIVELY, "repeat": 4, "class": "plain"},
    "which is right?": {"shaped": True, "fails": True},
    "mistakes": {"archer": {"credit": {"mode": "oracle"}}, "fails": True},
    "traced head": {
        "archer": {"influence": {"module_name_filter": ["all-linear", "lm_head"]}},
        "fails": True,
    },
    "little": {"archer": {"influence": {**READING, "module_name_filter": ["q_proj"]}}},
    "every second": {
        "archer": {"influence": {**READING, "write_every": 2}},
        "args": {"max_steps": 4},
        "repeat": 4,
    },
    "one ratio": {
        "archer": {"credit": {"mode": "spare_confident"}},
        "args": {"importance_sampling_level": "sequence"},
        "fails": True,
    },
    "one ratio, traced": {"args": {"importance_sampling_level": "sequence"}},
    "fused loss": {"class": "fused", "fails": True},
    "nothing": {"archer": {"influence": None, "entropy_trace": False}},
}


@dataclass(frozen=True)
class Runs:
    """What all runs left."""

    folder: Path
    fixed: Fixed

    def log(self, name: str) -> dict:
        return json.loads((self.folder / name / "log.json").read_text())

    def trace(self, name: str, kind: str = "influence", step: int = 1) -> TraceStep:
        return TraceReader(self.folder / name / f"{kind}_trace").read(step).arrays


@pytest.fixture(scope="module")
def runs(tmp_path_factory, trl_runs) -> Runs:
    folder = tmp_path_factory.mktemp("trl")
    fixed = Fixed.make(AutoTokenizer.from_pretrained(tiny_reasoner_path()))
    file = fixed.write(folder / "fixed.json")
    trl_runs(folder, file, [{"out": str(folder / name), **given} for name, given in RUNS.items()])
    return Runs(folder, fixed)


def assert_close(found: np.ndarray, expected: np.ndarray, relative: float = 1e-5) -> None:
    """Equal within 1e-5 of the largest value; NaN where the other is NaN."""
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    largest = np.nanmax(np.abs(expected))
    assert largest > 0
    assert np.nanmax(np.abs(found - expected)) <= relative * largest


def assert_same_rows(found: TraceStep, expected: TraceStep) -> None:
    assert np.array_equal(found.response_index, expected.response_index)
    assert np.array_equal(found.response_mask, expected.response_mask)
    assert np.array_equal(found.responses * found.response_mask, expected.responses * expected.response_mask)
    assert np.array_equal(found.accepted, expected.accepted)
    assert np.array_equal(found.group_id, expected.group_id)
    assert np.array_equal(found.prompt_ids, expected.prompt_ids)


@pytest.mark.parametrize(
    ("name", "influence", "temperature"), [("reading", READING, 1.0), ("training loss", {}, 0.7)]
)
def test_scores_are_the_local_engines(runs, name, influence, temperature):
    found, expected = runs.trace(name), local_step(runs.fixed, influence, temperature=temperature)
    assert_same_rows(found, expected)
    assert_close(found.influence, expected.influence)
    assert_close(found.log_probs.astype(float), expected.log_probs.astype(float), 2e-3)  # stored as float16
    assert_close(found.entropies.astype(float), expected.entropies.astype(float), 2e-3)


@pytest.mark.parametrize("name", ["head, in the update", "head, ahead", "modules", "permuted"])
def test_credit_is_the_local_engines(runs, name):
    expected = local_step(runs.fixed, READING, RUNS[name]["archer"]["credit"])
    found = runs.trace(name)
    assert_same_rows(found, expected)
    if expected.credit_score is not None:
        assert_close(found.credit_score, expected.credit_score)
    assert 0 < (found.credit < 1)[found.response_mask].mean() < 1
    assert np.array_equal(found.credit, expected.credit)
    assert_close(found.influence, expected.influence)


def test_what_credit_costs_is_said(runs):
    assert "in the update's own forward" in runs.log("head, in the update")["said"]
    assert "a forward of its own" in runs.log("head, ahead")["said"]
    assert "a forward and a backward of its own" in runs.log("modules")["said"]


def test_both_traces_are_whole(runs):
    for name, given in RUNS.items():
        if given.get("fails") or name in ("plain", "nothing"):
            continue
        for kind in ("entropy", "influence"):
            check = check_trace(runs.folder / name / f"{kind}_trace")
            assert not check.problems, (name, kind, check)
    assert not (runs.folder / "nothing/entropy_trace").exists()


def test_rows_without_advantage_need_no_second_backward(runs):
    (first, *_) = runs.log("reading")["history"]
    assert first["influence_trace/skipped_all_rejected"] == 1
    assert first["influence_trace/selected_prompts"] == 3
    assert first["influence_trace/debug_second_backwards"] == 0
    assert first["influence_trace/debug_rescaled_micro_batches"] == 2


def test_metrics_are_in_trls_log(runs):
    (first, *_) = runs.log("head, ahead")["history"]
    trace = runs.trace("head, ahead", "entropy")
    mask, rejected = trace.response_mask, ~trace.accepted[:, None]
    assert first["token_credit/weight_mean"] == pytest.approx(trace.credit[mask].mean(), rel=1e-3)
    spared = (trace.credit < 1)[mask & rejected].mean()
    assert first["token_credit/spared_share"] == pytest.approx(spared, rel=1e-6)
    assert first["token_credit/strength"] == 1
    assert first["reward"] == pytest.approx(6 / 16)  # TRL's own are there, too


def test_training_is_what_it_was_without_archer(runs):
    traced, plain = runs.log("traced"), runs.log("plain")
    assert traced["weights"] == plain["weights"]
    assert [line.get("loss") for line in traced["history"]] == [line.get("loss") for line in plain["history"]]
    assert traced["weights"] != runs.log("reading")["weights"]


def test_credit_changes_the_loss(runs):
    losses = [runs.log(name)["history"][0]["grad_norm"] for name in ("reading", "head, ahead")]
    assert losses[0] != losses[1]


def test_several_optimizer_steps_and_passes_for_one_generation(runs):
    """Responses of a prompt are compared where they share an optimizer step; each is traced once."""
    reader = TraceReader(runs.folder / "off policy/entropy_trace")
    assert [entry.step for entry in reader.entries] == [1, 5]
    trace = runs.trace("off policy", step=5)
    assert np.isfinite(trace.influence[trace.response_mask]).any()
    assert set(trace.response_index) <= set(range(16))
    whole = runs.trace("off policy", "entropy", step=5)
    assert 0 < (whole.credit < 1)[whole.response_mask].mean() < 1


def test_what_a_tool_wrote_has_no_score(runs):
    trace = runs.trace("gaps")
    assert not trace.response_mask[:, 2].any()
    assert np.isnan(trace.influence[:, 2]).all()
    assert np.isfinite(trace.influence[trace.response_mask]).all()
    assert trace.response_mask[:, 3].any()


def test_adapters_are_traced_as_maps_of_their_own_and_the_head_below_them_is_read(runs):
    """LoRA's B begins at zero: the first step is that of the model itself, and A has no gradient in it."""
    first, second = (runs.trace("adapters", step=step) for step in (1, 2))
    expected = local_step(runs.fixed, READING, {"mode": "nthr"})
    assert_same_rows(first, expected)
    assert_close(first.credit_score, expected.credit_score)
    assert np.array_equal(first.credit, expected.credit)
    assert "mlp.down_proj.lora_B.default" in runs.log("adapters")["said"]
    for trace in (first, second):
        assert np.isfinite(trace.influence[trace.response_mask]).all()
    assert not np.array_equal(first.credit_score, second.credit_score, equal_nan=True)


def test_a_users_own_trainer_takes_the_mixin(runs):
    log, trace = runs.log("mixin"), runs.trace("mixin", "entropy")
    assert log["losses"] == 2  # the user's own loss ran
    assert trace.accepted.tolist() == [bool(r) for line in runs.fixed.rewards for r in line]
    lengths = np.array([len(row) for rows in runs.fixed.responses for row in rows])
    assert trace.reward == pytest.approx(trace.accepted + 0.01 * lengths)
    assert json.loads(trace.judgement[0])["extra"] == {
        "right": 1.0,
        "shaped": pytest.approx(0.01 * lengths[0]),
    }
    assert trace.ground_truth[0] == "3+5="
    assert_close(runs.trace("mixin").influence, runs.trace("reading").influence, 1e-6)


def test_what_is_right_must_be_said_where_rewards_are_several(runs):
    assert (
        "name the reward function whose value says what is right, one of right, shaped"
        in runs.log("which is right?")["error"]
    )


def test_a_mode_for_the_built_in_task_is_refused(runs):
    assert "choose another mode in another trainer" in runs.log("mistakes")["error"]


def test_a_trained_head_is_left_out_of_influence_for_credit(runs):
    assert not runs.log("trained head")["error"]
    assert np.isfinite(runs.trace("trained head").credit_score).any()


def test_credit_is_refused_where_a_weight_cannot_reach_its_token(runs):
    """The loss of a response with one ratio is the sum of its weights times that ratio."""
    assert "spare_confident) cannot reach single tokens" in runs.log("one ratio")["error"]
    assert_close(runs.trace("one ratio, traced").influence, runs.trace("reading").influence)


def test_a_loss_that_goes_past_the_adapter_is_refused(runs):
    assert "computes its loss without _compute_loss" in runs.log("fused loss")["error"]


def test_the_head_which_trl_does_not_call_is_refused_and_not_advised(runs):
    assert "so that it cannot be traced: leave it out" in runs.log("traced head")["error"]


def test_influence_is_captured_in_the_steps_that_are_written_alone(runs):
    steps = TraceReader(runs.folder / "every second" / "influence_trace").entries
    assert [entry.step for entry in steps] == [2, 4]
    history = [line for line in runs.log("every second")["history"] if "loss" in line]
    assert ["influence_trace/debug_captured_tokens" in line for line in history] == [False, True] * 2
    assert_close(runs.trace("every second", step=4).influence, runs.trace("reading").influence)
