import numpy as np
import pytest

from archer.errors import ArcherError
from archer.trace.arrays import ARRAYS
from archer.trace.manifest import StepStatistics
from archer.trace.schema import TraceStep, check_complete

CONTRACT = {
    "entropies": "float16",
    "response_mask": "bool",
    "responses": "int32",
    "response_index": "int32",
    "log_probs": "float16",
    "reward": "float32",
    "accepted": "bool",
    "group_id": "int32",
    "prompt_ids": "int32",
    "prompt_offsets": "int64",
    "prompt_length": "int32",
    "sample_index": "int32",
    "unjudged": "bool",
    "truncated": "bool",
    "seed": "int64",
    "rollout_log_probs": "float16",
    "ratio": "float16",
    "clipped": "int8",
    "loss_weight": "float16",
    "credit": "float16",
    "credit_score": "float32",
    "paid": "float16",
    "influence": "float32",
    "advantage": "float32",
}
TEXTS = {"uid", "judgement", "data_source", "ground_truth", "extracted_answer", "reason"}


def test_a_step_holds_every_array_of_the_contract_in_its_dtype(batch):
    given = batch()
    arrays = TraceStep.from_batch(**given, credit_score=given["credit"], paid=given["advantage"]).arrays()
    assert set(arrays) == {*CONTRACT, *TEXTS} == {spec.name for spec in ARRAYS}
    assert {name: str(arrays[name].dtype) for name in CONTRACT} == CONTRACT
    assert {arrays[name].dtype.kind for name in TEXTS} == {"U"}


def test_arrays_are_cut_to_the_longest_valid_response(step):
    made = step(width=9)
    assert made.entropies.shape == (4, 8)
    assert made.response_mask[:, -1].any()


def test_values_inside_the_mask_are_the_batch_and_outside_it_zero_or_nan(batch, step):
    given, made = batch(), step()
    for row in range(4):
        for column in range(made.response_mask.shape[1]):
            if given["response_mask"][row, column]:
                assert made.entropies[row, column] == np.float16(given["entropies"][row, column])
                assert made.influence[row, column] == np.float32(given["influence"][row, column])
            else:
                assert made.entropies[row, column] == 0
                assert made.log_probs[row, column] == 0
                assert made.advantage[row, column] == 0
                assert np.isnan(made.influence[row, column])


def test_ragged_prompts_come_back_row_by_row(batch, step):
    given, made = batch(), step()
    assert [made.prompt(row).tolist() for row in range(4)] == given["prompts"]
    assert made.prompt_length.tolist() == [len(prompt) for prompt in given["prompts"]]


def test_the_caller_may_reuse_its_buffers(batch):
    given = batch()
    arrays = ("entropies", "responses", "response_mask", "influence", "reward")
    given["influence"] = given["influence"].astype(np.float32)
    made = TraceStep.from_batch(**given)
    before = {name: made.arrays()[name].copy() for name in arrays}
    for name in arrays:
        given[name][:] = 0
    for name in arrays:
        np.testing.assert_array_equal(made.arrays()[name], before[name])


def test_a_mask_with_a_hole_keeps_the_tokens_in_the_hole(batch):
    given = batch()
    given["response_mask"][0, 2] = False
    made = TraceStep.from_batch(**given)
    assert made.responses[0, 2] == given["responses"][0, 2]
    assert made.entropies[0, 2] == 0


def test_a_batch_without_one_valid_token_is_a_step_of_width_zero(batch):
    given = batch()
    given["response_mask"][:] = False
    assert TraceStep.from_batch(**given).responses.shape == (4, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("entropies", np.zeros((4, 6))),
        ("reward", np.zeros(3)),
        ("uid", ["a"]),
        ("prompts", [[1], [2]]),
        ("response_mask", np.ones(7, bool)),
    ],
)
def test_shapes_that_disagree_are_refused_by_name(batch, name, value):
    with pytest.raises(ArcherError, match=name.replace("prompts", "prompt_")):
        TraceStep.from_batch(**{**batch(), name: value})


def test_offsets_that_do_not_divide_the_prompts_are_refused(step):
    made = step()
    with pytest.raises(ArcherError, match="prompt_offsets"):
        TraceStep(**{**made.arrays(), "prompt_offsets": made.prompt_offsets + 1})


def test_a_foreign_dtype_is_refused(step):
    made = step()
    with pytest.raises(ArcherError, match="reward is float64"):
        TraceStep(**{**made.arrays(), "reward": made.reward.astype(np.float64)})


def test_an_influence_trace_needs_influence(step):
    made = step(influence=False)
    check_complete(made, "entropy")
    with pytest.raises(ArcherError, match="influence, advantage"):
        check_complete(made, "influence")


def test_a_response_without_a_verdict_is_told_apart_and_left_out_of_the_means(batch):
    given = batch() | {"accepted": [True, False, True, False], "reward": [1.0, 0.0, 0.5, 9.0]}
    made = TraceStep.from_batch(**given | {"unjudged": [False, False, False, True]})
    assert [made.verdict(row) for row in range(4)] == ["accepted", "rejected", "accepted", "unjudged"]
    statistics = StepStatistics.of(made)
    assert (statistics.mean_reward, statistics.accepted_share) == (0.5, 2 / 3)


def test_in_a_trace_that_does_not_say_every_response_was_judged(batch):
    made = TraceStep.from_batch(**batch() | {"unjudged": None, "accepted": [True, False, True, False]})
    assert made.unjudged is None and "unjudged" not in made.arrays()
    assert made.judged.tolist() == [True] * 4
    assert made.verdict(3) == "rejected"
    check_complete(made, "entropy")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"failure": "timeout"}', {"failure": "timeout"}),
        (
            '{"detail": "x", "extra": {"len": 12.5, "why": "n\\u0000o"}}',
            {"detail": "x", "len": "12.5", "why": "n\0o"},
        ),
        ("", {}),
        ("no JSON", {}),
        ("[1, 2]", {}),
        ('{"extra": 3, "detail": {"deep": 1}}', {}),
        ("[" * 100_000, {}),
    ],
)
def test_what_a_reward_said_is_read_and_anything_else_is_nothing(batch, text, said):
    made = TraceStep.from_batch(**{**batch(), "judgement": [text, "", "", ""]})
    assert made.said(0) == said
    assert made.said(1) == {}
