"""Runs TRL's trainer with fixed responses: `python trl_run.py FIXED_JSON RUNS_JSON`, in TRL's environment.

RUNS_JSON is a list of runs, each {"out": folder, "args": GRPOConfig, "archer": Tracing, "class": which}. Of
each run the log, the weights' checksum and what was said are written to `log.json` in its folder.
"""

import contextlib
import io
import json
import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

from datasets import Dataset
from fixed import SAMPLES, Fixed
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq, TrainingArguments
from trl import GRPOConfig, GRPOTrainer

from archer.algorithms.token_credit.config import token_credit_config
from archer.data.builtin import tiny_reasoner_path
from archer.influence import InfluenceConfig
from archer.integrations.trainer import TokenTracing, TracingTrainer
from archer.integrations.trl import ArcherGRPOMixin, ArcherGRPOTrainer, Tracing


class OwnTrainer(GRPOTrainer):
    """A user's own subclass."""

    losses = 0

    def _compute_loss(self, model, inputs):
        OwnTrainer.losses += 1
        return super()._compute_loss(model, inputs)


class MixedIn(ArcherGRPOMixin, OwnTrainer):
    """The mixin before it."""


class FusedLoss(GRPOTrainer):
    """Its loss is made without TRL's own method."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(input_ids=inputs["completion_ids"]).logits.mean()


class TracedFusedLoss(ArcherGRPOMixin, FusedLoss):
    """The mixin before it."""


CLASSES = {
    "subclass": ArcherGRPOTrainer,
    "mixin": MixedIn,
    "fused": TracedFusedLoss,
    "plain": GRPOTrainer,
}


def tracing(given: dict) -> Tracing:
    chosen = dict(given)
    if chosen.get("influence") is not None:
        chosen["influence"] = InfluenceConfig(enable=True, **chosen["influence"])
    if "credit" in chosen:
        chosen["credit"] = token_credit_config(**chosen["credit"])
    return Tracing(**chosen)


def run(fixed: Fixed, given: dict) -> None:
    """Train as one entry of RUNS_JSON says."""
    out = Path(given["out"])
    place = {text: number for number, text in enumerate(fixed.prompts)}

    def rollout(prompts, trainer):
        """Each prompt comes SAMPLES times in a row, over all processes."""
        begin = trainer.accelerator.process_index * len(prompts)
        ids, responses, logprobs = [], [], []
        for number, text in enumerate(prompts, begin):
            response = fixed.responses[place[text]][number % SAMPLES]
            ids.append(fixed.prompt_ids[place[text]])
            responses.append(response)
            logprobs.append([-1.0] * len(response))
        found = {"prompt_ids": ids, "completion_ids": responses, "logprobs": logprobs}
        if given.get("gaps"):  # the third token of every response is a tool's
            found["env_mask"] = [[int(t != 2) for t in range(len(r))] for r in responses]
        return found

    def right(prompts, completion_ids, **_):
        found = []
        for text, ids in zip(prompts, completion_ids, strict=True):
            number = place[text]
            found.append(fixed.rewards[number][fixed.responses[number].index(ids)])
        return found

    def shaped(completion_ids, **_):
        return [0.01 * len(ids) for ids in completion_ids]

    kind = CLASSES[given.get("class", "subclass")]
    functions = [right, shaped] if given.get("shaped") else right
    options = {} if kind is GRPOTrainer else {"archer": tracing(given.get("archer", {}))}
    model = AutoModelForCausalLM.from_pretrained(tiny_reasoner_path(), dtype=torch.float32)
    texts = fixed.prompts * given.get("repeat", 1)
    said = io.StringIO()
    settings = {
        "output_dir": str(out),
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "num_generations": SAMPLES,
        "max_completion_length": 12,
        "max_steps": 1,
        "learning_rate": 0.0,
        "shuffle_dataset": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
    }
    error = ""
    with contextlib.redirect_stdout(said):
        try:
            trainer = kind(
                model=model,
                processing_class=AutoTokenizer.from_pretrained(tiny_reasoner_path()),
                reward_funcs=functions,
                train_dataset=Dataset.from_list([{"prompt": t, "ground_truth": "8"} for t in texts]),
                args=GRPOConfig(**{**settings, **given.get("args", {})}),
                rollout_func=rollout,
                peft_config=LoraConfig(**given["lora"]) if "lora" in given else None,
                **options,
            )
            trainer.train()
        except Exception as failure:
            if not given.get("fails"):
                raise
            error = f"{type(failure).__name__}: {failure}"
            trainer = None
    if trainer is None or trainer.accelerator.is_main_process:
        weights = sum(float(p.detach().double().abs().sum()) for p in model.parameters())
        log = {
            "history": [] if trainer is None else trainer.state.log_history,
            "weights": weights,
            "said": said.getvalue(),
            "losses": OwnTrainer.losses,
            "error": error,
        }
        out.mkdir(parents=True, exist_ok=True)
        (out / "log.json").write_text(json.dumps(log))


def run_supervised(fixed: Fixed, given: dict) -> None:
    """The responses as labelled examples of transformers' Trainer; the last prompt's are the target."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_reasoner_path())
    rows = [
        {"input_ids": prompt + response, "labels": [-100] * len(prompt) + response}
        for prompt, responses in zip(fixed.prompt_ids, fixed.responses, strict=True)
        for response in responses
    ]
    TracingTrainer(
        model=AutoModelForCausalLM.from_pretrained(tiny_reasoner_path(), dtype=torch.float32),
        args=TrainingArguments(
            output_dir=given["out"],
            max_steps=1,
            learning_rate=0.0,
            train_sampling_strategy="sequential",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            **{name: n for name, n in given["args"].items() if name != "steps_per_generation"},
        ),
        train_dataset=Dataset.from_list(rows[:-SAMPLES]),
        data_collator=DataCollatorForSeq2Seq(tokenizer),
        processing_class=tokenizer,
        archer=TokenTracing(target=rows[-SAMPLES:]),
    ).train()


if __name__ == "__main__":
    given_fixed, given_runs = Fixed.read(Path(sys.argv[1])), json.loads(Path(sys.argv[2]).read_text())
    for each in given_runs:
        (run_supervised if each.get("class") == "supervised" else run)(given_fixed, each)
