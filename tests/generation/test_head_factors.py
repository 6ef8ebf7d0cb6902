"""The head's factors out of a forward are those of a backward, whatever a model makes of its head's output.

Three readers: the local engine's policy, that of other trainers, and that of verl's workers.
"""

import pytest
import torch
import transformers
from torch import Tensor

from archer.algorithms.token_credit.config import token_credit_config
from archer.engines.verl.credit import HeadRecorder
from archer.engines.verl.influence import TracedRows
from archer.errors import ArcherError
from archer.generation.batch import micro_batch
from archer.generation.device import Compute
from archer.generation.policy import Policy
from archer.influence.head import HeadSketch
from archer.integrations.head import HeadReader
from archer.training.credit import TokenCredit

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.5,
}
CAPPED = {"head_dim": 8, "query_pre_attn_scalar": 8, "final_logit_softcapping": 2.0}
PLAIN = {
    "Llama": {},
    "Qwen2": {"tie_word_embeddings": True},
    "Gemma2": CAPPED,
    "Granite": {"logits_scaling": 8.0},
    "Cohere": {"logit_scale": 0.25},
}
TRANSFORMED = {"Bert": {"is_decoder": True}}
"""What they do between the last hidden states and the head."""
TEMPERATURE = 0.7


def tiny(name: str, settings: dict) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **settings})
    return transformers.AutoModelForCausalLM.from_config(config).double().eval()


def of_a_backward(model, ids: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """(u, v) of the tokens from `first` on, one backward each."""
    seen: list = []

    def keep(_, given, made):
        made.retain_grad()
        seen[:] = [given[0].detach()[0], made]

    u, v = [], []
    hook = model.get_output_embeddings().register_forward_hook(keep)
    for t in range(first, len(ids)):
        (model(ids[None]).logits[0, t - 1] / TEMPERATURE).log_softmax(-1)[ids[t]].backward()
        u.append(seen[1].grad[0, t - 1])
        v.append(seen[0][t - 1])
    hook.remove()
    return torch.stack(u), torch.stack(v)


def assert_equal(found: Tensor, expected: Tensor) -> None:
    assert (found - expected).abs().max() < 1e-6 * expected.abs().max()


@pytest.mark.parametrize("name", [*PLAIN, *TRANSFORMED])
def test_the_policys(name, make_responses):
    model, responses = tiny(name, {**PLAIN, **TRANSFORMED}[name]), make_responses([3, 2], [4, 6])
    policy = Policy(model, Compute(torch.device("cpu"), torch.float32), TEMPERATURE)
    batch = micro_batch(responses, [0, 1], torch.device("cpu"), False)
    factors = policy.token_stats(batch, sketch=HeadSketch.of(16, 50, 0)).factors
    for row, (prompt, length) in enumerate(zip([3, 2], [4, 6], strict=True)):
        ids = torch.cat([torch.tensor(responses.prompts[row].token_ids), responses.tokens[row, :length]])
        u, v = of_a_backward(model, ids, prompt)
        assert_equal(factors.u[row, :length], u)
        assert_equal(factors.v[row, :length], v)


@pytest.mark.parametrize("name", PLAIN)
def test_those_of_another_trainers_forward(name):
    model, ids = tiny(name, PLAIN[name]), torch.randint(3, 50, (9,))
    reader = HeadReader(model, HeadSketch.of(16, 50, 0), TEMPERATURE)
    with torch.no_grad(), reader.watching():
        model(ids[None])
    factors = reader.factors(ids[None, 4:])
    for found, expected in zip(factors, of_a_backward(model, ids, 4), strict=True):
        assert_equal(found[0], expected)


@pytest.mark.parametrize("name", TRANSFORMED)
def test_other_trainers_are_told_where_the_head_cannot_be_read(name):
    with pytest.raises(ArcherError, match="gives its head something else than its last hidden states"):
        HeadReader(tiny(name, TRANSFORMED[name]), HeadSketch.of(16, 50, 0), TEMPERATURE)


@pytest.mark.parametrize("name", [*PLAIN, *TRANSFORMED])
def test_those_of_verls_workers(name):
    model, ids = tiny(name, {**PLAIN, **TRANSFORMED}[name]), torch.randint(3, 50, (9,))
    credit = TokenCredit(token_credit_config(mode="nthr", projection_dim=0), 0)
    recorder = HeadRecorder(model, credit, TEMPERATURE, None)
    recorder.begin(frozenset({7}))
    rows = TracedRows([7], [4], [5], torch.ones(5, dtype=torch.bool))
    with torch.no_grad(), recorder.reading(rows, rows.packed(), ids[4:]):
        model(ids[None])
    (captured,) = recorder._captured
    u, v = of_a_backward(model, ids, 4)
    assert_equal(captured.u["head"], u)
    assert_equal(captured.v["head"], v)


def test_a_slope_goes_through_a_projection():
    torch.manual_seed(0)
    sketch = HeadSketch.of(16, 50, 8)
    probs, tokens = torch.rand(3, 50).softmax(-1), torch.tensor([4, 0, 49])
    pulls = (torch.nn.functional.one_hot(tokens, 50) - probs) / TEMPERATURE
    slope = torch.rand(3, 50)
    P = sketch.project_out.matrix(torch.float32)
    for given in (slope, 0.25):
        found = sketch.output_factors(probs, tokens, TEMPERATURE, given)
        assert torch.allclose(found, (pulls * given) @ P.T, atol=1e-6)


def test_logits_that_are_made_in_another_way_are_refused(make_responses):
    model, responses = tiny("Llama", {}), make_responses([3], [4])
    head = model.get_output_embeddings()
    forward = model.forward

    def squared(*args, **options):
        output = forward(*args, **options)
        output.logits = output.logits.square()
        return output

    model.forward = squared
    policy = Policy(model, Compute(torch.device("cpu"), torch.float32), TEMPERATURE)
    sketch = HeadSketch.of(head.in_features, head.out_features, 0)
    batch = micro_batch(responses, [0], torch.device("cpu"), False)
    with pytest.raises(ArcherError, match="LlamaForCausalLM turns its head's output into logits in a way"):
        policy.token_stats(batch, sketch=sketch)


def test_an_adapter_on_the_head_is_refused_by_name():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(tiny("Llama", {}), LoraConfig(target_modules=["lm_head"]))
    credit = TokenCredit(token_credit_config(mode="nthr"), 0)
    with pytest.raises(ArcherError, match="no plain linear layer here but Linear: leave adapters off"):
        credit.sketch(model.get_base_model().get_output_embeddings())
