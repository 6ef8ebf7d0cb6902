"""Three lines in a TRL script: both traces, token influence and token credit.

    python examples/trl_grpo.py OUT        (needs trl: see docs/integrations.md)
    archer view OUT

GRPO on three-digit sums with the embedded tiny reasoner; the lines with an arrow are all that is added.
"""

import sys

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig

from archer.algorithms.token_credit.config import token_credit_config  # <-
from archer.data.builtin import builtin_rows, tiny_reasoner_path
from archer.integrations.trl import ArcherGRPOTrainer, Tracing  # <-


def right(completions, ground_truth, **_):
    """1 where the answer is the right one."""
    texts = [completion[0]["content"] for completion in completions]
    return [float(f"\\boxed{{{truth}}}" in text) for text, truth in zip(texts, ground_truth, strict=True)]


rows = builtin_rows("builtin:arithmetic/train")[:64]
prompts = [{"prompt": row["prompt"], "ground_truth": row["reward_model"]["ground_truth"]} for row in rows]

trainer = ArcherGRPOTrainer(  # GRPOTrainer before
    model=AutoModelForCausalLM.from_pretrained(tiny_reasoner_path(), dtype="float32"),
    processing_class=AutoTokenizer.from_pretrained(tiny_reasoner_path()),
    reward_funcs=right,
    train_dataset=Dataset.from_list(prompts),
    args=GRPOConfig(
        output_dir=sys.argv[1],
        max_steps=2,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=48,
        learning_rate=4e-4,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        bf16=False,
    ),
    archer=Tracing(credit=token_credit_config(mode="nthr")),  # <-
)
trainer.train()
