r"""What token credit costs: a full update step of the local engine with and without a mode.

All sides update the same model on the same responses, in turn, in one process; ratios are of median times.
What is made in the update's own forward counts with it, and so does a pass of its own.

    python benchmarks/token_credit.py                        # the tiny model on the CPU
    python benchmarks/token_credit.py --model 0.5b --rows 256 --prompt 100 --length 512 --ragged \
        --budget 32768

The second on a GPU; `--step` is the time of the rest of a step there (generation), so that shares of the
whole step come out as well. Models of these shapes have random weights.
"""

import argparse
import statistics
import time

import torch
from rich.console import Console
from rich.table import Table
from tracing_overhead import make_experience, make_model, size_options

from archer.algorithms.token_credit.base import CREDIT_MODES
from archer.algorithms.token_credit.config import token_credit_config
from archer.config.actor import actor_config
from archer.config.trainer import EngineConfig
from archer.engines.local.credit import LocalCredit
from archer.engines.local.loss import Experience
from archer.engines.local.update import Updater
from archer.generation.device import set_up
from archer.generation.policy import Policy
from archer.training.credit import TokenCredit

MODES = ("none", "spare_confident", "nthr", "influence")


def parse() -> argparse.Namespace:
    parser = size_options(__doc__)
    parser.add_argument("--modes", nargs="+", choices=[*CREDIT_MODES.names()], default=MODES)
    parser.add_argument("--step", type=float, default=0.0, help="seconds of a step beside its update")
    return parser.parse_args()


def one_update(updater: Updater, credit: LocalCredit, experience: Experience) -> float:
    device = updater.policy.compute.device
    started = time.perf_counter()
    step = credit.step(experience.judged, 1)
    if step is not None and credit.recorder is not None:
        step.make_ahead(step.pass_of_its_own(), experience.advantages)
    elif step is not None and not step.fits_in_update():
        step.make_ahead(step.forward(), experience.advantages)
    updater.update(experience, 1, credit=step)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> None:
    options = parse()
    compute = set_up(EngineConfig(device=options.device))
    model = make_model(options, compute)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-7, fused=True)
    actor = actor_config(ppo_mini_batch_size=options.rows, ppo_max_token_len_per_gpu=options.budget)
    experience = make_experience(options, model.config.vocab_size)
    modes = ["none", *(mode for mode in options.modes if mode != "none")]
    sides: dict[str, tuple[Updater, LocalCredit]] = {}
    for mode in modes:
        policy = Policy(model, compute, 1.0)  # one each: a mode that traces the head changes how it runs
        credit = LocalCredit(TokenCredit(token_credit_config(mode=mode), 0), policy, actor, None)
        sides[mode] = (Updater(policy, optimizer, actor, options.length), credit)
    times: dict[str, list[float]] = {mode: [] for mode in modes}
    for mode in modes:
        one_update(*sides[mode], experience)  # warm-up
    for _ in range(options.rounds):
        for mode in modes:
            times[mode].append(one_update(*sides[mode], experience))
    median = {mode: statistics.median(values) for mode, values in times.items()}
    table = Table(title=f"{options.model} model, {compute.device.type}, {options.rows} x {options.length}")
    for heading in ("mode", "update, median s", "ratio", *(["ratio of the step"] if options.step else [])):
        table.add_column(heading, justify="right")
    for mode in modes:
        whole = (median[mode] + options.step) / (median["none"] + options.step)
        cells = [f"{median[mode]:.4f}", f"{median[mode] / median['none']:.3f}"]
        table.add_row(mode, *cells, *([f"{whole:.3f}"] if options.step else []))
    Console().print(table)


if __name__ == "__main__":
    main()
