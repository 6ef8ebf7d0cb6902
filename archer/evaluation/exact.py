"""Exact accuracy on the built-in task: the probability of the one right response, without sampling noise.

Each problem has one right response, known to the last character. Its probability under the policy is the
share of right responses that sampling at temperature 1 would find with ever more samples.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from archer.data.arithmetic import write_steps
from archer.data.builtin import DATA_SOURCE
from archer.data.prompts import Prompt
from archer.generation.batch import Responses
from archer.generation.policy import Policy, token_stats_of

METRIC = f"val-core/{DATA_SOURCE}/exact"


def of_builtin_task(prompt: Prompt) -> bool:
    """Whether a prompt is one of the built-in sums, with its operands."""
    return prompt.data_source == DATA_SOURCE and {"a", "b"} <= prompt.extra_info.keys()


def canonical_responses(prompts: Sequence[Prompt], tokenizer: Any) -> Responses:
    """The right response to each of at least one built-in sum, as the model would end it."""
    rows = []
    for prompt in prompts:
        text = write_steps(prompt.extra_info["a"], prompt.extra_info["b"])
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        rows.append(torch.tensor([*ids, tokenizer.eos_token_id]))
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.arange(tokens.shape[1]) < lengths[:, None]
    finished = torch.ones(len(rows), dtype=torch.bool)
    return Responses(tuple(prompts), tokens, mask, torch.zeros(tokens.shape), finished)


class ExactAccuracy:
    """Measures the built-in sums among some prompts."""

    def __init__(self, prompts: Sequence[Prompt], policy: Policy, tokenizer: Any, budget: int) -> None:
        """Nothing is measured where none of the prompts is a built-in sum.

        policy: at temperature 1
        budget: tokens that go through the model together
        """
        chosen = [prompt for prompt in prompts if of_builtin_task(prompt)]
        self.responses = canonical_responses(chosen, tokenizer) if chosen else None
        self._policy, self._budget = policy, budget

    def probabilities(self) -> Tensor:  # [N] float64, of the built-in sums in their order
        """π(right response | prompt) = exp Σ_t log π(y_t), the end token included."""
        if self.responses is None:
            return torch.zeros(0, dtype=torch.float64)
        stats = token_stats_of(self._policy, self.responses, self._budget)
        return stats.log_probs.double().sum(-1).exp()

    def metrics(self) -> dict[str, float]:
        """The mean over the built-in sums; empty where there are none."""
        found = self.probabilities()
        return {METRIC: float(found.mean())} if len(found) else {}
