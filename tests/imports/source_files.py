"""Files as TRL and prime-rl write them: names and columns of their own sources."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_trl(folder: Path, step: int, table: dict[str, list]) -> Path:
    """The columns of TRL's `log` with `log_completions`, named as it names its file."""
    folder.mkdir(parents=True, exist_ok=True)
    count = len(table["prompt"])
    path = folder / f"completions_{step:05d}.parquet"
    pq.write_table(pa.table({"step": [step] * count, **table}), path)
    return path


def prime_rl_record(prompt: list[int], response: list[int], **changed) -> dict:
    """A sequence as prime-rl's token exporter writes it: lists over prompt and response together."""
    count, before = len(prompt) + len(response), len(prompt)
    nothing = [None] * count
    record = {
        "schema_version": 1,
        "step": 3,
        "export_step": 3,
        "rank": 0,
        "micro_step": 0,
        "micro_sequence_idx": 0,
        "export_sequence_idx": 0,
        "run_id": None,
        "env_name": "math",
        "token_ids": prompt + response,
        "position_ids": list(range(count)),
        "loss_mask": [False] * before + [True] * len(response),
        "advantages": [0.0] * before + [0.5] * len(response),
        "losses": [{"rl": {"advantage": 0.5, "mask": True}}] * count,
        "rewards": [1.0] * count,
        "inference_logprobs": [0.0] * before + [-0.5 - i / 8 for i in range(len(response))],
        "trainer_logprobs": [-9.0] * before + [-0.25 - i / 8 for i in range(len(response))],
        "entropy": [9.0] * before + [i / 4 for i in range(len(response))],
        "mismatch_kl": nothing,
        "log_importance_ratio": nothing,
        "importance_ratio": [1.0] * before + [1.25] * len(response),
        "prob_delta": nothing,
        "is_masked": [False] * count,
        "is_masked_high": [False] * (count - 1) + [True],
        "is_masked_low": [False] * before + [True] + [False] * (len(response) - 1),
    }
    return record | changed


def write_prime_rl(folder: Path, step: int, ranks: dict[int, list[dict]], stable: bool = True) -> Path:
    inside = folder / "token_exports" / f"step_{step}"
    inside.mkdir(parents=True, exist_ok=True)
    for rank, records in ranks.items():
        lines = [json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n" for record in records]
        (inside / f"rank_{rank}.jsonl").write_text("".join(lines))
    if stable:
        (inside / "STABLE").touch()
    return inside
