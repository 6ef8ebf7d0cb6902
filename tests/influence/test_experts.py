"""Fused experts of mixture-of-experts models: each is a linear map of its own, read without a change."""

import pytest
import torch
import transformers as hf
from tiny_update import VOCABULARY, Problem, assert_same_scores, traced_config
from torch import Tensor, nn

from archer.errors import ArcherError
from archer.influence import InfluenceTracer, Layout
from archer.influence.experts import transposed_weights
from archer.influence.factors import TokenFactors
from archer.influence.oracle import Gradients, brute_force_scores, position_factors

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "attn_implementation": "eager",
    "tie_word_embeddings": False,
}
TWO = {"num_experts_per_tok": 2}
SMALL = {"moe_intermediate_size": 16, "num_experts": 5, **TWO}
MODELS: dict[str, tuple[str, dict[str, object]]] = {
    "gpt-oss": ("GptOss", {"num_local_experts": 4, **TWO}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, **TWO}),
    "qwen3-moe": ("Qwen3Moe", SMALL),
    "qwen2-moe": ("Qwen2Moe", {**SMALL, "shared_expert_intermediate_size": 16}),
    "olmoe": ("Olmoe", {"num_experts": 4, "eos_token_id": 0, "pad_token_id": 0, **TWO}),
}
NEXT = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8}
MODELS["qwen3-next"] = (
    "Qwen3Next",
    {**SMALL, "shared_expert_intermediate_size": 16, "linear_value_head_dim": 8, **NEXT},
)
WAYS = ("eager", "batched_mm", "grouped_mm")


def llama4() -> nn.Module:
    changes = {"intermediate_size_mlp": 24, "num_local_experts": 4, "num_experts_per_tok": 1}
    return hf.Llama4ForCausalLM(hf.Llama4TextConfig(**SIZES, **changes, interleave_moe_layer_step=1))


def sparse_model(name: str, way: str = "eager", dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    if name == "llama4":
        model = llama4()
    else:
        architecture, changes = MODELS[name]
        config = getattr(hf, f"{architecture}Config")(**{**SIZES, **changes})
        model = getattr(hf, f"{architecture}ForCausalLM")(config)
        model.config._experts_implementation = way
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.2)
    return model.to(dtype).eval()


def expert_gradient(captured: TokenFactors, traced: object) -> Tensor:
    """sum over tokens of e x^T, as the slice of the weight has it."""
    factors = captured.experts[traced.fused.name]
    u, v = (side.dense([traced.expert], torch.device("cpu"))[0].double() for side in factors)
    return v.T @ u if transposed_weights(traced.module) else u.T @ v


def logits(model: nn.Module) -> Tensor:
    ids = torch.randint(0, VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(3))
    return model(ids, use_cache=False).logits


CASES = [(name, way) for name in MODELS for way in WAYS] + [("llama4", "eager")]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_factors_add_up_to_each_experts_gradient_and_the_forward_stays_the_models_own(name, way):
    model = sparse_model(name, way, torch.float32)
    weights = torch.linspace(-1, 1, VOCABULARY)
    plain = logits(model)
    (plain.log_softmax(-1) * weights).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    tracer = InfluenceTracer(model, traced_config(projection="none"))
    with tracer.capture(Layout(torch.zeros(12, dtype=torch.int64), torch.arange(12))):
        traced_logits = logits(model)
        (traced_logits.log_softmax(-1) * weights).sum().backward()
    assert torch.equal(traced_logits, plain)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert (parameter.grad is None and gradient is None) or torch.equal(parameter.grad, gradient)
    (captured,) = tracer.captured
    experts = [traced for traced in tracer.modules if traced.fused is not None]
    assert {traced.fused.parameter for traced in experts} == {"gate_up_proj", "down_proj"}
    for traced in experts:
        expected = traced.weight.grad.double()
        found = expert_gradient(captured, traced)
        torch.testing.assert_close(
            found, expected[traced.expert], rtol=0, atol=1e-6 * float(expected.abs().max())
        )


