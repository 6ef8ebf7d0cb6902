"""Other objectives out of the real backward where weights are proportional, out of a second one where not."""

import gc
import weakref

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_update import Problem, assert_same_scores, tiny_model, traced_config, traced_scores

from archer.errors import ArcherError
from archer.influence import InfluenceTracer, Layout
from archer.influence.objective import leads_only_through, response_multiples
from archer.influence.oracle import brute_force_scores, explicit_gradients, position_factors

OTHERS = ["log_prob", "log_prob_advantage", "log_prob_reward"]


def run(problem: Problem, **changes: object) -> tuple[dict, dict]:
    """Scores and metrics of one update with `loss` as in Problem.loss."""
    kind = changes.pop("loss", "on_policy")
    tracer = InfluenceTracer(problem.model, traced_config(**changes))
    problem.update(tracer, kind=kind)
    return tracer.scores(problem.groups, dtype=torch.float64), tracer.metrics()


@pytest.mark.parametrize("objective", OTHERS)
def test_rescaling_equals_the_second_backward(problem, objective):
    rescaled, how = run(problem, output_function=objective)
    second, how_else = run(problem, output_function=objective, proportionality_tolerance=0.0)
    assert how["influence_trace/debug_rescaled_micro_batches"] == 1
    assert how["influence_trace/debug_second_backwards"] == 0
    assert how_else["influence_trace/debug_rescaled_micro_batches"] == 0
    assert how_else["influence_trace/debug_second_backwards"] == 1
    assert_same_scores(rescaled, second)


@pytest.mark.parametrize("objective", OTHERS)
def test_the_objective_does_not_depend_on_the_loss_that_carried_it(problem, objective):
    on_policy, _ = run(problem, output_function=objective)
    clipped, how = run(problem, output_function=objective, loss="clipped")
    assert how["influence_trace/debug_second_backwards"] == 1
    assert_same_scores(clipped, on_policy)


@pytest.mark.parametrize("objective", ["training_loss", *OTHERS])
@pytest.mark.parametrize("loss", ["on_policy", "clipped"])
def test_parameter_gradients_are_bit_for_bit_those_of_the_untraced_update(objective, loss):
    problem = Problem(tiny_model())
    batch = problem.batch(problem.rows)
    for _ in range(2):  # the second round adds to gradients that already exist
        problem.loss(problem.log_probs(batch)[0], batch, loss).backward()
    plain = [p.grad for p in problem.model.parameters()]
    problem.model.zero_grad()
    for _ in range(2):
        run(problem, output_function=objective, loss=loss)
    assert all(torch.equal(p.grad, g) for p, g in zip(problem.model.parameters(), plain, strict=True))


def test_a_second_path_past_the_log_probs_forces_the_second_backward(problem):
    expected, _ = run(problem, output_function="log_prob")
    tracer = InfluenceTracer(problem.model, traced_config(output_function="log_prob"))
    batch = problem.batch(problem.rows)
    with tracer.capture(batch.layout):
        log_probs, where = problem.log_probs(batch)
        logits = problem.model.lm_head.weight.square().sum()
        loss = problem.loss(log_probs, batch) + 0.01 * logits
        tracer.watch(loss, log_probs, where)
        loss.backward()
    assert tracer.metrics()["influence_trace/debug_second_backwards"] == 1
    assert_same_scores(tracer.scores(problem.groups, dtype=torch.float64), expected)


def test_paths_are_told_apart_by_output_of_one_node():
    x = torch.randn(3, 4, requires_grad=True)
    log_probs, entropy = x.exp().unbind(0)[:2]  # two outputs of one autograd node
    assert leads_only_through((log_probs * 2).sum(), log_probs)
    assert not leads_only_through((log_probs * 2).sum() - entropy.sum(), log_probs)


def test_a_factor_on_the_loss_after_watch_is_taken_into_account(problem):
    expected, _ = run(problem, output_function="log_prob")
    tracer = InfluenceTracer(problem.model, traced_config(output_function="log_prob"))
    batch = problem.batch(problem.rows)
    with tracer.capture(batch.layout):
        log_probs, where = problem.log_probs(batch)
        loss = problem.loss(log_probs, batch)
        tracer.watch(loss, log_probs, where)
        (loss * 1024).backward()
    assert_same_scores(tracer.scores(problem.groups, dtype=torch.float64), expected)


def test_a_backward_of_another_loss_is_refused(problem):
    tracer = InfluenceTracer(problem.model, traced_config(output_function="log_prob"))
    batch = problem.batch(problem.rows)

    def update() -> None:
        with tracer.capture(batch.layout):
            log_probs, where = problem.log_probs(batch)
            tracer.watch(problem.loss(log_probs, batch), log_probs, where)
            problem.loss(log_probs, batch, "clipped").backward()

    update()
    with pytest.raises(ArcherError, match="not that of the loss given to"):  # where the device is waited for
        tracer.scores(problem.groups)
    assert not tracer.captured


