"""The traces a training run leaves: what is in them, and that they cost nothing when off."""

import json

import numpy as np
import pytest

from archer.config import compose
from archer.errors import ArcherError
from archer.trace.check import check_trace
from archer.trace.reader import TraceReader

EXACT = "trainer.influence_trace.projection=none"


def read(runs, name: str, kind: str, step: int):
    return TraceReader(runs.folder / name / kind).read(step).arrays


def test_every_step_leaves_both_traces_whole(runs):
    runs.here("run")
    for kind in ("entropy_trace", "influence_trace"):
        report = check_trace(runs.folder / "run" / kind)
        assert report.whole, report.render()
        assert [entry.step for entry in TraceReader(runs.folder / "run" / kind).entries] == [1, 2, 3]


def test_the_entropy_trace_covers_all_responses_and_the_influence_trace_the_mixed_groups(runs):
    runs.here("run", "trainer.total_training_steps=1")
    everything = read(runs, "run", "entropy_trace", 1)
    selected = read(runs, "run", "influence_trace", 1)
    assert len(everything.accepted) == 16
    mixed = [group for group in range(4) if 0 < everything.accepted[everything.group_id == group].sum() < 4]
    assert mixed, "the seed gives at least one group with a contrast"
    np.testing.assert_array_equal(
        selected.response_index, np.flatnonzero(np.isin(everything.group_id, mixed))
    )
    rows = selected.response_index
    np.testing.assert_array_equal(
        selected.responses, everything.responses[rows, : selected.responses.shape[1]]
    )
    np.testing.assert_array_equal(
        selected.entropies, everything.entropies[rows, : selected.entropies.shape[1]]
    )
    assert np.isfinite(selected.influence[selected.response_mask]).all()
    assert np.isnan(selected.influence[~selected.response_mask]).all()


def test_a_trace_reads_as_text_without_a_tokenizer(runs):
    runs.here("run", "trainer.total_training_steps=1")
    reader = TraceReader(runs.folder / "run/entropy_trace")
    step = reader.read(1).arrays
    text = reader.vocab.decode(step.responses[0][step.response_mask[0]]).text
    assert text.endswith("<|end|>") and "\\boxed{" in text


@pytest.mark.parametrize(
    "split",
    [
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=100",
        "actor_rollout_ref.model.enable_gradient_checkpointing=True",
    ],
)
def test_influence_does_not_depend_on_how_the_backward_is_cut(runs, split):
    options = ("trainer.total_training_steps=1", EXACT)
    runs.here("whole", *options)
    runs.here("split", *options, split)
    whole, parts = (read(runs, name, "influence_trace", 1) for name in ("whole", "split"))
    np.testing.assert_allclose(
        parts.influence, whole.influence, rtol=2e-3, atol=1e-3 * np.nanmax(whole.influence)
    )


def test_rescaling_replaces_the_second_backward_and_gives_the_same_scores(runs):
    """On-policy GRPO: one backward serves; a tolerance of 0 forces the objective's own backward."""
    options = ("trainer.total_training_steps=1", EXACT)
    runs.here("one", *options)
    runs.here("two", *options, "trainer.influence_trace.proportionality_tolerance=0.0")
    assert runs.metrics("one")[-1]["influence_trace/debug_second_backwards"] == 0
    assert runs.metrics("two")[-1]["influence_trace/debug_second_backwards"] > 0
    one, two = (read(runs, name, "influence_trace", 1) for name in ("one", "two"))
    np.testing.assert_allclose(one.influence, two.influence, rtol=2e-3, atol=1e-3 * np.nanmax(one.influence))


def test_several_mini_batches_and_epochs_are_traced_once_each(runs):
    runs.here(
        "run",
        "actor_rollout_ref.actor.ppo_mini_batch_size=1",
        "actor_rollout_ref.actor.ppo_epochs=2",
        "trainer.total_training_steps=1",
    )
    selected = read(runs, "run", "influence_trace", 1)
    line = runs.metrics("run")[-1]
    assert line["influence_trace/rows_emitted"] == len(selected.response_index)
    assert np.isfinite(selected.influence[selected.response_mask]).all()


