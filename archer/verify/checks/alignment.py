"""Whether a token's factors are those of the position that emits it."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from archer.engines.local.batch import MicroBatch, micro_batch
from archer.influence import InfluenceConfig
from archer.verify.captured import capture_objective, layout_of
from archer.verify.forward import token_log_probs
from archer.verify.result import CheckResult, at_most, exact
from archer.verify.sample import COMPUTE, Sample

CONFIG = InfluenceConfig(enable=True, projection="none", max_modules=1)


def check_alignment(model: PreTrainedModel, sample: Sample) -> CheckResult:
    """log pi_t depends on no position after the one that emits t, and on that one.

    So in the backward of log pi_t alone, the last captured token with a gradient has to be t itself.
    """
    batch = micro_batch(sample.responses, [0], COMPUTE.device)
    misplaced = 0
    for t in range(sample.lengths[0]):
        captured = capture_objective(model, layout_of(batch), CONFIG, partial(_log_prob, model, batch, t))
        reached = torch.stack([(u != 0).any(1) for u in captured.factors.u.values()]).any(0)
        last = int(captured.factors.token[reached].max()) if bool(reached.any()) else -1
        misplaced += last != t
    model.zero_grad(set_to_none=True)
    return exact(
        "tokens against the positions that emit them",
        "A score belongs to the token it is written for, not to its neighbour.",
        [at_most(f"tokens captured at another position, of {sample.lengths[0]}", misplaced, 0)],
    )


def _log_prob(model: PreTrainedModel, batch: MicroBatch, t: int) -> Tensor:
    return token_log_probs(model, batch)[0, t]
