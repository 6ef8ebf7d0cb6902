"""Which training tokens help a validation set? transformers' Trainer, with three lines added.

    python examples/sft_validation.py OUT
    archer view OUT

A few supervised steps on sums, some of them wrong on purpose. Each labelled token is scored by how much a
step on it lowers the loss of the validation sums; the tokens that hurt most are printed.
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainingArguments

from archer.data.builtin import tiny_reasoner_path
from archer.integrations.trainer import TokenTracing, TracingTrainer  # <-
from archer.trace.reader import TraceReader

tokenizer = AutoTokenizer.from_pretrained(tiny_reasoner_path())


def example(text):
    """What stands after `=` is learnt."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    first = text.index("=") + 1
    return {"input_ids": ids, "labels": [-100] * first + ids[first:]}


def collate(rows):
    """Pad on the right."""
    width = max(len(row["input_ids"]) for row in rows)
    fill = {"input_ids": 0, "labels": -100}
    batch = {
        name: torch.tensor([row[name] + [value] * (width - len(row[name])) for row in rows])
        for name, value in fill.items()
    }
    batch["attention_mask"] = torch.tensor(
        [[int(i < len(row["input_ids"])) for i in range(width)] for row in rows]
    )
    return batch


sums = [(a, b, a + b + (100 if a % 4 == 0 else 0)) for a in range(101, 133) for b in (321,)]
training = [example(f"{a}+{b}={c}") for a, b, c in sums]
validation = [example(f"{a}+{b}={a + b}") for a, b in ((141, 222), (152, 333), (163, 211), (174, 405))]

trainer = TracingTrainer(  # Trainer before
    model=AutoModelForCausalLM.from_pretrained(tiny_reasoner_path(), dtype=torch.float32),
    processing_class=tokenizer,
    data_collator=collate,
    train_dataset=training,
    args=TrainingArguments(
        output_dir=sys.argv[1],
        max_steps=2,
        per_device_train_batch_size=16,
        learning_rate=1e-4,
        save_strategy="no",
        report_to="none",
        remove_unused_columns=False,
    ),
    archer=TokenTracing(target=validation),  # <-
)
trainer.train()

trace = TraceReader(f"{sys.argv[1]}/influence_trace").read(2).arrays
found = []
for row, line in enumerate(trace.influence):
    prompt = trace.prompt_ids[trace.prompt_offsets[row] : trace.prompt_offsets[row + 1]]
    for t in trace.response_mask[row].nonzero()[0]:
        text = tokenizer.decode([*prompt, *trace.responses[row, : t + 1]])
        found.append((float(line[t]), text.replace(" ", "")))
for score, text in sorted(found)[:5]:
    print(f"{score:+.4f}  {text}")
