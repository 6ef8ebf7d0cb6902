"""What the hooks read, what they refuse, and that they leave nothing behind."""

import weakref

import pytest
import torch
from tiny_update import Problem, assert_same_scores, tiny_model, traced_config, traced_scores
from torch import nn
from torch.utils.checkpoint import checkpoint

from archer.errors import ArcherError
from archer.influence import Group, InfluenceConfig, InfluenceTracer, Layout
from archer.influence.oracle import brute_force_scores, explicit_gradients, position_factors

CHECKPOINTING = {
    "none": None,
    "non-reentrant": {"use_reentrant": False},
    "reentrant": {"use_reentrant": True},
}


def set_checkpointing(model: nn.Module, kind: str) -> None:
    if CHECKPOINTING[kind] is None:
        return
    model.train()
    model.gradient_checkpointing_enable(CHECKPOINTING[kind])
    model.enable_input_require_grads()


def hook_count(model: nn.Module) -> int:
    return sum(
        len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()
    )


def every_position(size: int) -> Layout:
    return Layout(torch.zeros(size, dtype=torch.int64), torch.arange(size))


@pytest.mark.parametrize("kind", CHECKPOINTING)
@pytest.mark.parametrize("tied", [False, True])
def test_captured_factors_add_up_to_the_weight_gradients(kind, tied):
    problem = Problem(tiny_model(tie_word_embeddings=tied))
    set_checkpointing(problem.model, kind)
    config = traced_config(projection="none", module_name_filter="")
    tracer = InfluenceTracer(problem.model, config)
    batch = problem.batch(problem.rows)
    with tracer.capture(every_position(batch.layout.size)):
        log_probs, _ = problem.log_probs(batch)
        problem.loss(log_probs, batch, "clipped").backward()
    (captured,) = tracer.captured
    assert len(tracer.modules) == 15
    for traced in tracer.modules:
        if tied and traced.name == "lm_head":
            continue  # its .grad holds the embedding's share, too
        gradient = captured.u[traced.name].T @ captured.v[traced.name]
        torch.testing.assert_close(gradient, traced.module.weight.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("arrangement", ["right", "left", "blocks", "packed"])
def test_the_gradient_at_a_token_is_that_of_its_own_logits(problem, arrangement):
    """dL/dlogits = -A/N (1[token] - p), which a shifted position fails even where it correlates."""
    tracer = InfluenceTracer(problem.model, traced_config(projection="none", module_name_filter="lm_head"))
    problem.update(tracer, arrangement=arrangement)
    (captured,) = tracer.captured
    tokens = sum(len(response) for response in problem.responses)
    for u, row, token in zip(
        captured.u["lm_head"], captured.row.tolist(), captured.token.tolist(), strict=True
    ):
        prefix = torch.cat([problem.prompts[row], problem.responses[row][:token]])
        with torch.no_grad():
            p = problem.model(prefix[None]).logits[0, -1].softmax(-1)
        chosen = nn.functional.one_hot(problem.responses[row][token], len(p))
        torch.testing.assert_close(u, -problem.advantages[row] / tokens * (chosen - p), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["non-reentrant", "reentrant"])
@pytest.mark.parametrize("objective", ["training_loss", "log_prob", "log_prob_reward"])
@pytest.mark.parametrize("loss", ["on_policy", "clipped"])
def test_gradient_checkpointing_changes_nothing(kind, objective, loss):
    config = traced_config(output_function=objective)
    plain = traced_scores(Problem(tiny_model()), config, kind=loss)
    problem = Problem(tiny_model())
    set_checkpointing(problem.model, kind)
    assert_same_scores(traced_scores(problem, config, kind=loss), plain)


def test_an_activation_dies_with_the_checkpointed_forward():
    problem = Problem(tiny_model())
    set_checkpointing(problem.model, "non-reentrant")
    seen = []
    traced = problem.model.model.layers[1].mlp.down_proj
    traced.register_forward_hook(lambda module, args, output: seen.append(weakref.ref(args[0])))
    tracer = InfluenceTracer(problem.model, traced_config())
    batch = problem.batch(problem.rows)
    with tracer.capture(batch.layout):
        log_probs, _ = problem.log_probs(batch)
        assert seen[0]() is None
        problem.loss(log_probs, batch).backward()


def test_a_shared_input_is_projected_once(problem):
    tracer = InfluenceTracer(problem.model, traced_config())
    problem.update(tracer)
    metrics = tracer.metrics()
    assert metrics["influence_trace/debug_forward_set_v_calls"] == 14
    assert (
        metrics["influence_trace/debug_input_projections"] == 8
    )  # q/k/v, o, gate/up, down in each of two layers


class Siblings(nn.Module):
    """Two linear maps of one parent and one shape, so of one input projection, that read different values."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a = nn.Linear(6, 4, dtype=torch.float64)
        self.b = nn.Linear(6, 4, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x.tanh()) + self.b(x.exp())


def test_different_inputs_of_siblings_are_not_mistaken_for_a_shared_one():
    model = Siblings()
    config = traced_config(module_name_filter="", projection_dim_factor=2)
    tracer = InfluenceTracer(model, config)
    assert tracer.modules[0].project_in is tracer.modules[1].project_in
    layout = Layout(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1]))
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    weights = torch.tensor([[1.0], [2.0], [-1.0], [3.0]])
    with tracer.capture(layout):
        (model(x) * weights).sum().backward()
    group = Group("a", (0, 1), (True, False))
    factors = position_factors(tracer.modules, lambda: (model(x) * weights).sum())
    expected = brute_force_scores(explicit_gradients(tracer.modules, factors, layout), group, config)
    assert_same_scores(tracer.scores([group], dtype=torch.float64), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_narrow_storage_keeps_scores_within_its_rounding(problem, dtype):
    exact = traced_scores(problem, traced_config())
    tolerance = {"bfloat16": 0.05, "float32": 1e-5}[dtype]
    narrow = traced_scores(problem, traced_config(factor_dtype=dtype))
    assert_same_scores(narrow, exact, rtol=tolerance)
    assert any((narrow[row] != exact[row]).any() for row in exact)


@pytest.mark.parametrize("knobs", [{"force_gpu_compute": False}, {"profile_timing": True}])
def test_where_factors_rest_does_not_matter(problem, knobs):
    plain = traced_scores(problem, traced_config())
    assert_same_scores(traced_scores(problem, traced_config(grad_offload_to_cpu=True, **knobs)), plain)


def test_half_precision_activations_are_widened_before_they_are_summed():
    model = nn.Sequential(nn.Linear(64, 4, bias=False)).half()
    tracer = InfluenceTracer(model, traced_config(module_name_filter="", projection_dim_factor=16))
    with tracer.capture(Layout(torch.tensor([0, 1]), torch.tensor([0, 0]))):
        model(torch.full((2, 64), 30000.0).half()).float().mean().backward()
    (captured,) = tracer.captured
    assert captured.v["0"].dtype == torch.float32
    assert captured.v["0"].isfinite().all()


def test_bfloat16_model_gives_nearly_the_float64_scores():
    wide = traced_scores(Problem(tiny_model()), traced_config(hessian_mode="identity"))
    model = tiny_model(torch.bfloat16)
    narrow = traced_scores(
        Problem(model), traced_config(hessian_mode="identity", proportionality_tolerance=1e-2)
    )
    found, expected = (torch.cat([scores[row] for row in sorted(wide)]) for scores in (narrow, wide))
    assert torch.corrcoef(torch.stack([found, expected]))[0, 1] > 0.99


def test_no_hook_outlives_the_capture(problem):
    before = hook_count(problem.model)
    tracer = InfluenceTracer(problem.model, traced_config())
    assert hook_count(problem.model) == before
    batch = problem.batch(problem.rows)
    with tracer.capture(batch.layout):
        assert hook_count(problem.model) == before + 14
        log_probs, _ = problem.log_probs(batch)
        problem.loss(log_probs, batch).backward()
    assert hook_count(problem.model) == before


def test_an_exception_removes_the_hooks_and_drops_the_micro_batch(problem):
    before = hook_count(problem.model)
    tracer = InfluenceTracer(problem.model, traced_config())

    def update() -> None:
        with tracer.capture(problem.batch([0]).layout):
            problem.log_probs(problem.batch([0]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        update()
    assert hook_count(problem.model) == before
    assert tracer.captured == ()
    assert traced_scores(problem, traced_config()).keys() == set(range(7))


def test_a_disabled_tracer_installs_nothing_and_scores_nothing(problem):
    tracer = InfluenceTracer(problem.model, InfluenceConfig(enable=False))
    before = hook_count(problem.model)
    with tracer.capture(problem.batch([0]).layout):
        assert hook_count(problem.model) == before
    assert tracer.scores(problem.groups) == {}


def test_a_micro_batch_without_selected_rows_installs_no_hook(problem):
    tracer = InfluenceTracer(problem.model, traced_config())
    before = hook_count(problem.model)
    with tracer.capture(Layout.padded([-1], [2], [3], 6)):
        assert hook_count(problem.model) == before


def test_two_backwards_in_one_capture_add_up(problem):
    config = traced_config()
    once = traced_scores(problem, config, kind="clipped")
    tracer = InfluenceTracer(problem.model, config)
    batch = problem.batch(problem.rows)
    with tracer.capture(batch.layout):
        log_probs, _ = problem.log_probs(batch)
        loss = problem.loss(log_probs, batch, "clipped")
        (0.25 * loss).backward(retain_graph=True)
        (0.75 * loss).backward()
    assert_same_scores(tracer.scores(problem.groups, dtype=torch.float64), once)


class ChunkedHead(nn.Module):
    """A body and a head that is applied to chunks of positions, as memory-saving losses do."""

    def __init__(self, chunk: int, use_reentrant: bool | None) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Linear(6, 8, dtype=torch.float64)
        self.lm_head = nn.Linear(8, 5, dtype=torch.float64)
        self.chunk, self.use_reentrant = chunk, use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pieces = self.body(x).tanh().split(self.chunk)
        if self.use_reentrant is None:
            return torch.cat([self.lm_head(piece) for piece in pieces]).log_softmax(-1)
        heads = [checkpoint(self.lm_head, piece, use_reentrant=self.use_reentrant) for piece in pieces]
        return torch.cat(heads).log_softmax(-1)


def chunked_scores(chunk: int, use_reentrant: bool | None) -> dict[int, torch.Tensor]:
    model = ChunkedHead(chunk, use_reentrant)
    tracer = InfluenceTracer(model, traced_config(module_name_filter="", projection_dim_factor=2))
    layout = Layout(torch.tensor([-1, 0, 0, 0, -1, 1, 1, -1, 1]), torch.tensor([0, 0, 1, 2, 0, 0, 1, 0, 2]))
    x = torch.randn(9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with tracer.capture(layout):
        (model(x)[:, 0] * torch.linspace(-1, 2, 9)).sum().backward()
    return tracer.scores([Group("a", (0, 1), (True, False))], dtype=torch.float64)


@pytest.mark.parametrize("chunk", [1, 2, 4])
@pytest.mark.parametrize("use_reentrant", [None, False])
def test_a_head_called_in_chunks_is_pieced_together(chunk, use_reentrant):
    assert_same_scores(chunked_scores(chunk, use_reentrant), chunked_scores(9, None))


def test_chunks_under_reentrant_checkpointing_are_refused():
    with pytest.raises(ArcherError, match="lm_head is called in chunks under reentrant"):
        chunked_scores(2, use_reentrant=True)


def test_a_head_on_part_of_the_positions_is_refused(problem):
    tracer = InfluenceTracer(problem.model, traced_config(module_name_filter="lm_head"))
    batch = problem.batch([0, 1])
    with pytest.raises(ArcherError, match="lm_head saw 4 of the layout's"), tracer.capture(batch.layout):
        problem.model(**batch.inputs, logits_to_keep=2).logits.sum().backward()


def test_two_forwards_in_one_capture_are_refused(problem):
    tracer = InfluenceTracer(problem.model, traced_config())
    batch = problem.batch([0, 1])

    def update() -> None:
        with tracer.capture(batch.layout):
            problem.log_probs(batch)
            problem.log_probs(batch)

    with pytest.raises(ArcherError, match=r"q_proj was called again"):
        update()


def test_forwards_without_grad_do_not_disturb(problem):
    plain = traced_scores(problem, traced_config())
    tracer = InfluenceTracer(problem.model, traced_config())
    batch = problem.batch(problem.rows)
    with tracer.capture(batch.layout):
        with torch.no_grad():
            problem.log_probs(problem.batch([0]))
        log_probs, _ = problem.log_probs(batch)
        problem.loss(log_probs, batch).backward()
    assert tracer.metrics()["influence_trace/debug_forward_without_grad_calls"] == 14
    assert_same_scores(tracer.scores(problem.groups, dtype=torch.float64), plain)


def test_a_layout_of_another_batch_is_refused(problem):
    tracer = InfluenceTracer(problem.model, traced_config())
    with pytest.raises(ArcherError, match="the layout describes"), tracer.capture(problem.batch([0]).layout):
        problem.log_probs(problem.batch([0, 1, 2]))


def test_a_forward_outside_the_capture_is_named(problem):
    tracer = InfluenceTracer(problem.model, traced_config())
    batch = problem.batch([0, 1])
    log_probs, _ = problem.log_probs(batch)
    with pytest.raises(ArcherError, match="the forward belongs inside"), tracer.capture(batch.layout):
        log_probs.sum().backward()


def test_a_backward_outside_the_capture_is_named(problem):
    tracer = InfluenceTracer(problem.model, traced_config())
    batch = problem.batch([0, 1])
    with pytest.raises(ArcherError, match="run backward inside"), tracer.capture(batch.layout):
        problem.log_probs(batch)


def test_captures_do_not_nest(problem):
    tracer = InfluenceTracer(problem.model, traced_config())
    layout = problem.batch([0]).layout
    with pytest.raises(ArcherError, match="do not nest"), tracer.capture(layout), tracer.capture(layout):
        pass


def test_a_row_is_captured_once(problem):
    tracer = InfluenceTracer(problem.model, traced_config())
    problem.update(tracer, [[0, 1]])
    with pytest.raises(ArcherError, match=r"response rows \[1\] were captured before"):
        problem.update(tracer, [[1, 2]])


def test_a_group_row_that_was_never_captured_is_named(problem):
    tracer = InfluenceTracer(problem.model, traced_config())
    problem.update(tracer, [[0, 1, 2]])
    with pytest.raises(ArcherError, match=r"response rows \[3\] of the groups were not captured"):
        tracer.scores(problem.groups[:1])
    assert tracer.captured == ()


def step(problem: Problem) -> None:
    torch.optim.SGD(problem.model.parameters(), lr=0.1).step()
    problem.model.zero_grad()


def test_a_group_spread_over_two_weight_versions_is_refused(problem):
    tracer = InfluenceTracer(problem.model, traced_config())
    problem.update(tracer, [[0, 1]])
    step(problem)
    problem.update(tracer, [[2, 3]])
    with pytest.raises(ArcherError, match="group a was captured under 2 different sets of weights"):
        tracer.scores(problem.groups[:1])


def test_groups_of_different_mini_batches_are_scored_under_their_own_weights(problem):
    tracer = InfluenceTracer(problem.model, traced_config())
    problem.update(tracer, [[0, 1], [2, 3]])
    step(problem)
    problem.update(tracer, [[4, 5, 6]])
    scores = tracer.scores(problem.groups[:2], dtype=torch.float64)
    versions = tracer.weights_of
    assert versions[0] == versions[3] != versions[4] == versions[6]
    assert tracer.metrics()["influence_trace/debug_weight_versions"] == 2

    alone = InfluenceTracer(problem.model, traced_config())
    problem.update(alone, [[4, 5, 6]])
    again = alone.scores(problem.groups[1:2], dtype=torch.float64)
    assert_same_scores({row: scores[row] for row in again}, again)


@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_a_model_compiled_before_the_first_capture_runs_uncompiled_inside_it(how):
    expected = traced_scores(Problem(tiny_model()), traced_config())
    problem = Problem(tiny_model())
    if how == "wrapped":
        problem.model = torch.compile(problem.model, backend="eager")
    else:
        problem.model.compile(backend="eager")
    with torch.no_grad():
        problem.log_probs(problem.batch([0, 1]))  # compiled without hooks
    assert_same_scores(traced_scores(problem, traced_config()), expected)
