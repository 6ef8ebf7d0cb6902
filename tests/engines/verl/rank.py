"""One rank of verl's real engine, without Ray: `python rank.py RANK RANKS STORE INPUT OUTPUT`.

INPUT holds old log-probs and entropies by case; OUTPUT gets what the rank scored, or the factors it captured.
"""

import os
import sys
from pathlib import Path

os.environ["VERL_PLATFORM"] = "cpu"
os.environ["VERL_USE_EXTERNAL_MODULES"] = "archer.engines.verl.cpu.platform"
sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
from fixed_batch import (
    ALL,
    CREDIT_MODES,
    CREDIT_TEMPERATURE,
    EACH,
    LONGEST,
    LR,
    MODEL,
    Case,
    actor,
    advantages,
    groups,
    responses,
)
from tensordict import TensorDict
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine import EngineRegistry

import archer.engines.verl.plugin  # noqa: F401
from archer.engines.verl import influence
from archer.engines.verl.algorithms import RankLoss
from archer.engines.verl.credit import sum_of_log_probs
from archer.engines.verl.order import PortionSize, order_rows
from archer.engines.verl.traced_update import ROW_ID
from archer.influence import Layout, select_groups
from archer.training.credit import TokenCredit

MICRO = 2  # rows


def make_engine(case: Case):
    torch.manual_seed(0)
    model = HFModelConfig(
        path=MODEL,
        override_config={"attn_implementation": "sdpa"},
        use_remove_padding=case.packed,
        enable_gradient_checkpointing=case.checkpointed,
        lora_rank=case.lora_rank,
        lora={"merge": True},
        use_fused_kernels=case.fused,
        fused_kernel_options={"impl_backend": "torch"},
        target_modules=["q_proj", "v_proj"],
    )
    engine = EngineRegistry.new(
        "language_model",
        "fsdp2",
        model_config=model,
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            use_torch_compile=False,
            mixed_precision={"param_dtype": case.dtype, "reduce_dtype": "fp32"},
            pad_to_length=case.pad_to_length,
            pad_to_length_bucket=64,
        ),
        optimizer_config=FSDPOptimizerConfig(lr=LR, weight_decay=0.01, total_training_steps=10),
        checkpoint_config=CheckpointConfig(save_contents=["model", "optimizer", "extra"]),
    )
    engine.initialize()
    return engine


def deal(lengths, parts):
    """Shares of equal size and unequal content: every second row to the next rank."""
    return [list(range(part, len(lengths), parts)) for part in range(parts)]


def jagged(lines):
    return torch.nested.as_nested_tensor(list(lines), layout=torch.jagged)


def mini_batch(rows: list[int], case: Case, given: dict[str, torch.Tensor]) -> TensorDict:
    batch = responses()
    lengths = batch.lengths.tolist()
    prompts = [torch.tensor(batch.prompts[row].token_ids) for row in rows]
    answers = [batch.tokens[row, : lengths[row]] for row in rows]

    def part(values):
        return jagged(values[row, : lengths[row]] for row in rows)

    ones = [torch.ones(lengths[row], dtype=torch.long) for row in rows]
    data = TensorDict(
        {
            "prompts": jagged(prompts),
            "responses": jagged(answers),
            "input_ids": jagged([torch.cat(pair) for pair in zip(prompts, answers, strict=True)]),
            "position_ids": jagged(
                [torch.arange(len(p) + len(a)) for p, a in zip(prompts, answers, strict=True)]
            ),
            "response_mask": jagged(ones),
            "loss_mask": jagged(ones),
            "old_log_probs": part(given["old_log_probs"]),
            "entropy": part(given["entropy"]),
            "advantages": part(advantages(batch.mask)),
            ROW_ID: torch.tensor(rows),
        },
        batch_size=len(rows),
    )
    tu.assign_non_tensor(
        data,
        use_remove_padding=case.packed,
        use_dynamic_bsz=case.dynamic,
        micro_batch_size_per_gpu=MICRO,
        max_token_len_per_gpu=actor(case).ppo_max_token_len_per_gpu,
        use_fused_kernels=case.fused,
        temperature=1.0,
        calculate_entropy=False,
        pad_token_id=0,
    )
    return data