@pytest.mark.parametrize("loss", ["on_policy", "clipped"])
def test_the_graph_dies_with_the_capture(problem, loss):
    tracer = InfluenceTracer(problem.model, traced_config(output_function="log_prob"))
    batch = problem.batch(problem.rows)

    def update() -> list[weakref.ref]:
        with tracer.capture(batch.layout):
            log_probs, where = problem.log_probs(batch)
            total = problem.loss(log_probs, batch, loss)
            tracer.watch(total, log_probs, where)
            total.backward()
            return [weakref.ref(log_probs), weakref.ref(tracer._active)]

    gc.disable()  # a cycle would live until the collector happens to run
    try:
        assert [ref() for ref in update()] == [None, None]
    finally:
        gc.enable()


def test_an_advantage_of_zero_needs_the_second_backward(problem):
    problem.advantages[1] = 0.0
    found, how = run(problem, output_function="log_prob")
    assert how["influence_trace/debug_second_backwards"] == 1
    assert all(scores.abs().max() > 0 for scores in found.values())


@pytest.mark.parametrize("kind", [False, True], ids=["non-reentrant", "reentrant"])
def test_the_second_backward_under_checkpointing_leaves_gradients_alone(kind):
    problem = Problem(tiny_model())
    problem.model.train()
    problem.model.gradient_checkpointing_enable({"use_reentrant": kind})
    problem.model.enable_input_require_grads()
    batch = problem.batch(problem.rows)
    problem.loss(problem.log_probs(batch)[0], batch, "clipped").backward()
    plain = [p.grad for p in problem.model.parameters()]
    problem.model.zero_grad()
    _, how = run(problem, output_function="log_prob", loss="clipped")
    assert how["influence_trace/debug_second_backwards_with_parameters"] == float(kind)
    assert all(torch.equal(p.grad, g) for p, g in zip(problem.model.parameters(), plain, strict=True))


@pytest.mark.parametrize("objective", ["training_loss", "log_prob"])
@pytest.mark.parametrize("loss", ["on_policy", "clipped"])
def test_lora_adapters_are_traced_as_linear_modules_of_their_own(objective, loss):
    adapters = LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM"
    )
    problem = Problem(get_peft_model(tiny_model(), adapters).double())
    config = traced_config(output_function=objective, projection_dim_factor=4)
    tracer = InfluenceTracer(problem.model, config)
    assert len(tracer.modules) == 8
    assert all(".lora_A." in traced.name or ".lora_B." in traced.name for traced in tracer.modules)
    problem.update(tracer, kind=loss)
    found = tracer.scores(problem.groups, dtype=torch.float64)
    assert (
        tracer.metrics()["influence_trace/debug_input_projections"] == 6
    )  # lora_A of q and v share their input
    batch = problem.batch(problem.rows)
    factors = position_factors(tracer.modules, lambda: problem.objective(config, batch, loss))
    gradients = explicit_gradients(tracer.modules, factors, batch.layout)
    for group in problem.groups[:2]:
        expected = brute_force_scores(gradients, group, config)
        assert_same_scores({row: found[row] for row in group.rows}, expected)


def test_a_tied_output_head_is_traced_as_the_linear_module_it_is():
    problem = Problem(tiny_model(tie_word_embeddings=True))
    config = traced_config(module_name_filter="lm_head", output_function="log_prob", projection_dim_factor=4)
    found = traced_scores(problem, config)
    modules = InfluenceTracer(problem.model, config).modules
    batch = problem.batch(problem.rows)
    factors = position_factors(modules, lambda: problem.objective(config, batch))
    gradients = explicit_gradients(modules, factors, batch.layout)
    expected = brute_force_scores(gradients, problem.groups[0], config)
    assert_same_scores({row: found[row] for row in range(4)}, expected)


def watched(tracer: InfluenceTracer, problem: Problem, rows: list[int], where: Layout) -> None:
    """A capture that watches the first elements of the log-probs, as many as `where` has rows for."""
    batch = problem.batch(rows)
    with tracer.capture(batch.layout):
        log_probs, _ = problem.log_probs(batch)
        tracer.watch(log_probs.sum(), log_probs[: len(where.lengths())], where)
        log_probs.sum().backward()


def test_objectives_say_what_they_need(problem):
    tracer = InfluenceTracer(problem.model, traced_config(output_function="log_prob_reward"))
    batch = problem.batch([0])
    where = Layout.responses([0], [4], 4)
    with pytest.raises(ArcherError, match="pass rewards="):
        watched(tracer, problem, [0], where)
    with pytest.raises(ArcherError, match=r"needs tracer\.watch"), tracer.capture(batch.layout):
        problem.log_probs(batch)[0].sum().backward()
    log_probs, _ = problem.log_probs(batch)
    with pytest.raises(ArcherError, match="belongs inside"):
        tracer.watch(log_probs.sum(), log_probs, where)


