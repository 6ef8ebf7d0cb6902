"""The trace of a validation or evaluation: its first responses, with entropy and log-probs of every token.

The weights do not change within a validation, so one more pass over the responses gives what the entropy
trace of training has. Nothing random is drawn for it: the responses, and all figures, are those of a
validation without a trace.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from archer.generation.batch import Responses
from archer.generation.policy import Policy, token_stats_of
from archer.rewards import RewardResult
from archer.rewards.telling import told
from archer.trace.schema import TraceStep
from archer.trace.stack import stacked


class SampleRecorder:
    """Keeps the responses of an evaluation's first prompts, scored."""

    def __init__(
        self, policy: Callable[[], Policy], n: int, limit: int, budget: int, greedy: bool = False
    ) -> None:
        """Nothing is computed before the first responses come.

        policy: the model at the temperature that responses are sampled at
        n:      responses of each prompt
        limit:  responses that are kept, in whole prompts
        budget: tokens that go through the model together
        greedy: tokens are not drawn, so that there is no log-prob that they were drawn with
        """
        self.greedy = greedy
        self._make_policy, self._budget = policy, budget
        self.n, self.limit = n, max(1, limit // n) * n
        self._policy: Policy | None = None
        self._parts: list[TraceStep] = []

    @property
    def rows(self) -> int:
        """Responses kept so far."""
        return sum(part.rows for part in self._parts)

    @property
    def wants_more(self) -> bool:
        """Whether further responses are kept."""
        return self.rows < self.limit

    def begin(self, before: TraceStep | None = None) -> None:
        """Start an evaluation; `before` is what is there of it already."""
        self._parts = [] if before is None else [before]

    def observe(
        self, responses: Responses, results: Sequence[RewardResult], answers: Sequence[str | None]
    ) -> None:
        """Score and keep the next responses, whole prompts in the order of the dataset."""
        count = min(len(responses), self.limit - self.rows)
        if count <= 0:
            return
        first, responses = self.rows, responses.rows(range(count))
        if self._policy is None:
            self._policy = self._make_policy()
        stats = token_stats_of(self._policy, responses, self._budget)
        number = np.arange(first, first + count)
        prompts = responses.prompts
        known = [
            replace(result, extracted=answer) if result.extracted is None else result
            for result, answer in zip(results[:count], answers[:count], strict=True)
        ]
        texts: dict[str, list[str] | None] = told(
            known, [prompt.ground_truth for prompt in prompts], [prompt.data_source for prompt in prompts]
        )
        self._parts.append(
            TraceStep.from_batch(
                entropies=stats.entropy.numpy(),
                response_mask=responses.mask.numpy(),
                responses=responses.tokens.numpy(),
                response_index=number,
                log_probs=stats.log_probs.numpy(),
                reward=[result.score for result in known],
                accepted=[result.correct for result in known],
                unjudged=[result.unjudged for result in known],
                group_id=number // self.n,
                uid=[f"prompt{prompt.index}" for prompt in prompts],
                prompts=[prompt.token_ids for prompt in prompts],
                sample_index=[prompt.index for prompt in prompts],
                truncated=(~responses.finished).numpy(),
                seed=None if responses.seeds is None or self.greedy else responses.seeds.numpy(),
                rollout_log_probs=None if self.greedy else responses.log_probs.numpy(),
                **texts,
            )
        )

    def step(self) -> TraceStep | None:
        """Everything kept, None where there is nothing."""
        return stacked(self._parts) if self._parts else None