def run(case: Case, given: dict[str, torch.Tensor], rank: int, ranks: int):
    engine = make_engine(case)
    recorder = engine.trace(case.influence)
    batch = responses()
    size = len(batch) // case.mini_batches
    owners = [row // EACH for row in range(len(batch))]
    lengths = batch.lengths.tolist()
    portion = None if case.portion is None else PortionSize(case.portion, MICRO * ranks, lengths)
    order = order_rows(owners, lengths, size, ranks, deal, portion=portion)
    rewards = dict.fromkeys(range(len(batch)), 1.0)
    recorder.begin(influence.TracePlan.of(order.mini_batches, select_groups(groups(), 0).groups, rewards))
    kept = watch_scoring(recorder, case.factors)
    reductions = watch_reductions(engine)
    share = len(batch) // ranks
    mine = order.rows[rank * share : (rank + 1) * share]
    each = size // ranks
    loss = RankLoss(actor(case), LONGEST)
    norms = []
    with engine.train_mode():
        for start in range(0, share, each):
            data = mini_batch(mine[start : start + each], case, given)
            if case.factors:
                engine.forward_backward_batch(data, loss)
                return factors(recorder, batch)
            norms.append(engine.train_batch(data, loss_function=loss)["metrics"]["grad_norm"])
    return {
        "trace": recorder.finish(),
        "norms": norms,
        "sums": loss.sums.read(),
        "terms": loss.terms,
        "kept": kept,
        "reductions": reductions,
    }


def read_credit(case: Case, given: dict[str, torch.Tensor], rank: int, ranks: int):
    """Influence for token credit: of the head from a forward, of the modules from a pass of its own."""
    batch = responses()
    owners = [row // EACH for row in range(len(batch))]
    selected = select_groups(groups(), 0).groups
    share = len(batch) // ranks
    found = {}
    for mode in CREDIT_MODES:
        engine = make_engine(case)
        engine.read_for(TokenCredit(CREDIT_MODES[mode], seed=0), temperature=CREDIT_TEMPERATURE)
        order = order_rows(owners, batch.lengths.tolist(), len(batch), ranks, deal)
        mine = order.rows[rank * share : (rank + 1) * share]
        data = mini_batch(mine, case, given)
        if engine.head is not None:
            tu.assign_non_tensor(data, temperature=CREDIT_TEMPERATURE)
            engine.head.begin(frozenset(row for group in selected for row in group.rows))
            with engine.eval_mode(), torch.no_grad():
                engine.infer_batch(data)
            found[mode] = engine.head.scores(selected)
            continue
        before = [parameter.detach().clone() for parameter in engine.module.parameters()]
        engine.begin_credit(influence.TracePlan.of(order.mini_batches, selected, {}))
        with engine.train_mode():
            engine.train_batch(data, loss_function=sum_of_log_probs)
            rate = engine.lr_scheduler_step()
        found[mode] = engine.finish_credit().scores
        after = engine.module.parameters()
        assert rate == LR and all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert not engine.reading_credit and engine.recorder is None
    return found


def watch_reductions(engine) -> list[bool]:
    """Whether gradients went between ranks, of every micro-batch."""
    reductions: list[bool] = []
    set_sync, forward = engine.module.set_requires_gradient_sync, engine.forward_step
    reduces = [True]

    def remember(flag):
        reduces[0] = flag
        set_sync(flag)

    def forward_step(*arguments, **options):
        reductions.append(reduces[0])
        return forward(*arguments, **options)

    engine.module.set_requires_gradient_sync, engine.forward_step = remember, forward_step
    return reductions


def watch_scoring(recorder, drop: bool) -> list[list[int]]:
    """The rows whose factors are kept whenever there is something to score; `drop`: and nothing is scored."""
    kept: list[list[int]] = []
    scores = recorder.score

    def watched(portion):
        kept.append([row for captured in recorder.tracer.captured for row in captured.lengths])
        if not drop:
            scores(portion)

    recorder.score = watched
    return kept


def factors(recorder, batch):
    """{(row, token): gradient of that token's own logit, summed over the modules' only one}."""
    found = {}
    for captured in recorder.tracer._batches:
        (u,) = captured.u.values()
        for row, token, line in zip(captured.row.tolist(), captured.token.tolist(), u, strict=True):
            if row >= 0:  # lines of prompts may be kept, too
                found[row, token] = float(line[batch.tokens[row, token]])
    return found


def shift() -> None:
    """Let every layout name the neighbour of the right position."""
    right = influence.TracedRows.packed

    def wrong(self, padding: int = 0) -> Layout:
        layout = right(self, padding)
        return Layout(layout.row.roll(1), layout.token.roll(1))

    influence.TracedRows.packed = wrong


def checkpoint_of_adapters(folder: Path) -> dict[str, torch.Tensor]:
    """Save a checkpoint of an engine with adapters; return the merged weights as a rollout gets them."""
    engine = make_engine(ALL["lora"])
    with torch.no_grad():
        for parameter in engine.module.parameters():
            if parameter.requires_grad:  # B begins as zero; every rank fills its own part
                parameter.add_(0.1)
    engine.save_checkpoint(str(folder / "global_step_1" / "actor"))
    weights, _ = engine.get_per_tensor_param()
    return dict(weights)


def main(rank: int, ranks: int, store: str, source: str, target: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    given = torch.load(source)
    found = {}
    right = influence.TracedRows.packed
    for name, case in ALL.items():
        if case.shifted:
            shift()
        if case.credit:
            found[name] = read_credit(case, given["on"], rank, ranks)
            continue
        found[name] = run(case, given["off" if case.off_policy else "on"], rank, ranks)
        influence.TracedRows.packed = right
    found["adapters"] = checkpoint_of_adapters(Path(target).parent / f"adapters{ranks}")
    torch.save(found, target)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
