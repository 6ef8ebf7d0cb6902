"""The local engine on the responses that TRL was given: what its scores and weights are."""

import torch
from fixed import SAMPLES, Fixed
from transformers import AutoModelForCausalLM

from archer.algorithms.token_credit.config import token_credit_config
from archer.config.actor import actor_config
from archer.data.builtin import tiny_reasoner_path
from archer.data.prompts import Prompt
from archer.engines.local.credit import LocalCredit
from archer.engines.local.influence import InfluenceRecorder
from archer.engines.local.loss import Experience
from archer.engines.local.update import Updater
from archer.generation.batch import Responses
from archer.generation.device import Compute
from archer.generation.judge import Judged
from archer.generation.policy import Policy
from archer.influence import InfluenceConfig
from archer.rewards import RewardResult
from archer.trace.schema import TraceStep
from archer.training.credit import TokenCredit
from archer.training.traces import StepRecord


def judged_responses(fixed: Fixed) -> Judged:
    """Row 4 p + s is sample s of prompt p."""
    rows = [row for responses in fixed.responses for row in responses]
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    mask = torch.arange(tokens.shape[1]) < lengths[:, None]
    prompts = [Prompt(i, (), tuple(ids), "test", "8", {}) for i, ids in enumerate(fixed.prompt_ids)]
    return Judged(
        Responses(
            tuple(prompt for prompt in prompts for _ in range(SAMPLES)),
            tokens,
            mask,
            torch.zeros(mask.shape),
            torch.ones(len(rows), dtype=torch.bool),
        ),
        torch.arange(len(prompts)).repeat_interleave(SAMPLES),
        tuple(RewardResult.of_verdict(bool(reward)) for line in fixed.rewards for reward in line),
        torch.zeros(len(rows)),
    )


def local_step(
    fixed: Fixed, influence: dict, credit: dict | None = None, temperature: float = 1.0
) -> TraceStep:
    """The influence trace of one on-policy update at rate 0."""
    model = AutoModelForCausalLM.from_pretrained(tiny_reasoner_path(), dtype=torch.float32)
    judged = judged_responses(fixed)
    policy = Policy(model, Compute(torch.device("cpu"), torch.float32), temperature)
    rewards = judged.scores.view(-1, SAMPLES)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    experience = Experience(judged, torch.where(judged.responses.mask, advantages.view(-1, 1), 0), None, None)
    actor = actor_config(ppo_mini_batch_size=len(fixed.prompts), grad_clip=1e9)
    recorder = InfluenceRecorder(model, InfluenceConfig(enable=True, **influence))
    updater = Updater(policy, torch.optim.SGD(model.parameters(), lr=0.0), actor, 12, recorder=recorder)
    weighed = None
    if credit is not None:
        weighed = LocalCredit(TokenCredit(token_credit_config(**credit), 0), policy, actor, None).step(
            judged, 1
        )
        if not weighed.fits_in_update():
            weighed.make_ahead(weighed.pass_of_its_own(), experience.advantages)
    result = updater.update(experience, 1, traced=True, credit=weighed)
    record = StepRecord(
        step=1,
        prompts=[list(prompt.token_ids) for prompt in judged.responses.prompts],
        sample_index=[0] * len(judged.responses),
        groups=judged.groups.tolist(),
        tokens=judged.responses.tokens,
        mask=judged.responses.mask,
        entropy=result.entropy,
        log_probs=result.log_probs,
        advantages=experience.advantages,
        scores=judged.scores,
        correct=judged.correct,
        unjudged=judged.unjudged,
        results=judged.results,
        data_sources=[""] * len(judged.responses),
        ground_truths=["8"] * len(judged.responses),
        finished=judged.responses.finished,
        credit=None if weighed is None else weighed.result(),
    )
    return record.trace_step(sorted(recorder.selection.rows), recorder.influence)
