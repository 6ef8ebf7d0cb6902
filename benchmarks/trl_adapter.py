"""What Archer's adapter adds to a step of TRL's GRPOTrainer: both traces, influence, token credit.

    python benchmarks/trl_adapter.py

One process trains the embedded tiny reasoner with TRL alone and with the adapter in turns, `--rounds` times
each, on the same prompts; the first step of every turn is not counted, and the figure is the ratio of the
medians of the training thread's processor time (of the clock on a GPU); the whole process, with the threads
that write traces, is told beside it. `update` gives both sides ready responses, so that a step
is rewards, loss, backward and optimizer; `step` lets TRL generate them. The device is the one TRL finds. TRL
gets a folder of its own (scripts/ensure_trl.sh); run this with the interpreter Archer is installed in.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent


def in_trls_environment() -> None:
    """Start again beside TRL."""
    if "ARCHER_TRL" in os.environ:
        return
    script = [str(ROOT / "scripts/ensure_trl.sh"), sys.executable]
    folder = subprocess.run(script, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    path = os.pathsep.join([folder, str(ROOT)])
    variables = {**os.environ, "PYTHONPATH": path, "ARCHER_TRL": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    os.execve(sys.executable, [sys.executable, *sys.argv], variables)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6, help="of a turn")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--responses", type=int, default=8, help="of each prompt")
    parser.add_argument("--length", type=int, default=40, help="longest response")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches of a step")
    parser.add_argument("--what", choices=["update", "step"], default="update")
    parser.add_argument("--model", help="a causal language model's folder; default: the tiny reasoner")
    parser.add_argument("--credit", default="none", help="mode of token credit")
    args = parser.parse_args()
    in_trls_environment()

    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from archer.algorithms.token_credit.config import token_credit_config
    from archer.data.builtin import tiny_reasoner_path
    from archer.integrations.trl import ArcherGRPOTrainer, Tracing

    folder = args.model or str(tiny_reasoner_path())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = args.prompts * args.responses
    generator = torch.Generator().manual_seed(0)
    texts = [f"{a}+{b}=" for a, b in torch.randint(100, 999, (args.prompts, 2), generator=generator).tolist()]
    cuda = torch.cuda.is_available()
    seconds: dict[str, list[float]] = {"trl": [], "archer": []}
    process: dict[str, list[float]] = {"trl": [], "archer": []}

    class Clock(TrainerCallback):
        def __init__(self, side: str) -> None:
            self.side, self.started = side, (0.0, 0.0)

        def now(self) -> tuple[float, float]:
            if cuda:
                torch.cuda.synchronize()
            return (time.perf_counter() if cuda else time.thread_time()), time.process_time()

        def on_step_begin(self, *_, **__) -> None:
            self.started = self.now()

        def on_step_end(self, _, state, *__, **___) -> None:
            if state.global_step > 1:
                spans = [end - start for start, end in zip(self.started, self.now(), strict=True)]
                seconds[self.side].append(spans[0])
                process[self.side].append(spans[1])

    def ready(prompts, trainer):
        """Random responses of different lengths, the same for both sides."""
        seeded = torch.Generator().manual_seed(trainer.state.global_step)
        lengths = torch.randint(args.length // 2, args.length + 1, (len(prompts),), generator=seeded)
        return {
            "prompt_ids": tokenizer(prompts, add_special_tokens=False)["input_ids"],
            "completion_ids": [
                torch.randint(5, len(tokenizer) - 1, (n,), generator=seeded).tolist()
                for n in lengths.tolist()
            ],
            "logprobs": [[0.0] * n for n in lengths.tolist()],
        }

    def reward(completions, **_):
        return [float(number % 3 == 0) for number in range(len(completions))]

    def turn(side: str) -> None:
        options = (
            {"archer": Tracing(credit=token_credit_config(mode=args.credit))} if side == "archer" else {}
        )
        kind = ArcherGRPOTrainer if side == "archer" else GRPOTrainer
        with tempfile.TemporaryDirectory() as out:
            trainer = kind(
                model=AutoModelForCausalLM.from_pretrained(
                    folder, dtype=torch.bfloat16 if cuda else torch.float32
                ),
                processing_class=tokenizer,
                reward_funcs=reward,
                train_dataset=Dataset.from_list([{"prompt": text} for text in texts * args.steps]),
                rollout_func=ready if args.what == "update" else None,
                callbacks=[Clock(side)],
                args=GRPOConfig(
                    output_dir=out,
                    max_steps=args.steps,
                    per_device_train_batch_size=rows // args.accumulate,
                    gradient_accumulation_steps=args.accumulate,
                    num_generations=args.responses,
                    max_completion_length=args.length,
                    generation_kwargs={"min_new_tokens": args.length // 2},
                    bf16=cuda,
                    save_strategy="no",
                    report_to="none",
                    disable_tqdm=True,
                    gradient_checkpointing=False,
                ),
                **options,
            )
            trainer.train()
            if side == "archer":
                trainer.archer.folder.close()

    for _ in range(args.rounds):
        for side in seconds:
            turn(side)
    trl, archer = median(seconds["trl"]), median(seconds["archer"])
    unit = "s" if cuda else "s of processor time"
    whole = median(process["archer"]) / median(process["trl"])
    print(
        f"{args.what}, {rows} responses of {args.length // 2} to {args.length} tokens, credit {args.credit}:"
    )
    print(f"TRL {trl:.3f} {unit}, with Archer {archer:.3f}, ratio {archer / trl:.3f}")
    print(f"the whole process: ratio {whole:.3f}")


if __name__ == "__main__":
    main()
