"""Archer's prompts as the dataset that verl draws from: the same prompts for both engines."""

from typing import Any
from uuid import uuid4

import torch
from omegaconf import DictConfig, OmegaConf
from torch.utils.data import Dataset
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
from verl.utils.profiler import simple_timer

from archer.data.prompts import load_prompts
from archer.engines.verl.translate import AGENT_LOOP


class ArcherDataset(Dataset[dict[str, Any]]):
    """Prompts as verl's rows: the messages, and the tokens that the agent loop starts from."""

    def __init__(
        self,
        data_files: Any,
        tokenizer: Any,
        config: DictConfig,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        template: Any = OmegaConf.to_container(OmegaConf.create(config.apply_chat_template_kwargs))
        self.prompts = load_prompts(
            [data_files] if isinstance(data_files, str) else list(data_files),
            tokenizer,
            prompt_key=config.prompt_key,
            reward_fn_key=config.reward_fn_key,
            max_prompt_length=config.max_prompt_length,
            filter_overlong_prompts=config.filter_overlong_prompts,
            max_samples=max_samples,
            apply_chat_template_kwargs=template,
        )

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        prompt = self.prompts[int(index)]
        return {
            "raw_prompt": [dict(message) for message in prompt.messages],
            "prompt_token_ids": list(prompt.token_ids),
            "data_source": prompt.data_source,
            "reward_model": {"style": "rule", "ground_truth": prompt.ground_truth},
            "extra_info": dict(prompt.extra_info),
            "index": prompt.index,
            "tools_kwargs": {},
            "interaction_kwargs": {},
            "dummy_tensor": torch.tensor([0], dtype=torch.uint8),  # verl wants one tensor a row
        }


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
