"""The sides of `projected_gradients.py`: the same gradients by Archer, bergson and kronfluence.

Each side runs in a process of its own, with the interpreter of the environment it is installed in:

    python benchmarks/projected_gradients_sides.py SIDE WORKLOAD_JSON FOLDER

It leaves `figures.json` and, if asked, `result.npy` in the folder. A side is a function of the workload that
returns the action to be timed; what an action returns is the result, a float32 array.
"""

import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 512
FROZEN = True  # parameters, as both peers have them; the embedding alone keeps its gradient


@dataclass(frozen=True)
class Workload:
    """What every side is given."""

    work: str  # tokens, responses or scores
    hidden: int
    layers: int
    responses: int
    length: int  # of each response, after a prompt of one token
    batch: int  # responses a forward
    dim: int  # p: gradients of a module are projected to p x p; 0: not projected
    repeats: int
    threads: int
    device: str
    keep: bool = False  # the last result


@dataclass(frozen=True)
class Figures:
    """What a side measured."""

    versions: str
    seconds: list[float]  # on the clock
    cpu_seconds: list[float]  # of all threads: what other programs on the machine hardly distort
    loaded_mib: float  # before the first action
    peak_mib: float  # of the whole process; on CUDA of the allocator


def make_model(work: Workload) -> LlamaForCausalLM:
    """A Llama of random weights without biases, the same in every process."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=work.hidden,
        intermediate_size=4 * work.hidden,
        num_hidden_layers=work.layers,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config).to(work.device)


def freeze(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Leave a gradient to the embedding alone, as bergson does: no gradient of a weight is computed."""
    model.requires_grad_(False)
    model.get_input_embeddings().requires_grad_(True)
    return model


def make_ids(work: Workload) -> Tensor:
    """int64 [responses, 1 + length], the same in every process; they share a growing part of one sequence.

    So that their gradients are alike to different degrees, as those of answers to one prompt are.
    """
    generator = torch.Generator().manual_seed(1)
    shape = (work.responses, 1 + work.length)
    common = torch.randint(0, VOCABULARY, shape[1:], generator=generator)
    other = torch.randint(0, VOCABULARY, shape, generator=generator)
    share = torch.linspace(0, 0.9, work.responses)[:, None]
    return torch.where(torch.rand(shape, generator=generator) < share, common, other)


def contrast(work: Workload) -> Tensor:
    """What each response's summed loss weighs in the contrast: its mean, accepted or rejected in turn."""
    signs = torch.tensor([1.0 if row % 2 == 0 else -1.0 for row in range(work.responses)])
    return signs / work.length


def losses(model: torch.nn.Module, ids: Tensor) -> Tensor:
    """[rows] cross-entropy of a row's tokens after its first, summed."""
    logits = model(input_ids=ids).logits[:, :-1]
    each = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return each.view(len(ids), -1).sum(1)


def batches(work: Workload) -> Iterator[list[int]]:
    """Rows of each forward."""
    for begin in range(0, work.responses, work.batch):
        yield list(range(begin, min(work.responses, begin + work.batch)))


def plain(work: Workload, frozen: bool = FROZEN) -> Callable[[], np.ndarray]:
    """The passes alone, without hooks: what gradients are captured beside."""
    model, ids = make_model(work), make_ids(work).to(work.device)
    if frozen:
        freeze(model)

    def action() -> np.ndarray:
        for rows in batches(work):
            losses(model, ids[rows]).sum().backward()
            model.zero_grad()
        return np.zeros(1, np.float32)

    return action


