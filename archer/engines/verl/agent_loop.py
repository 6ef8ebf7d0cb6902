"""One turn of a conversation, from the very tokens that Archer's prompts are made of.

verl's own single-turn loop renders the chat template again, with rules for each family of models. Archer has
tokenised its prompts already, the same for both engines.
"""

from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
from verl.utils.profiler import simple_timer

from archer.engines.verl.translate import AGENT_LOOP


@register(AGENT_LOOP)
class SingleTurn(AgentLoopBase):
    """Asks the rollout server for one response."""

    def __init__(self, trainer_config: Any, server_manager: Any, **_: Any) -> None:
        # verl's constructor would choose rules for rendering templates, which are not needed here.
        self.server_manager = server_manager
        self.response_length = trainer_config.config.actor_rollout_ref.rollout.response_length

    async def run(
        self, sampling_params: dict[str, Any], prompt_token_ids: Any, priority: int = 0, **_: Any
    ) -> AgentLoopOutput:
        """Sample one response."""
        metrics: dict[str, Any] = {}
        prompt = [int(token) for token in prompt_token_ids]
        with simple_timer("generate_sequences", metrics):
            output = await self.server_manager.generate(
                request_id=uuid4().hex,
                prompt_ids=prompt,
                sampling_params=sampling_params,
                priority=int(priority),
            )
        metrics["num_preempted"] = -1 if output.num_preempted is None else output.num_preempted
        tokens = output.token_ids[: self.response_length]
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=tokens,
            response_mask=[1] * len(tokens),
            response_logprobs=output.log_probs[: self.response_length] if output.log_probs else None,
            routed_experts=(
                None
                if output.routed_experts is None
                else output.routed_experts[: len(prompt) + self.response_length]
            ),
            num_turns=2,
            metrics=metrics,
            extra_fields={**output.extra_fields, "turn_scores": [], "tool_rewards": []},
        )
