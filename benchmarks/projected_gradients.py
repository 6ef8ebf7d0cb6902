"""Projected gradients per token, per response, and scores from them: Archer against bergson and kronfluence.

    python -m venv .venv-peers
    .venv-peers/bin/pip install -c constraints.txt bergson==2.5.1 kronfluence==1.0.1
    .venv-peers/bin/pip uninstall torchvision torchaudio   # where torch is a CPU build: theirs are for CUDA
    python benchmarks/projected_gradients.py --peers .venv-peers/bin/python

The same random Llama without biases, all linear modules but the head, the same tokens, float32, the same
batches, gradients of the summed cross-entropy projected to p x p a module by signs of +-1/sqrt(p). Every side
freezes the weights, as both peers do, and runs in a process of its own; the sides take turns.

    tokens      one array [tokens, modules x p x p] in memory; bergson's attribute_tokens=True
    responses   the same summed over each response; bergson's default
    scores      <sum_r +-G_r, g_t> of every token, G_r the mean of response r; Archer's hessian_mode=identity,
                in bergson a pass for the query and one for its Scorer
    exact       scores without a projection; in kronfluence pairwise scores per token
    training    scores, captured in the backward of a training step, which runs anyway

kronfluence neither projects nor returns gradients, so it has `exact` alone. Prompts have one token: bergson
keeps all positions, Archer those that emit response tokens. `plain` are the passes without any hook.

Agreement: unprojected gradients of a small model against autograd; projected ones by how well their inner
products follow the exact ones.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from projected_gradients_sides import Figures, Workload, losses, make_ids, make_model
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
RUNS = {
    "tokens": ("plain", "archer", "bergson"),
    "responses": ("archer", "bergson"),
    "scores": ("archer", "bergson"),
    "exact": ("archer", "bergson", "kronfluence"),
    "training": ("plain-training", "archer-training"),
}
PEERS = ("bergson", "kronfluence")
Results = dict[tuple[str, str], np.ndarray]


def run(side: str, work: Workload, peers: str) -> tuple[Figures, np.ndarray | None]:
    """One side in a fresh process; its output is shown only if it fails."""
    python = peers if side in PEERS else sys.executable
    threads = {"OMP_NUM_THREADS": str(work.threads), "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(__file__).with_name("projected_gradients_sides.py")
        done = subprocess.run(
            [python, script, side, json.dumps(asdict(work)), folder],
            env=os.environ | threads,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            sys.exit(f"{done.stdout}\nThe {side} side failed with exit code {done.returncode}.")
        figures = Figures(**json.loads(Path(folder, "figures.json").read_text()))
        return figures, np.load(Path(folder, "result.npy")) if work.keep else None


def workload(name: str, base: Workload) -> Workload:
    """What a side of one of RUNS is given."""
    kind = {"exact": "scores", "training": "scores"}.get(name, name)
    return replace(base, work=kind, dim=0 if name == "exact" else base.dim)


def exact_gradients(work: Workload) -> np.ndarray:
    """[responses, parameters] by autograd, one response at a time."""
    model, ids = make_model(replace(work, device="cpu")), make_ids(work)
    weights = [
        module.weight
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    ]
    rows = [torch.autograd.grad(losses(model, ids[row : row + 1]).sum(), weights) for row in range(len(ids))]
    return np.stack([torch.cat([part.flatten() for part in row]).numpy() for row in rows])


def relative(found: np.ndarray, reference: np.ndarray) -> float:
    """Largest difference over the largest number."""
    return float(np.abs(found - reference).max() / np.abs(reference).max())


def rank_correlation(found: np.ndarray, reference: np.ndarray) -> float:
    """Spearman's."""
    ranks = [values.argsort().argsort() for values in (found.ravel(), reference.ravel())]
    return float(np.corrcoef(*ranks)[0, 1])


def check_small(peers: str, base: Workload) -> list[str]:
    """Unprojected gradients of a small model against autograd and against each other."""
    small = replace(
        base, hidden=64, layers=2, responses=8, length=16, batch=4, dim=0, repeats=1, keep=True, work="tokens"
    )
    exact = exact_gradients(small)
    tokens = {side: run(side, small, peers)[1] for side in ("archer", "bergson")}
    told = []
    for side, found in tokens.items():
        assert found is not None
        summed = found.reshape(small.responses, small.length, -1).sum(1)
        told.append(f"{side}: tokens summed against autograd {relative(summed, exact):.1e}")
    assert tokens["archer"] is not None and tokens["bergson"] is not None
    told.append(f"archer against bergson, each token {relative(tokens['archer'], tokens['bergson']):.1e}")
    return told


