"""The same responses give the same scores however they are arranged."""

import pytest
from tiny_update import Problem, assert_same_scores, tiny_model, traced_config, traced_scores

CONFIGS = {
    "inverse": {},
    "token": {"hessian_source": "token"},
    "log_prob, self excluded": {"output_function": "log_prob", "exclude_self_response": True},
    "reward": {"output_function": "log_prob_reward"},
    "all selected, normalized": {
        "accepted_rejected_scope": "all_selected",
        "score_normalization": "token_norm",
    },
}
SPLITS = {
    "one by one": [[row] for row in range(9)],
    "across groups": [[8, 0, 4], [6, 1, 2, 7], [5, 3]],
    "by group": [[0, 1, 2, 3], [4, 5, 6], [7, 8]],
}


@pytest.fixture(params=CONFIGS, ids=str)
def config(request):
    return traced_config(**CONFIGS[request.param])


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS.keys())
def test_micro_batches_do_not_matter(problem, config, split):
    whole = traced_scores(problem, config, kind="clipped")
    assert_same_scores(traced_scores(problem, config, kind="clipped", micro_batches=split), whole)


@pytest.mark.parametrize("arrangement", ["left", "blocks", "packed"])
@pytest.mark.parametrize("split", [None, SPLITS["across groups"]], ids=["whole", "split"])
def test_padding_side_and_packing_do_not_matter(problem, config, arrangement, split):
    right = traced_scores(problem, config)
    assert_same_scores(traced_scores(problem, config, arrangement=arrangement, micro_batches=split), right)


def test_capture_is_the_same_when_rows_that_are_not_selected_share_the_batch(problem):
    # Row 8 has no part in any scored group; leaving it out of the batch changes nothing.
    with_it = traced_scores(problem, traced_config())
    without = traced_scores(problem, traced_config(), micro_batches=[[0, 1, 2, 3], [4, 5, 6]])
    assert_same_scores(without, with_it)


@pytest.mark.parametrize("share", [0.0, 1.1], ids=["every position is kept", "only traced ones are kept"])
def test_keeping_positions_that_are_not_traced_does_not_matter(problem, config, monkeypatch, share):
    whole = traced_scores(problem, config)
    monkeypatch.setattr("archer.influence.capture.KEEP_ALL", share)
    assert_same_scores(traced_scores(problem, config, micro_batches=SPLITS["across groups"]), whole)


def test_scores_repeat_in_a_new_model_object():
    first, second = (traced_scores(Problem(tiny_model()), traced_config()) for _ in range(2))
    assert_same_scores(first, second, rtol=0)