def test_groups_scored_in_small_portions_have_the_scores_of_all_at_once(runs, monkeypatch):
    runs.here("whole", "trainer.total_training_steps=1")
    monkeypatch.setattr("archer.training.portions.PORTION", 0)
    runs.here("portions", "trainer.total_training_steps=1")
    whole, portions = (read(runs, name, "influence_trace", 1) for name in ("whole", "portions"))
    assert len(set(whole.group_id)) > 1, "with one group there is nothing to divide"
    np.testing.assert_allclose(
        portions.influence, whole.influence, rtol=1e-4, atol=1e-5 * np.nanmax(whole.influence)
    )
    micro_batches = [
        runs.metrics(name)[-1]["influence_trace/debug_micro_batches"] for name in ("portions", "whole")
    ]
    assert micro_batches[0] > micro_batches[1]


def test_without_tracing_there_is_no_folder_and_no_metric(runs):
    runs.here("run", "trainer.entropy_trace.enable=False", "trainer.influence_trace.enable=False")
    assert not list((runs.folder / "run").glob("*_trace"))
    assert not [key for key in runs.metrics("run")[-1] if "influence" in key]


def test_tracing_does_not_change_training(runs):
    runs.here("traced")
    runs.here("plain", "trainer.entropy_trace.enable=False", "trainer.influence_trace.enable=False")
    for ours, theirs in zip(runs.metrics("traced"), runs.metrics("plain"), strict=True):
        assert {key: ours[key] for key in theirs} == theirs


def test_only_every_nth_step_is_captured_and_written(runs):
    runs.here("run", "trainer.influence_trace.write_every=2")
    assert [e.step for e in TraceReader(runs.folder / "run/influence_trace").entries] == [2]
    assert "influence_trace/rows_emitted" not in runs.metrics("run")[1]


def test_skip_optimizer_step_of_the_trace_leaves_the_weights(runs):
    runs.here("run", "trainer.influence_trace.skip_optimizer_step=True", "trainer.total_training_steps=2")
    assert (
        runs.metrics("run")[0]["val-core/arithmetic/acc/mean@2"]
        == (runs.metrics("run")[2]["val-core/arithmetic/acc/mean@2"])
    )


def test_the_output_head_can_be_traced_too(runs):
    runs.here("run", "trainer.influence_trace.module_name_filter=[lm_head]", "trainer.total_training_steps=1")
    selected = read(runs, "run", "influence_trace", 1)
    assert np.isfinite(selected.influence[selected.response_mask]).all()


def test_a_trace_folder_of_another_run_is_never_overwritten(runs):
    runs.here("run", "trainer.total_training_steps=1")
    with pytest.raises(ArcherError, match="holds a trace already"):
        runs.here("other", f"trainer.entropy_trace.output_dir={runs.folder}/run/entropy_trace")


def test_the_summary_says_how_influence_was_computed(runs):
    runs.here("run", "trainer.total_training_steps=1")
    summary = json.loads((runs.folder / "run/influence_trace/summary.json").read_text())
    assert summary["metadata"]["influence_trace"]["hessian_mode"] == "inverse"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("trainer.influence_trace.hessian_mode=foo", "inverse, identity"),
        ("trainer.influence_trace.no_such_knob=1", "trainer.influence_trace.no_such_knob"),
        ("trainer.influence_trace.projection_dim_factor=0", "must be at least 1"),
        ("trainer.entropy_trace.write_every=0", "must be at least 1"),
    ],
)
def test_a_bad_knob_is_refused_at_start_up(override, expected):
    with pytest.raises(ArcherError) as error:
        compose([override])
    assert expected in str(error.value)


def test_comparing_all_prompts_needs_one_mini_batch():
    with pytest.raises(ArcherError, match="all_selected"):
        compose(
            [
                "trainer.influence_trace.accepted_rejected_scope=all_selected",
                "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            ]
        )