def check_projected(results: Results, base: Workload) -> list[str]:
    """Inner products of projected responses, and scores of tokens, against the exact ones."""
    gradients = exact_gradients(base)
    above = np.triu_indices(base.responses, 1)
    products = {"exact": (gradients @ gradients.T)[above]}
    for side in ("archer", "bergson"):
        found = results["responses", side]
        products[side] = (found @ found.T)[above]
        summed = results["tokens", side].reshape(base.responses, base.length, -1).sum(1)
        products[f"{side}, tokens summed"] = (summed @ summed.T)[above]
    told = []
    for side in ("archer", "bergson"):
        pearson = float(np.corrcoef(products[side], products["exact"])[0, 1])
        rank = rank_correlation(products[side], products["exact"])
        same = relative(products[f"{side}, tokens summed"], products[side])
        scores = rank_correlation(results["scores", side], results["exact", "archer"])
        told.append(
            f"{side}, projected: inner products of responses r {pearson:.3f}, rank {rank:.3f}; scores of "
            f"tokens rank {scores:.3f}; tokens summed are its responses to {same:.1e}"
        )
    both = rank_correlation(products["archer"], products["bergson"])
    told.append(f"archer against bergson, inner products of responses: rank {both:.3f}")
    for side in ("bergson", "kronfluence"):
        error = relative(results["exact", side], results["exact", "archer"])
        told.append(f"{side} against archer, scores without projection: {error:.1e}")
    return told


def compare(measured: dict[tuple[str, str], list[Figures]], title: str) -> Table:
    """Medians over all actions of all rounds; the last columns are what Archer's are of each."""
    table = Table(title=title)
    for column in ("work", "side", "s", "CPU s", "MiB", "time", "CPU time", "memory"):
        table.add_column(column, justify="left" if column in ("work", "side") else "right")
    for name, sides in RUNS.items():
        numbers = {}
        for side in sides:
            figures = measured[name, side]
            numbers[side] = (
                median(value for one in figures for value in one.seconds),
                median(value for one in figures for value in one.cpu_seconds),
                median(one.peak_mib - one.loaded_mib for one in figures),
            )
        ours = numbers["archer-training" if name == "training" else "archer"]
        for side in sides:
            ratios = [f"{theirs / own:.2f}" for theirs, own in zip(numbers[side], ours, strict=True)]
            seconds, cpu, mib = numbers[side]
            table.add_row(name, side, f"{seconds:.3f}", f"{cpu:.3f}", f"{mib:,.0f}", *ratios)
    return table


def main() -> None:
    """Let the sides run in turns; print times, memory and agreement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", required=True, help="interpreter with bergson and kronfluence")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--responses", type=int, default=16)
    parser.add_argument("--length", type=int, default=128, help="tokens of a response")
    parser.add_argument("--batch", type=int, default=8, help="responses a forward")
    parser.add_argument("--dim", type=int, default=16, help="p; a module's gradient has p x p numbers")
    parser.add_argument("--repeats", type=int, default=3, help="timed actions of a process")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each side")
    parser.add_argument("--threads", type=int, default=1)
    options = vars(parser.parse_args())
    peers, rounds = options.pop("peers"), options.pop("rounds")
    base = Workload(work="tokens", **options)
    console = Console(width=110)
    for line in check_small(peers, base):
        console.print(line, highlight=False)
    measured: dict[tuple[str, str], list[Figures]] = {}
    results: Results = {}
    for number in range(rounds):
        for name, sides in RUNS.items():
            for side in sides:
                keep = number == 0 and name != "training" and side != "plain"
                figures, result = run(side, replace(workload(name, base), keep=keep), peers)
                measured.setdefault((name, side), []).append(figures)
                if result is not None:
                    results[name, side] = result
    for line in check_projected(results, base):
        console.print(line, highlight=False)
    title = f"{base.responses} x {base.length} tokens, {base.layers} layers of {base.hidden}, p = {base.dim}"
    console.print(compare(measured, f"{title}, {base.device}, {base.threads} threads"))
    console.print(
        "; ".join(
            measured[name, name_of][0].versions
            for name, name_of in (("tokens", "bergson"), ("exact", "kronfluence"))
        ),
        highlight=False,
    )
    console.print(f"load average at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