class Expert(nn.Module):
    """One expert as two linear modules that run on every token, weighted by 0 where it is not sent."""

    def __init__(self, fused: nn.Module, number: int) -> None:
        super().__init__()
        into, out = (weight.detach()[number] for weight in (fused.gate_up_proj, fused.down_proj))
        if transposed_weights(fused):
            into, out = into.T, out.T
        self.gate_up_proj = nn.Linear(into.shape[1], into.shape[0], bias=fused.has_bias).to(into)
        self.down_proj = nn.Linear(out.shape[1], out.shape[0], bias=fused.has_bias).to(into)
        with torch.no_grad():
            self.gate_up_proj.weight.copy_(into)
            self.down_proj.weight.copy_(out)
            if fused.has_bias:
                self.gate_up_proj.bias.copy_(fused.gate_up_proj_bias[number])
                self.down_proj.bias.copy_(fused.down_proj_bias[number])
        self.gate = fused._apply_gate

    def forward(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return self.down_proj(self.gate(self.gate_up_proj(hidden))) * weight[:, None]


class PlainExperts(nn.Module):
    """The same function as a fused experts' module, out of plain linear modules."""

    def __init__(self, fused: nn.Module) -> None:
        super().__init__()
        self.each = nn.ModuleList(Expert(fused, number) for number in range(fused.num_experts))

    def forward(self, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        total = torch.zeros_like(hidden)
        for number, expert in enumerate(self.each):
            total = total + expert(hidden, (weights * (index == number)).sum(-1).to(hidden))
        return total


def oracle_gradients(problem: Problem, plain: Problem, tracer: InfluenceTracer, config: object) -> Gradients:
    """Explicit projected gradients of every traced map, experts through the plain modules.

    A token that is not sent to an expert reaches its plain modules with weight 0, so its gradient is 0.
    """
    batch = plain.batch(plain.rows)
    names = {}
    for traced in tracer.modules:
        name = traced.name
        if traced.fused is not None:
            stem, _, parameter = traced.fused.name.rpartition(".")
            name = f"{stem}.each.{traced.expert}.{parameter}"
        names[traced.name] = name
    seen = [_Named(names[t.name], plain.model.get_submodule(names[t.name])) for t in tracer.modules]
    factors = position_factors(seen, lambda: plain.objective(config, batch, "clipped"))
    gradients: Gradients = {}
    for row, length in batch.layout.lengths().items():
        gradients[row] = []
        for traced in tracer.modules:
            x, e = factors[names[traced.name]]
            P_in, P_out = traced.project_in.matrix().to(x), traced.project_out.matrix().to(x)
            at = [
                int(((batch.layout.row == row) & (batch.layout.token == t)).nonzero()) for t in range(length)
            ]
            tokens = [(P_out @ torch.outer(e[p], x[p]) @ P_in.T).flatten() for p in at]
            gradients[row].append(torch.stack(tokens))
    return gradients


class _Named:
    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self.module = name, module


KNOBS = [
    {"output_function": "training_loss"},
    {"output_function": "log_prob", "exclude_self_response": True, "contrastive_agg": "mean"},
    {"output_function": "log_prob", "hessian_mode": "identity"},
    {"output_function": "log_prob", "hessian_source": "token", "reg_rule": "kernel_trace"},
    {"output_function": "log_prob_reward", "score_normalization": "token_norm"},
]


@pytest.mark.parametrize("name", ["gpt-oss", "mixtral", "qwen3-moe"])
@pytest.mark.parametrize("knobs", KNOBS, ids=str)
@pytest.mark.parametrize("arrangement", ["right", "packed"])
def test_scores_equal_brute_force_over_experts_as_modules_of_their_own(name, knobs, arrangement):
    problem = Problem(sparse_model(name))
    config = traced_config(module_name_filter="experts,o_proj", **knobs)
    tracer = InfluenceTracer(problem.model, config)
    problem.update(tracer, [[0, 4, 1], [2, 5, 6, 7], [3, 8]], arrangement, "clipped")
    found = tracer.scores(problem.groups, dtype=torch.float64)
    plain = Problem(sparse_model(name))
    for module_name, module in list(plain.model.named_modules()):
        if transposed_weights(module) is not None:
            plain.model.set_submodule(module_name, PlainExperts(module))
    gradients = oracle_gradients(problem, plain, tracer, config)
    for group in problem.groups[:2]:
        expected = brute_force_scores(gradients, group, config)
        assert_same_scores({row: found[row] for row in group.rows}, expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["non-reentrant", "reentrant"])
@pytest.mark.parametrize("loss", ["on_policy", "clipped"])
@pytest.mark.parametrize("way", WAYS)
def test_gradient_checkpointing_changes_nothing(kind, loss, way):
    config = traced_config(output_function="log_prob")
    scores = []
    for checkpointed in (False, True):
        problem = Problem(sparse_model("mixtral", way, torch.float32), torch.float32)
        if checkpointed:
            problem.model.train()
            problem.model.gradient_checkpointing_enable({"use_reentrant": kind == "reentrant"})
            problem.model.enable_input_require_grads()
        tracer = InfluenceTracer(problem.model, config)
        problem.update(tracer, kind=loss)
        scores.append(tracer.scores(problem.groups))
    assert_same_scores(scores[1], scores[0], rtol=1e-4)


def test_bfloat16_gives_nearly_the_wide_scores():
    config = traced_config(hessian_mode="identity", module_name_filter="experts")
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        problem = Problem(sparse_model("qwen3-moe", "grouped_mm", dtype), dtype)
        tracer = InfluenceTracer(problem.model, config)
        problem.update(tracer)
        scores = tracer.scores(problem.groups)
        found.append(torch.cat([scores[row] for row in sorted(scores)]))
    assert torch.corrcoef(torch.stack(found))[0, 1] > 0.95  # some tokens are sent to other experts


def test_nothing_is_left_behind_on_the_experts_module():
    problem = Problem(sparse_model("mixtral"))
    experts = problem.model.model.layers[0].mlp.experts
    problem.update(InfluenceTracer(problem.model, traced_config()))
    assert not experts._forward_hooks and not experts._forward_pre_hooks
    assert "forward" not in vars(experts)


def test_a_kernel_that_hides_its_products_is_refused_by_name(monkeypatch):
    model = sparse_model("mixtral")
    experts = model.model.layers[0].mlp.experts
    monkeypatch.setattr(experts, "forward", lambda hidden, *_: hidden + 0.0)
    tracer = InfluenceTracer(model, traced_config())
    layout = Layout(torch.zeros(12, dtype=torch.int64), torch.arange(12))
    named = r"no product with model\.layers\.0\.mlp\.experts\.gate_up_proj was seen"
    with pytest.raises(ArcherError, match=named), tracer.capture(layout):
        logits(model)


def test_the_last_layers_experts_alone():
    modules = InfluenceTracer(
        sparse_model("mixtral"), traced_config(module_name_filter="experts.down_proj", max_modules=1)
    ).modules
    assert [traced.name for traced in modules] == [
        f"model.layers.1.mlp.experts.down_proj.{e}" for e in range(4)
    ]


def test_an_empty_filter_leaves_llama4s_router_out_and_traces_the_rest():
    model = sparse_model("llama4", dtype=torch.float32)
    tracer = InfluenceTracer(model, traced_config(module_name_filter=""))
    assert tracer.modules[-1].name == "lm_head"
    assert not any("router" in traced.name for traced in tracer.modules)
    assert "weights of Llama4Router model.layers.*.feed_forward.router.weight" in tracer.describe()
