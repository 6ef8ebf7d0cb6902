"""What a token of a batch costs to decode on a GPU, and what starting costs.

A model of the shape of Qwen2.5-0.5B with random weights, which never ends a response by itself: every row
goes on to the limit, so that all steps are of the same size.

    python benchmarks/decoding.py --rows 256 --prompt 100 --length 512
"""

import argparse
import time
from pathlib import Path

import torch
from qwen_shape import qwen_0_5b, qwen_1_5b
from rich.console import Console
from transformers import Qwen2ForCausalLM

from archer.config.trainer import EngineConfig
from archer.data.prompts import Prompt
from archer.generation.batch import RolloutLimits
from archer.generation.device import set_up
from archer.generation.model import SamplingWeights, prepare_for_cuda
from archer.generation.rollout import Rollout
from archer.generation.sampling import SampleStreams, SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=["0.5b", "1.5b"], default="0.5b")
    parser.add_argument("--rows", type=int, default=256, help="responses")
    parser.add_argument("--slots", type=int, default=256, help="responses decoded at a time")
    parser.add_argument("--prompt", type=int, default=100, help="tokens per prompt")
    parser.add_argument("--length", type=int, default=512, help="tokens per response")
    parser.add_argument("--group", type=int, default=8, help="responses per prompt")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--profile", help="write a table of the kernels of some steps to this file")
    options = parser.parse_args()
    compute, console = set_up(EngineConfig()), Console()
    torch.manual_seed(0)
    with torch.device(compute.device):
        model = Qwen2ForCausalLM(qwen_0_5b() if options.model == "0.5b" else qwen_1_5b()).eval()
    prepare_for_cuda(model, compute)
    weights = SamplingWeights(model, compute)
    limits = RolloutLimits(options.length, options.slots, options.prompt)
    rollout = Rollout(weights, compute, limits, [10**6], 0, graphs=not options.eager)
    some = torch.randint(1, 1000, (options.rows // options.group, options.prompt)).tolist()
    prompts = [Prompt(i, (), tuple(ids), "none", "", {}) for i, ids in enumerate(some)]
    streams = SampleStreams.named(0, "benchmark")
    for name in ("first", "second", "third"):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        responses = rollout.generate(prompts, options.group, SamplingParams(), streams)
        took = time.perf_counter() - begun
        tokens = int(responses.mask.sum())
        console.print(
            f"{name:6} call: {took:.2f} s, {1000 * took / options.length:.2f} ms a token of the batch, "
            f"{tokens / took:,.0f} tokens/s, peak {compute.peak_memory_gb():.1f} GiB"
        )
    if options.profile:
        short = Rollout(weights, compute, RolloutLimits(32, options.slots, options.prompt), [10**6], 0)
        with torch.profiler.profile() as seen:
            short.generate(prompts, options.group, SamplingParams(), streams)
        table = seen.key_averages().table(sort_by="self_cuda_time_total", row_limit=40)
        Path(options.profile).write_text(table)


if __name__ == "__main__":
    main()