def archer(work: Workload, frozen: bool = FROZEN) -> Callable[[], np.ndarray]:
    """`InfluenceTracer`: factors from one backward, the rest from the factors."""
    from archer.influence import Group, InfluenceConfig, InfluenceTracer, Layout

    model, ids = make_model(work), make_ids(work).to(work.device)
    sizes: dict[str, Any] = {"projection_dim_factor": 1, "max_proj_vector_sum": 2 * work.dim}
    config = InfluenceConfig(
        enable=True,
        hessian_mode="identity",
        max_hessian_dim=0,
        **(sizes if work.dim else {"projection": "none"}),
    )
    tracer = InfluenceTracer(model, config)
    if frozen:
        freeze(model)
    group = Group("g", tuple(range(work.responses)), tuple(row % 2 == 0 for row in range(work.responses)))

    def factors() -> Iterator[tuple[int, slice, Tensor, Tensor]]:
        """(module's first column, row's lines, u, v), scaled, of every response and module."""
        column = 0
        for traced in tracer.modules:
            for batch in tracer.captured:
                u, v = batch.u[traced.name], batch.v[traced.name]
                u, v = u[:, : traced.k_out] * traced.scale, v[:, : traced.k_in]
                assert batch.runs is not None
                for row, (first, count) in batch.runs.items():
                    here = slice(first, first + count)
                    yield column, slice(row * count, (row + 1) * count), u[here], v[here]
            column += traced.dim

    def gradients() -> Tensor:
        each = work.work == "tokens"
        lines = work.responses * (work.length if each else 1)
        width = sum(traced.dim for traced in tracer.modules)
        found = torch.empty(lines, width, device=work.device)
        for column, where, u, v in factors():
            shape = (u.shape[1], v.shape[1])
            if not each:
                where = slice(where.start // work.length, where.start // work.length + 1)
            part = found[where, column : column + shape[0] * shape[1]].unflatten(1, shape)
            if each:
                torch.mul(u[:, :, None], v[:, None, :], out=part)
            else:
                torch.mm(u.T, v, out=part[0])
        tracer.reset()
        return found.cpu()

    def action() -> np.ndarray:
        for rows in batches(work):
            ones, lengths = [1] * len(rows), [work.length] * len(rows)
            with tracer.capture(Layout.padded(rows, ones, lengths, 1 + work.length)):
                losses(model, ids[rows]).sum().backward()
            model.zero_grad()
        if work.work != "scores":
            return gradients().numpy()
        scores = tracer.scores([group])
        return torch.stack([scores[row] for row in range(work.responses)]).numpy()

    return action


def bergson(work: Workload) -> Callable[[], np.ndarray]:
    """`InMemoryCollector` under `CollectorComputer`, per token or per sequence; `Scorer` for scores."""
    from bergson import CollectorComputer, GradientProcessor, IndexConfig, InMemoryCollector, PreprocessConfig
    from bergson.score.score_writer import InMemoryTokenScoreWriter
    from bergson.score.scorer import Scorer
    from datasets import Dataset

    model = freeze(make_model(work))
    data = Dataset.from_dict({"input_ids": make_ids(work).tolist()})
    weighted = data.add_column("advantage", contrast(work).tolist())
    processor = GradientProcessor(projection_dim=work.dim or None)
    folder = tempfile.mkdtemp()
    Path(f"{folder}/run.part").mkdir()

    def collect(rows: Any, each: bool, **options: Any) -> InMemoryCollector:
        config = IndexConfig(run_path=f"{folder}/run", projection_dim=work.dim, attribute_tokens=each)
        collector = InMemoryCollector(
            model=model.base_model, data=rows, cfg=config, processor=processor, **options
        )
        computer = CollectorComputer(
            model, rows, collector=collector, batches=list(batches(work)), cfg=config
        )
        computer.run_with_collector_hooks(desc=work.work)
        return collector

    def action() -> np.ndarray:
        if work.work != "scores":
            found = collect(data, work.work == "tokens")
            assert found.builder is not None
            return found.builder.grad_buffer
        query = collect(weighted, False, preprocess_cfg=PreprocessConfig(aggregation="sum")).gradients
        writer = InMemoryTokenScoreWriter(data, 1)
        device = torch.device(work.device)
        scorer = Scorer(query, list(query), writer, device, torch.float32, attribute_tokens=True)
        collect(data, True, scorer=scorer)
        return torch.stack(writer.scores).squeeze(2).numpy()

    return action


def kronfluence(work: Workload) -> Callable[[], np.ndarray]:
    """`Analyzer.compute_pairwise_scores` per token against one summed query, without a Hessian."""
    from kronfluence import Analyzer, FactorArguments, ScoreArguments, Task, prepare_model
    from torch.utils.data import Dataset

    class Contrast(Task):
        def compute_train_loss(self, batch: Any, model: Any, sample: bool = False) -> Tensor:
            return losses(model, batch[0]).sum()

        def compute_measurement(self, batch: Any, model: Any) -> Tensor:
            return (losses(model, batch[0]) * batch[1]).sum()

        def get_influence_tracked_modules(self) -> list[str]:
            return modules

    class Rows(Dataset):
        def __init__(self) -> None:
            self.ids, self.weights = make_ids(work), contrast(work)

        def __len__(self) -> int:
            return work.responses

        def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
            return self.ids[row], self.weights[row]

    model, task, data = make_model(work), Contrast(), Rows()
    modules = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    ]
    model = prepare_model(model, task)
    on_cpu = work.device == "cpu"
    analyzer = Analyzer("a", model, task, cpu=on_cpu, disable_tqdm=True, output_dir=tempfile.mkdtemp())
    analyzer.fit_all_factors("f", data, work.batch, factor_args=FactorArguments(strategy="identity"))
    arguments = ScoreArguments(compute_per_token_scores=True, aggregate_query_gradients=True)

    def action() -> np.ndarray:
        analyzer.compute_pairwise_scores(
            "s",
            "f",
            data,
            data,
            per_device_query_batch_size=work.batch,
            per_device_train_batch_size=work.batch,
            score_args=arguments,
            overwrite_output_dir=True,
        )
        return analyzer.load_pairwise_scores("s")["all_modules"][0, :, : work.length].numpy()

    return action


