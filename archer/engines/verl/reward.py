"""Archer's scorer as verl's reward manager: the same verdicts, time limits and worker processes."""

import asyncio
from typing import Any

from omegaconf import DictConfig
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.utils.import_utils import import_external_libs

from archer.engines.verl.settings import archer_config
from archer.rewards import RewardRequest, RewardResult, RewardScorer, overlong_penalty
from archer.rewards.telling import shortened, truth_text


class ArcherRewardManager(RewardManagerBase):
    """Judges responses one request at a time, as verl asks for them; those that wait are judged together."""

    def __init__(
        self,
        config: DictConfig,
        tokenizer: Any,
        compute_score: Any,
        reward_router_address: str | None = None,
        reward_model_tokenizer: Any = None,
    ) -> None:
        super().__init__(config, tokenizer, compute_score)
        import_external_libs(list(config.actor_rollout_ref.model.external_lib))
        self.settings = archer_config(config.trainer)
        self.scorer = RewardScorer(self.settings.reward)
        self._waiting: list[tuple[RewardRequest, asyncio.Future[RewardResult]]] = []
        self._judging: asyncio.Task[None] | None = None

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Judge one response: the shaped score, and the raw verdict under verl's name `acc`."""
        row = data[-1:][0]
        width = row.batch["responses"].shape[-1]
        length = int(row.batch["attention_mask"][-width:].sum())
        tokens = row.batch["responses"][:length].tolist()
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        request = RewardRequest(
            row.non_tensor_batch["data_source"],
            text,
            row.non_tensor_batch["reward_model"]["ground_truth"],
            dict(row.non_tensor_batch.get("extra_info") or {}),
            prompt=self._prompt_text(row),
            messages=tuple(dict(message) for message in row.non_tensor_batch.get("raw_prompt", ())),
        )
        result = await self._judge(request)
        longest = self.settings.data.max_response_length
        ended = length < longest or tokens[-1] == self.tokenizer.eos_token_id
        shaped = 0.0 if result.unjudged else result.score + self._penalty(length)
        return {
            "reward_score": shaped,
            "reward_extra_info": {
                "acc": float(result.correct),
                "score": result.score,
                "shaped": shaped,
                "tokens": float(length),
                "finished": float(ended),
                "failure": result.failure or "",
                "detail": result.detail or "",
                "extracted": shortened(result.extracted or ""),
                "reason": shortened(result.reason or ""),
                "source": str(request.data_source),
                "truth": shortened(truth_text(request.ground_truth)),
                **{f"extra_{name}": value for name, value in result.extra.items()},
            },
        }

    def _prompt_text(self, row: Any) -> str:
        """The prompt as the model read it; it stands left-padded before the response."""
        if "prompts" not in row.batch:
            return ""
        prompt = row.batch["prompts"]
        return self.tokenizer.decode(prompt[row.batch["attention_mask"][: prompt.shape[-1]].bool()].tolist())

    def _penalty(self, length: int) -> float:
        overlong = self.settings.reward.reward_kwargs.overlong_buffer_cfg
        if not overlong.enable:
            return 0.0
        longest = self.settings.data.max_response_length
        return overlong_penalty(length, longest, overlong.len, overlong.penalty_factor)

    async def _judge(self, request: RewardRequest) -> RewardResult:
        answer: asyncio.Future[RewardResult] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        if self._judging is None or self._judging.done():
            self._judging = asyncio.create_task(self._judge_waiting())
        return await answer

    async def _judge_waiting(self) -> None:
        while self._waiting:
            together, self._waiting = self._waiting, []
            try:
                results = await asyncio.to_thread(self.scorer.score, [request for request, _ in together])
            except Exception as error:  # the driver is to see what it was, not responses that never come
                results = [RewardResult.of_failure(f"crash: {error}")] * len(together)
            for (_, answer), result in zip(together, results, strict=True):
                answer.set_result(result)
