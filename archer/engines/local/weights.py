"""The copy of the policy that samples, where training and sampling use different number formats."""

import copy

import torch
from transformers import PreTrainedModel

from archer.engines.local.device import Compute


class SamplingWeights:
    """The model that the rollout uses: the policy itself in float32, a narrower copy otherwise.

    Decoding under autocast would convert every weight for every token.
    """

    def __init__(self, policy: PreTrainedModel, compute: Compute) -> None:
        self._policy = policy
        self.model = policy
        if compute.mixed:
            self.model = copy.deepcopy(policy)
            narrow(self.model, compute)

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the policy's current weights."""
        if self.model is not self._policy:
            for target, source in zip(self.model.parameters(), self._policy.parameters(), strict=True):
                target.copy_(source)


def narrow(model: PreTrainedModel, compute: Compute) -> None:
    """Turn a model into one that only samples: its weights take the number format of the products."""
    model.eval()
    model.requires_grad_(False)
    # Buffers stay as they are: rounded rotary frequencies give late positions wrong angles.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(compute.dtype)