SIDES: dict[str, Callable[[Workload], Callable[[], np.ndarray]]] = {
    "plain": plain,
    "plain-training": lambda work: plain(work, frozen=False),
    "archer": archer,
    "archer-training": lambda work: archer(work, frozen=False),
    "bergson": bergson,
    "kronfluence": kronfluence,
}


def memory_mib(device: str, peak: bool) -> float:
    """Resident memory of the process (Linux), or what the allocator of a GPU gave out."""
    if device == "cuda":
        return (torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()) / 2**20
    name = "VmHWM:" if peak else "VmRSS:"
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(name))
    return int(line.split()[1]) / 1024


def versions(side: str) -> str:
    """Of what the figures depend on."""
    from importlib.metadata import version

    names = ("torch", "transformers", *((side,) if side in ("bergson", "kronfluence") else ()))
    return ", ".join(f"{name} {version(name)}" for name in names)


def main() -> None:
    """Run one side."""
    side, work, folder = sys.argv[1], Workload(**json.loads(sys.argv[2])), Path(sys.argv[3])
    torch.set_num_threads(work.threads)
    action = SIDES[side](work)
    # kronfluence collects garbage four times an action; libraries are then left out of it.
    gc.freeze()
    loaded, ends = memory_mib(work.device, peak=False), [(time.perf_counter(), time.process_time())]
    for _ in range(1 + work.repeats):  # the first warms up
        result = action()
        if work.device == "cuda":
            torch.cuda.synchronize()
        ends.append((time.perf_counter(), time.process_time()))
    spans = [(end[0] - begin[0], end[1] - begin[1]) for begin, end in pairwise(ends[1:])]
    clock, cpu = zip(*spans, strict=True)
    peak = memory_mib(work.device, peak=True)
    figures = Figures(versions(side), list(clock), list(cpu), loaded, peak)
    (folder / "figures.json").write_text(json.dumps(asdict(figures)))
    if work.keep:
        np.save(folder / "result.npy", result)


if __name__ == "__main__":
    main()
