"""Token values that need no gradient, for comparison with influence."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from archer.engines.local.policy import Policy
from archer.verify.captured import Scores
from archer.verify.sample import COMPUTE, Sample


@torch.no_grad()
def baselines(model: PreTrainedModel, sample: Sample, seed: int) -> dict[str, Scores]:
    """For every response token: a random number, the entropy, |advantage|, and -log pi of the token."""
    batch = sample.batch
    stats = Policy(model, COMPUTE, temperature=1.0).token_stats(batch)
    generator = torch.Generator().manual_seed(seed)
    tables = {
        "random": torch.rand(batch.mask.shape, generator=generator),
        "entropy": stats.entropy,
        "|advantage|": sample.advantages.abs()[:, None].expand(batch.mask.shape),
        "-log-prob": -stats.log_probs,
    }
    return {
        name: {
            row: line[mask].double() for row, (line, mask) in enumerate(zip(table, batch.mask, strict=True))
        }
        for name, table in tables.items()
    }
