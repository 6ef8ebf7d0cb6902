"""A tiny group-relative update in float64 that can be arranged in every way an engine may arrange it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from archer.influence import Group, InfluenceConfig, InfluenceTracer, Layout

torch.set_num_threads(1)


class WideTorch:
    """torch, with float64 where Qwen2 asks for float32: its norms and softmax would round a float64 model."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)


# prompt and response length of each row; rows 0-3 answer prompt a, 4-6 prompt b, 7-8 prompt c (all accepted)
PROMPTS = (3, 3, 3, 3, 2, 2, 2, 4, 4)
RESPONSES = (4, 2, 5, 3, 1, 4, 2, 2, 3)
GROUPS = (
    Group("a", (0, 1, 2, 3), (True, False, False, True)),
    Group("b", (4, 5, 6), (False, True, False)),
    Group("c", (7, 8), (True, True)),
)
VOCABULARY = 13


def tiny_model(dtype: torch.dtype = torch.float64, **changes: object) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    settings = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "attn_implementation": "eager",
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
    }
    return Qwen2ForCausalLM(Qwen2Config(**{**settings, **changes})).to(dtype)


@dataclass(frozen=True)
class Batch:
    """Model inputs of some rows and the layout of the activations they give."""

    rows: list[int]
    inputs: dict[str, Tensor]
    layout: Layout


