"""The two sides of `local_vs_trl.py`: the same GRPO training through Archer and through TRL.

Each side runs in a process of its own, with the interpreter of the environment it is installed in:

    python benchmarks/local_vs_trl_sides.py archer|trl WORKLOAD_JSON FIGURES_FILE

A step's time runs from the end of the step before to its own end and so holds everything: prompts, sampling,
rewards, loss, backward, optimizer. Neither side validates, saves, or writes logs in between; both compute
their usual metrics (entropy among them) in every step.
"""

import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

PROMPTS_FILE = "builtin:arithmetic/train"


@dataclass(frozen=True)
class Workload:
    """What both sides are given."""

    prompts: int
    responses: int  # per prompt
    steps: int
    max_response_length: int
    temperature: float
    learning_rate: float
    threads: int
    trl_rows: int  # responses per backward pass of TRL; a divisor of prompts * responses
    seed: int  # of the sampling; the prompts and their order are always the same


@dataclass(frozen=True)
class Figures:
    """What one training run measured; the lists have one entry per step."""

    seconds: list[float]  # on the clock
    cpu_seconds: list[float]  # of all threads: what other programs on the machine hardly distort
    rewards: list[float]  # mean over the step's responses
    lengths: list[float]  # mean tokens of a response
    loaded_mib: float  # resident memory before the first step
    peak_mib: float  # largest resident memory of the process


class Clock:
    """Notes the ends of steps, and the memory before the first one."""

    def __init__(self) -> None:
        self.loaded_mib = 0.0
        self._ends: list[tuple[float, float]] = []

    def start(self) -> None:
        self.loaded_mib = resident_mib(peak=False)
        self.step_ended()

    def step_ended(self) -> None:
        self._ends.append((time.perf_counter(), time.process_time()))

    def figures(self, rewards: list[float], lengths: list[float]) -> Figures:
        spans = [(end[0] - start[0], end[1] - start[1]) for start, end in pairwise(self._ends)]
        return Figures(
            seconds=[clock for clock, _ in spans],
            cpu_seconds=[cpu for _, cpu in spans],
            rewards=rewards,
            lengths=lengths,
            loaded_mib=self.loaded_mib,
            peak_mib=resident_mib(peak=True),
        )


def resident_mib(peak: bool) -> float:
    """Resident memory of this process, now or at its largest.

    Read from /proc, because `ru_maxrss` starts with the size of the process that started this one.
    """
    name = "VmHWM:" if peak else "VmRSS:"
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(name))
    return int(line.split()[1]) / 1024


def train_with_archer(work: Workload) -> Figures:
    """Run what `archer train engine=local` runs, with a clock in its trainer."""
    from rich.console import Console

    from archer.config.compose import compose
    from archer.engines.local import engine as local_engine
    from archer.engines.local.trainer import StepReport, Trainer
    from archer.tracking.jsonl import read_metrics
    from archer.train import make_run

    clock = Clock()

    class TimedTrainer(Trainer):
        def train_step(self) -> StepReport:
            if self.step == 0:
                clock.start()
            report = super().train_step()
            clock.step_ended()
            return report

    local_engine.Trainer = TimedTrainer  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as output:
        config = compose([*archer_overrides(work), f"trainer.default_local_dir={output}"])
        make_run(config, Console(quiet=True)).execute()
        metrics = read_metrics(Path(output) / "metrics.jsonl")
    return clock.figures(
        [line["critic/rewards/mean"] for line in metrics],
        [line["response_length/mean"] for line in metrics],
    )


def archer_overrides(work: Workload) -> list[str]:
    """The workload in the words of `archer train`."""
    return [
        "recipe=arithmetic",
        f"data.train_files=['{PROMPTS_FILE}']",
        "data.val_files=[]",
        "data.shuffle=False",
        f"data.train_batch_size={work.prompts}",
        f"data.max_response_length={work.max_response_length}",
        f"actor_rollout_ref.rollout.n={work.responses}",
        f"actor_rollout_ref.rollout.temperature={work.temperature}",
        f"actor_rollout_ref.rollout.seed={work.seed}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={work.prompts}",
        f"actor_rollout_ref.actor.optim.lr={work.learning_rate}",
        "actor_rollout_ref.actor.optim.weight_decay=0.0",
        "actor_rollout_ref.actor.loss_agg_mode=token-mean",
        "actor_rollout_ref.actor.grad_clip=1.0",
        "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        f"trainer.total_training_steps={work.steps}",
        "trainer.save_freq=-1",
        "trainer.entropy_trace.enable=False",
        "trainer.influence_trace.enable=False",
        "engine.device=cpu",
        "engine.dtype=float32",
        f"engine.threads={work.threads}",
    ]


def train_with_trl(work: Workload) -> Figures:
    """Run the steps of `GRPOTrainer`: one generation and one optimizer step per batch.

    `loss_type="dapo"` divides by the response tokens of the whole batch, which is Archer's token-mean;
    `beta=0` needs no reference model. On this purely on-policy schedule TRL, like Archer, computes
    log-probabilities once, in the pass it trains on.
    """
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from archer.data.builtin import builtin_rows, tiny_reasoner_path
    from archer.rewards import RewardConfig, RewardRequest, RewardScorer

    torch.set_num_threads(work.threads)
    passes = work.prompts * work.responses // work.trl_rows
    scorer = RewardScorer(RewardConfig())
    clock = Clock()
    rewards: list[float] = []
    lengths: list[float] = []

    def verified(
        completions: list[Any], completion_ids: list[list[int]], ground_truth: list[str], **_: Any
    ) -> list[float]:
        requests = [
            RewardRequest("arithmetic", completion[0]["content"], truth, {})
            for completion, truth in zip(completions, ground_truth, strict=True)
        ]
        scores = [result.score for result in scorer.score(requests)]
        rewards.append(sum(scores) / len(scores))
        lengths.append(sum(map(len, completion_ids)) / len(completion_ids))
        return scores

    class Timing(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            clock.start()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.step_ended()

    rows = builtin_rows(PROMPTS_FILE)
    folder = str(tiny_reasoner_path())
    with tempfile.TemporaryDirectory() as output:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(folder),
            reward_funcs=verified,
            train_dataset=Dataset.from_list(
                [
                    {"prompt": row["prompt"], "ground_truth": row["reward_model"]["ground_truth"]}
                    for row in rows
                ]
            ),
            callbacks=[Timing()],
            args=GRPOConfig(
                output_dir=output,
                max_steps=work.steps,
                per_device_train_batch_size=work.trl_rows,
                gradient_accumulation_steps=passes,
                steps_per_generation=passes,
                num_iterations=1,
                num_generations=work.responses,
                max_completion_length=work.max_response_length,
                temperature=work.temperature,
                shuffle_dataset=False,
                beta=0.0,
                loss_type="dapo",
                learning_rate=work.learning_rate,
                lr_scheduler_type="constant",
                weight_decay=0.0,
                max_grad_norm=1.0,
                optim="adamw_torch_fused",
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                dataloader_pin_memory=False,
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                seed=work.seed,
            ),
        )
        trainer.train()
    scorer.close()
    return clock.figures(rewards, lengths)


SIDES = {"archer": train_with_archer, "trl": train_with_trl}


if __name__ == "__main__":
    side, workload, target = sys.argv[1:]
    figures = SIDES[side](Workload(**json.loads(workload)))
    Path(target).write_text(json.dumps(asdict(figures)))
