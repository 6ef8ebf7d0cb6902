"""A GRPO step of stock verl beside engine=verl and engine=local, each with vLLM, on one GPU.

The same model, prompts, batch and verl settings: stock verl is given what Archer gives it, with verl's own
trainer, workers, advantage, prompts and a reward function of a few lines in the places of Archer's. Each side
has a process and a Ray of its own. Seconds are medians of the steps after the first two.

    archer data prepare gsm8k --out gsm8k-train.jsonl
    python benchmarks/gpu_vs_verl.py MODEL gsm8k-train.jsonl --steps 8
"""

import argparse
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, open_dict
from sides import archer_settings, columns_of, measure_all, run_archer, workload_options

SIDES = ("verl", "archer-verl", "archer-verl-untraced", "archer-local")
UNTRACED = ["trainer.entropy_trace.enable=False", "trainer.influence_trace.enable=False"]
RAY = ["ray_kwargs.ray_init.address=local", "ray_kwargs.ray_init.num_cpus=32"]
ON_VERL = ["engine=verl", "actor_rollout_ref.actor.use_torch_compile=False", *RAY]


def parse() -> argparse.Namespace:
    parser = workload_options(__doc__)
    parser.add_argument("--backend", default="vllm", help="rollout.name")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--side", choices=SIDES, help="run one side in this process")
    return parser.parse_args()


def boxed(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
) -> dict[str, float]:
    """The reward of the stock side: the last box holds the number."""
    found = re.findall(r"\\boxed\{([^{}]*)\}", solution_str)
    right = float(bool(found) and found[-1].replace(",", "").replace("$", "").strip() == ground_truth)
    return {"score": right, "acc": right}


def stock_settings(options: argparse.Namespace, folder: str) -> DictConfig:
    """What Archer gives to verl, with verl's own parts in the places of Archer's."""
    from archer.config import compose
    from archer.engines.verl.settings import verl_defaults, verl_settings

    tree = verl_settings(compose(archer_settings(options, options.backend, folder)))
    stock = verl_defaults()
    with open_dict(tree):
        del tree.trainer.archer, tree.actor_rollout_ref.archer
        tree.trainer.v1.trainer_mode = "sync"
        tree.trainer.logger = ["file"]
        tree.trainer.test_freq = tree.trainer.save_freq = -1
        tree.reward = stock.reward
        tree.reward.custom_reward_function = {"path": str(Path(__file__).resolve()), "name": "boxed"}
        tree.data.custom_cls = stock.data.custom_cls
        tree.algorithm.adv_estimator = "grpo"
        tree.actor_rollout_ref.rollout.agent = stock.actor_rollout_ref.rollout.agent
        library = tree.actor_rollout_ref.model
        library.external_lib = None if tree.trainer.device == "cuda" else library.external_lib
    return tree


def run_stock(options: argparse.Namespace) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "metrics.jsonl")
        os.environ["VERL_FILE_LOGGER_PATH"] = str(log)
        from archer.config import compose
        from archer.engines.verl.cluster import set_environment

        set_environment(compose(archer_settings(options, options.backend, folder)))
        settings = stock_settings(options, folder)
        from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

        settings.transfer_queue.enable = True
        settings.ray_kwargs.ray_init.runtime_env = {"env_vars": {"VERL_FILE_LOGGER_PATH": str(log)}}
        run_ppo(settings, task_runner_class=TaskRunnerV1)
        lines = [json.loads(line)["data"] for line in log.read_text().splitlines()]
    return columns_of([line for line in lines if "timing_s/step" in line])


def run_side(options: argparse.Namespace) -> None:
    if options.side != "archer-local":
        options.archer = [*ON_VERL, *options.archer]
    if options.side.endswith("untraced"):
        options.archer = [*options.archer, *UNTRACED]
    figures = run_stock(options) if options.side == "verl" else run_archer(options, options.backend)
    Path(options.figures).write_text(json.dumps(figures))


def main() -> int:
    options = parse()
    if options.side:
        run_side(options)
        return 0
    columns = ("seconds", "generation", "old_log_prob", "update", "weights", "length", "reward", "memory")
    return measure_all(options, columns, {})


if __name__ == "__main__":
    sys.exit(main())