class Problem:
    """Model, sampled responses, advantages and rewards; `update` runs one traced update."""

    def __init__(self, model: nn.Module, dtype: torch.dtype = torch.float64) -> None:
        generator = torch.Generator().manual_seed(7)
        self.model, self.dtype = model, dtype
        self.prompts = [torch.randint(1, VOCABULARY, (n,), generator=generator) for n in PROMPTS]
        self.responses = [torch.randint(1, VOCABULARY, (n,), generator=generator) for n in RESPONSES]
        self.old_shift = [0.4 * torch.randn(n, generator=generator, dtype=dtype) for n in RESPONSES]
        self.rewards = torch.tensor([1.0, 0.0, -0.5, 2.0, -1.0, 1.5, 0.5, 1.0, 1.0], dtype=dtype)
        self.advantages = torch.tensor([0.8, -0.9, -1.1, 1.2, -0.6, 1.3, -0.7, 0.1, -0.1], dtype=dtype)
        self.groups = GROUPS
        self.rows = list(range(len(PROMPTS)))

    def batch(self, rows: list[int], arrangement: str = "right") -> Batch:
        sequences = [torch.cat([self.prompts[r], self.responses[r]]) for r in rows]
        prompts, responses = [PROMPTS[r] for r in rows], [RESPONSES[r] for r in rows]
        if arrangement == "packed":
            return self._packed(rows, sequences, prompts, responses)
        width = max(map(len, sequences)) + 2
        prompt_width = max(prompts)
        ids = torch.zeros(len(rows), width, dtype=torch.int64)
        mask = torch.zeros(len(rows), width, dtype=torch.int64)
        if arrangement == "blocks":
            width = prompt_width + max(responses)
            ids, mask = ids.new_zeros(len(rows), width), mask.new_zeros(len(rows), width)
        for i, (sequence, prompt) in enumerate(zip(sequences, prompts, strict=True)):
            n = len(sequence)
            begin = {"right": 0, "left": width - n, "blocks": prompt_width - prompt}[arrangement]
            ids[i, begin : begin + n] = sequence
            mask[i, begin : begin + n] = 1
        if arrangement == "blocks":
            layout = Layout.blocks(rows, prompt_width, responses, width)
        else:
            layout = Layout.padded(rows, prompts, responses, width, side=arrangement)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        return Batch(rows, {"input_ids": ids, "attention_mask": mask, "position_ids": positions}, layout)

    def _packed(
        self, rows: list[int], sequences: list[Tensor], prompts: list[int], responses: list[int]
    ) -> Batch:
        owner = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([len(s) for s in sequences]))
        visible = (owner[:, None] == owner[None, :]).tril()
        bias = torch.zeros(visible.shape, dtype=self.dtype).masked_fill(~visible, torch.finfo(self.dtype).min)
        inputs = {
            "input_ids": torch.cat(sequences)[None],
            "attention_mask": bias[None, None],
            "position_ids": torch.cat([torch.arange(len(s)) for s in sequences])[None],
        }
        return Batch(rows, inputs, Layout.packed(rows, prompts, responses))

    def log_probs(self, batch: Batch, model: Callable[..., object] | None = None) -> tuple[Tensor, Layout]:
        """[N, width] response-aligned log-probs, 0 where padded, and their layout."""
        logits = (model or self.model)(**batch.inputs, use_cache=False).logits
        flat = logits.flatten(0, -2).log_softmax(-1)
        where = (batch.layout.row >= 0).nonzero().squeeze(1)
        row, token = batch.layout.row[where], batch.layout.token[where]
        target = torch.stack(
            [self.responses[r][t] for r, t in zip(row.tolist(), token.tolist(), strict=True)]
        )
        place = torch.tensor([batch.rows.index(r) for r in row.tolist()])
        lengths = [RESPONSES[r] for r in batch.rows]
        empty = torch.zeros(len(batch.rows), max(lengths), dtype=flat.dtype)
        values = empty.index_put((place, token), flat[where].gather(1, target[:, None]).squeeze(1))
        return values, Layout.responses(batch.rows, lengths, max(lengths))

    def loss(self, log_probs: Tensor, batch: Batch, kind: str = "on_policy") -> Tensor:
        """Token mean over the update of -A * ratio; `clipped` is off-policy, with clipping and a KL term."""
        advantages = self.advantages[batch.rows][:, None]
        if kind == "on_policy":
            objective = advantages * (log_probs - log_probs.detach()).exp()
        else:
            shift = torch.zeros_like(log_probs)
            for i, r in enumerate(batch.rows):
                shift[i, : RESPONSES[r]] = self.old_shift[r]
            ratio = (log_probs - log_probs.detach() + shift).exp()
            clipped = ratio.clamp(0.8, 1.2)
            objective = torch.minimum(advantages * ratio, advantages * clipped) - 0.05 * shift * log_probs
        mask = torch.zeros_like(log_probs)
        for i, r in enumerate(batch.rows):
            mask[i, : RESPONSES[r]] = 1
        return -(objective * mask).sum() / sum(RESPONSES)

    def update(
        self,
        tracer: InfluenceTracer,
        micro_batches: list[list[int]] | None = None,
        arrangement: str = "right",
        kind: str = "on_policy",
    ) -> None:
        for rows in micro_batches or [self.rows]:
            batch = self.batch(rows, arrangement)
            with tracer.capture(batch.layout):
                log_probs, where = self.log_probs(batch)
                loss = self.loss(log_probs, batch, kind)
                tracer.watch(
                    loss,
                    log_probs,
                    where,
                    advantages=self.advantages[rows][:, None],
                    rewards=self.rewards[rows][:, None],
                )
                loss.backward()

    def objective(self, config: InfluenceConfig, batch: Batch, kind: str = "on_policy") -> Tensor:
        """J written out, for the oracle."""
        log_probs, _ = self.log_probs(batch)
        if config.output_function == "training_loss":
            return self.loss(log_probs, batch, kind)
        weights = {
            "log_prob": torch.ones(len(batch.rows), 1, dtype=self.dtype),
            "log_prob_advantage": self.advantages[batch.rows][:, None],
            "log_prob_reward": self.rewards[batch.rows][:, None],
        }[config.output_function]
        return (weights * log_probs).sum()


def traced_scores(problem: Problem, config: InfluenceConfig, **how: object) -> dict[int, Tensor]:
    """Scores of one update in float64, the gradients it left dropped."""
    tracer = InfluenceTracer(problem.model, config)
    problem.update(tracer, **how)
    problem.model.zero_grad()
    return tracer.scores(problem.groups, dtype=torch.float64)


def assert_same_scores(
    found: dict[int, Tensor], expected: dict[int, Tensor], rtol: float = 1e-9, equal_nan: bool = False
) -> None:
    """Equal within rtol of the largest score of all rows."""
    assert found.keys() == expected.keys()
    largest = max(float(e.nan_to_num().abs().max()) for e in expected.values())
    for row in expected:
        torch.testing.assert_close(
            found[row].double(), expected[row].double(), rtol=0, atol=rtol * largest, equal_nan=equal_nan
        )


def traced_config(**changes: object) -> InfluenceConfig:
    """A config that traces, with small projections and no tolerance to speak of."""
    base = InfluenceConfig(enable=True, projection_dim_factor=8, proportionality_tolerance=1e-9)
    return replace(base, **changes)
