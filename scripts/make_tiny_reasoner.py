"""Make the tiny arithmetic reasoner that ships in archer/assets/tiny_reasoner.

    OMP_NUM_THREADS=1 python scripts/make_tiny_reasoner.py

Builds the tokenizer, trains a small Qwen2 model from scratch on worked sums of which some are deliberately
wrong (supervised, response tokens only), saves both, and measures what RL will start from: the accuracy of
sampled responses on held-out prompts and the share of groups that hold both right and wrong ones. Takes a few
minutes on one core. The seed fixes everything that is random.
"""

import argparse
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import AddedToken, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)

from archer.data.arithmetic import prompt_messages, write_steps
from archer.data.builtin import arithmetic_rows, draw_pairs, tiny_reasoner_path

PAD, END, USER, ASSISTANT, BOX = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "\\boxed{"
NEWLINE = "Ċ"  # how byte-level vocabularies write "\n"
TASK_CHARACTERS = [*"0123456789+=}", NEWLINE]

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{{- '<|user|>' + message.content + '<|end|>' -}}
{%- elif message.role == 'assistant' -%}
{{- '<|assistant|>' + message.content + '<|end|>' -}}
{%- else -%}
{{- raise_exception('the tiny reasoner knows the roles user and assistant, not ' + message.role) -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>' -}}
{%- endif -%}
"""

MAX_LENGTH = 256
MAX_RESPONSE = 48


def make_tokenizer() -> Qwen2Tokenizer:
    r"""One token per byte and `\boxed{` as a whole, so that any text can be encoded and comes back unchanged.

    It is a Qwen2 tokenizer without merges, because AutoTokenizer opens every folder with a Qwen2 model as
    one, whatever class the folder names.
    """
    rest = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(TASK_CHARACTERS))
    vocabulary = [PAD, END, USER, ASSISTANT, BOX, *TASK_CHARACTERS, *rest]
    tokenizer = Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(vocabulary)},
        merges=[],
        pad_token=PAD,
        eos_token=END,
        unk_token=None,
        additional_special_tokens=[USER, ASSISTANT],
        model_max_length=MAX_LENGTH,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_tokens([AddedToken(BOX, normalized=False)])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(tokenizer: Qwen2Tokenizer) -> Qwen2ForCausalLM:
    """A fresh Qwen2 model of 0.8 M parameters."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True,
        max_new_tokens=MAX_RESPONSE,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return model


def prompt_ids(tokenizer: Qwen2Tokenizer, a: int, b: int) -> list[int]:
    """The token ids of the prompt that asks for `a + b`."""
    return tokenizer.apply_chat_template(prompt_messages(a, b), add_generation_prompt=True, return_dict=False)


def warm_start_batches(
    tokenizer: Qwen2Tokenizer, digits: int, batch_size: int, mistake_rate: float, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of right-padded ids and labels [batch_size, longest]; only responses are labelled."""
    rng = random.Random(seed)
    pairs = draw_pairs("train", digits, rng)
    while True:
        rows = []
        for a, b in (next(pairs) for _ in range(batch_size)):
            response = tokenizer(write_steps(a, b, rng, mistake_rate))["input_ids"]
            rows.append((prompt_ids(tokenizer, a, b), [*response, tokenizer.eos_token_id]))
        longest = max(len(prompt) + len(response) for prompt, response in rows)
        ids = torch.full((batch_size, longest), tokenizer.pad_token_id)
        labels = torch.full((batch_size, longest), -100)
        for i, (prompt, response) in enumerate(rows):
            end = len(prompt) + len(response)
            ids[i, :end] = torch.tensor(prompt + response)
            labels[i, len(prompt) : end] = torch.tensor(response)
        yield ids, labels


def learning_rate_factor(step: int, steps: int, warmup: int = 50) -> float:
    """Linear warm-up, then half a cosine down to 2 %."""
    return min(1.0, (step + 1) / warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def warm_start(
    model: Qwen2ForCausalLM, batches: Iterator[tuple[Tensor, Tensor]], steps: int, lr: float
) -> None:
    """Supervised training of `model` in place."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, steps))
    started = time.perf_counter()
    for step in range(1, steps + 1):
        ids, labels = next(batches)
        # Padding is on the right and never labelled, so causal attention needs no mask.
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps:
            print(
                f"step {step:5d}  loss {loss.item():.4f}  {time.perf_counter() - started:6.1f} s", flush=True
            )


@torch.no_grad()
def measure(folder: Path, digits: int, prompts: int, group_size: int, seed: int) -> tuple[float, float]:
    """Accuracy of sampled responses (temperature 1) on held-out prompts, and the share of mixed groups."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    torch.manual_seed(seed)
    right = []
    for row in arithmetic_rows("val", digits=digits, size=prompts):
        prompt = torch.tensor([prompt_ids(tokenizer, row["extra_info"]["a"], row["extra_info"]["b"])])
        ids = prompt.expand(group_size, -1)
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=MAX_RESPONSE,
        )
        texts = tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)
        box = rf"\boxed{{{row['reward_model']['ground_truth']}}}"
        right.append([text.endswith(box) for text in texts])
    shares = torch.tensor(right, dtype=torch.float64).mean(dim=1)  # [prompts]
    return shares.mean().item(), ((shares > 0) & (shares < 1)).double().mean().item()


def main() -> None:
    """Make, save and measure the tiny reasoner."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=tiny_reasoner_path(), help="where to save")
    parser.add_argument("--digits", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument(
        "--mistake-rate", type=float, default=0.30, help="share of written sums that are wrong"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--measure-only", action="store_true", help="measure what is in the folder")
    args = parser.parse_args()

    if not args.measure_only:
        torch.manual_seed(args.seed)
        tokenizer = make_tokenizer()
        model = make_model(tokenizer)
        print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens")
        batches = warm_start_batches(tokenizer, args.digits, args.batch_size, args.mistake_rate, args.seed)
        warm_start(model, batches, args.steps, args.lr)
        tokenizer.save_pretrained(args.folder)
        model.save_pretrained(args.folder)
        (args.folder / "model.safetensors").chmod(0o644)  # written for the owner alone, but it ships
        print(f"saved in {args.folder}")
    accuracy, mixed = measure(args.folder, args.digits, prompts=128, group_size=8, seed=args.seed)
    print(f"held-out prompts, temperature 1: accuracy {accuracy:.1%}, mixed groups of 8 {mixed:.1%}")


if __name__ == "__main__":
    main()
