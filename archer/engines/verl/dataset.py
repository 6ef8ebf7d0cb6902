"""Archer's prompts as the dataset that verl draws from: the same prompts for both engines."""

from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch.utils.data import Dataset

from archer.data.prompts import load_prompts


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
