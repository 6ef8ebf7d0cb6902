"""Run a command on a large GPU as if it were a smaller one: the rest of its memory is taken meanwhile.

    python benchmarks/little_memory.py 23 archer train recipe=qwen2.5_1.5b_lora_gsm8k ...

Leaves so many GiB free (a card of 24 GB has about 23.5). What the command decides by the free memory it
decides as on the smaller card, and it fails where that would.
"""

import subprocess
import sys

import torch


def main() -> int:
    wanted, command = float(sys.argv[1]), sys.argv[2:]
    torch.cuda.init()
    free = torch.cuda.mem_get_info()[0] - int(wanted * 2**30)
    taken = torch.empty(max(0, free), dtype=torch.uint8, device="cuda")
    left = torch.cuda.mem_get_info()[0] / 2**30
    print(f"{taken.numel() / 2**30:.1f} GiB taken, {left:.1f} GiB left", flush=True)
    return subprocess.run(command).returncode


if __name__ == "__main__":
    sys.exit(main())
