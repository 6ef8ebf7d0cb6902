"""One of two processes: `python two_ranks.py RANK STORE OUT`. Scores its share of the rows and saves them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
from tiny_update import GROUPS, Problem, WideTorch, tiny_model, traced_config
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers.models.qwen2 import modeling_qwen2

from archer.errors import ArcherError
from archer.influence import Group, InfluenceTracer
from archer.influence.distributed import gather_groups

CASES = {
    "response": {},
    "response primal": {"solver": "primal", "score_normalization": "token_norm"},
    "token dual": {"hessian_source": "token", "solver": "dual", "score_normalization": "token_norm"},
    "token primal": {"hessian_source": "token", "solver": "primal", "exclude_self_response": True},
    "token auto": {"hessian_source": "token", "exclude_self_response": True},
    "all selected": {"accepted_rejected_scope": "all_selected", "contrastive_agg": "mean"},
    "second backward": {"output_function": "log_prob", "exclude_self_response": True},
}
FSDP_CASES = ("response", "token auto", "second backward")
# Group a lies on both ranks, group b on rank 1 alone, and in "nothing" rank 0 captures no row at all.
SHARES = {"crossing": [[[0, 2], [7]], [[1, 3], [4, 5, 6, 8]]], "nothing": [[], [[0, 1, 2, 3], [4, 5, 6]]]}


def sharded(model: torch.nn.Module) -> torch.nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def error_of(action) -> str:
    try:
        action()
    except ArcherError as error:
        return str(error)
    return "no error"


def main(rank: int, store: str, out: str) -> None:
    torch.set_num_threads(1)
    modeling_qwen2.torch = WideTorch()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    found = {}
    for engine in ("replicated", "fsdp2"):
        problem = Problem(tiny_model() if engine == "replicated" else sharded(tiny_model()))
        for case, changes in CASES.items():
            for share, micro_batches in SHARES.items():
                if engine == "fsdp2" and (share == "nothing" or case not in FSDP_CASES):
                    continue  # under FSDP every rank runs every forward
                tracer = InfluenceTracer(problem.model, traced_config(**changes), dist.group.WORLD)
                if micro_batches[rank]:
                    problem.update(tracer, micro_batches[rank], kind="clipped", arrangement="packed")
                scores = tracer.scores(GROUPS, dtype=torch.float64)
                gradients = [whole(p.grad) for p in problem.model.parameters() if p.grad is not None]
                problem.model.zero_grad()
                found[engine, case, share] = scores, tracer.metrics(), gradients
    broken = Problem(tiny_model())
    broken.advantages[2] = torch.nan  # of group a, on rank 0
    tracer = InfluenceTracer(broken.model, traced_config(), dist.group.WORLD)
    broken.update(tracer, SHARES["crossing"][rank])
    not_finite = tracer.scores(GROUPS), tracer.metrics()
    mine = (
        [Group("b", (5,), (True,))]
        if rank
        else [Group("b", (6, 4), (False, False)), Group("a", (1,), (True,))]
    )
    joined = gather_groups(mine, dist.group.WORLD)
    tracer = InfluenceTracer(tiny_model(), traced_config(), dist.group.WORLD)
    differing = error_of(lambda: tracer.scores(GROUPS[: 1 + rank]))
    if rank:
        problem = Problem(tiny_model())
        mixed = InfluenceTracer(problem.model, traced_config(), dist.group.WORLD)
        problem.update(mixed, [[0, 1]])
        torch.optim.SGD(problem.model.parameters(), lr=0.1).step()
        problem.update(mixed, [[2, 3]])
        tracer = mixed
    failing = error_of(lambda: tracer.scores(GROUPS[:1]))
    results = {"scores": found, "joined": joined, "differing": differing, "failing": failing}
    torch.save(results | {"not finite": not_finite}, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