def test_log_probs_and_their_layout_must_agree(problem):
    tracer = InfluenceTracer(problem.model, traced_config(output_function="log_prob"))
    with pytest.raises(ArcherError, match=r"rows \[1\] are captured but have no"):
        watched(tracer, problem, [0, 1], Layout.responses([0], [4], 4))
    with pytest.raises(ArcherError, match="8 log-probs, but their layout describes 12"):
        watched(tracer, problem, [0, 1], Layout.responses([0, 1], [4, 2], 6))


def test_multiples_hold_per_response_and_within_the_tolerance():
    row = torch.tensor([0, 0, 1, 1, 2])
    real = torch.tensor([1.0, 2.0, -1.0, -1.0, 0.0])
    wanted = torch.tensor([3.0, 6.0, 1.0, 1.0, 0.0])
    found, holds = response_multiples(real, wanted, row, 3, 1e-6)
    assert found.tolist() == [3.0, -1.0, 0.0] and holds.tolist() == [True, True, True]
    bent = wanted + torch.tensor([0.0, 0.01, 0.0, 0.0, 0.0])
    assert response_multiples(real, bent, row, 3, 1e-6)[1].tolist() == [False, True, True]
    assert response_multiples(real, bent, row, 3, 1e-2)[1].all()
    assert response_multiples(real, torch.ones(5), row, 3, 1e-6)[1].tolist() == [False, True, False]
    not_finite = torch.tensor([torch.nan, 2.0, -1.0, -1.0, 0.0])
    assert response_multiples(not_finite, wanted, row, 3, 1e-6)[1].tolist() == [False, True, True]
    assert not response_multiples(real, wanted, row, 3, 0.0)[1].any(), "a tolerance of 0 accepts nothing"


def silent(problem: Problem, rows: tuple[int, ...]) -> Problem:
    """Responses without advantage: their real gradients are zero."""
    problem.advantages = problem.advantages.clone()
    problem.advantages[list(rows)] = 0.0
    return problem


@pytest.mark.parametrize("objective", ["log_prob", "log_prob_reward"])
@pytest.mark.parametrize("how", ["plain", "packed", "non-reentrant", "reentrant"])
def test_only_a_response_without_advantage_is_run_backward_again(objective, how):
    problem = Problem(tiny_model())
    if "reentrant" in how:
        problem.model.train()
        problem.model.gradient_checkpointing_enable({"use_reentrant": how == "reentrant"})
        problem.model.enable_input_require_grads()
    expected, _ = run(problem, output_function=objective, proportionality_tolerance=0.0)
    silent(problem, (1, 4))
    tracer = InfluenceTracer(problem.model, traced_config(output_function=objective))
    micro_batches = [[0, 4, 1], [2, 5, 6], [3], [7, 8]]
    problem.update(tracer, micro_batches, "packed" if how == "packed" else "right")
    metrics = tracer.metrics()
    assert metrics["influence_trace/debug_second_backwards"] == 1, "one micro-batch holds both of them"
    assert metrics["influence_trace/debug_partly_rescaled_micro_batches"] == 1
    assert metrics["influence_trace/debug_rescaled_micro_batches"] == 3
    assert_same_scores(tracer.scores(problem.groups, dtype=torch.float64), expected)


def test_parameter_gradients_are_bit_for_bit_the_same_beside_a_response_without_advantage():
    problem = silent(Problem(tiny_model()), (1,))
    batch = problem.batch(problem.rows)
    problem.loss(problem.log_probs(batch)[0], batch).backward()
    plain = [p.grad for p in problem.model.parameters()]
    problem.model.zero_grad()
    run(problem, output_function="log_prob")
    assert all(torch.equal(p.grad, g) for p, g in zip(problem.model.parameters(), plain, strict=True))


def test_responses_that_are_not_selected_never_cost_a_backward(problem):
    """Those of prompt c have no contrast and so, with group-relative advantages, no advantage either."""
    silent(problem, (7, 8))
    expected, metrics = run(problem, output_function="log_prob")
    assert metrics["influence_trace/debug_second_backwards"] == 1
    tracer = InfluenceTracer(problem.model, traced_config(output_function="log_prob"))
    rows = tracer.select(problem.groups).rows
    batch = problem.batch(problem.rows)
    with tracer.capture(batch.layout.only(rows)):
        log_probs, where = problem.log_probs(batch)
        loss = problem.loss(log_probs, batch)
        tracer.watch(loss, log_probs, where)
        loss.backward()
    metrics = tracer.metrics()
    assert metrics["influence_trace/debug_second_backwards"] == 0
    assert metrics["influence_trace/debug_rescaled_micro_batches"] == 1
    assert_same_scores(tracer.scores(problem.groups, dtype=torch.float64), expected)
