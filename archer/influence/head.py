"""Influence of the output head in closed form: no backward is needed.

The gradient of log π(a) with respect to the head's output z / T is known once π is, and so is the token's
gradient with respect to the head's weight, e (x) x:

    e_t = d log π(y_t) / dz = (1[v = y_t] - π_v) / T,     x_t the hidden state that the head is given

times what a model that scales or caps its logits does to the head's output (`logits.LogitMap`).

Where a tracer on the head captures e and x from a backward of sum_t log π(y_t), this gives the same factors
out of the forward that computes log-probs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from archer.influence.factors import send
from archer.influence.groups import Group, contrast_weights
from archer.influence.modules import AnyProjection, NoProjection, Projection
from archer.influence.solve import InverseHessian, dual_inverses


@dataclass(frozen=True, eq=False)
class HeadSketch:
    """The two projections of the head's gradients; vectors up to `dim` long are taken as they are."""

    project_in: AnyProjection
    project_out: AnyProjection

    @classmethod
    def of(cls, hidden: int, vocabulary: int, dim: int) -> HeadSketch:
        """Projections to `dim` numbers each; 0: none."""

        def projection(side: str, size: int) -> AnyProjection:
            if dim == 0 or size <= dim:
                return NoProjection(size)
            return Projection(f"{side}/token_credit/head/{size}/{dim}", size, dim)

        return cls(projection("in", hidden), projection("out", vocabulary))

    def input_factors(self, hidden: Tensor) -> Tensor:
        """v = P_in x of hidden states [T, h]: [T, k_in]."""
        dtype = torch.float32 if hidden.dtype == torch.float16 else hidden.dtype
        projection = self.project_in
        return projection(hidden.detach().to(dtype))[:, : projection.k] * projection.scale

    def output_factors(
        self,
        probs: Tensor,  # [T, V] pi
        tokens: Tensor,  # [T] sampled
        temperature: float,
        slope: Tensor | float = 1.0,  # [T, V] dz / dy, y the head's output and z the logits
    ) -> Tensor:  # [T, k_out]
        """u = P_out s (1[y] - pi) / T. The one-hot vector picks a column of P_out and is never made."""
        wide = torch.promote_types(probs.dtype, torch.float32)
        if isinstance(self.project_out, NoProjection):
            pull = -probs.to(wide)
            pull[torch.arange(len(tokens), device=tokens.device), tokens] += 1
            return pull * slope / temperature
        signs = self.project_out.signs(probs.device, probs.dtype)  # [k_out, V]
        chosen = signs.index_select(1, tokens).T.to(wide)
        scale = self.project_out.scale / temperature
        if isinstance(slope, Tensor):
            probs = probs * slope.to(probs.dtype)
            chosen = chosen * slope.gather(1, tokens[:, None]).to(wide)
        else:
            scale *= slope
        return (chosen - (probs @ signs.T).to(wide))[:, : self.project_out.k] * scale


def head_scores(
    u: Tensor,  # [n, L, k_out]
    v: Tensor,  # [n, L, k_in]
    mask: Tensor,  # [n, L] bool
    groups: Sequence[Group],  # with both verdicts, rows within the n
    hessian_mode: Literal["inverse", "identity"],
    anchors: Literal["contrast", "accepted"],
) -> Tensor:  # [n, L], NaN outside these groups and outside the mask
    """Influence of each token on the other responses of its group, through the head alone.

        G_r = mean over t in r of u_t (x) v_t
        infl(r, t) = <G_r, g_t>,  or <G_r, H^-1 g_t> with H = sum_r G_r G_r^T + 0.1 trace(H) / R
        score_t = mean over accepted r of infl(r, t), and with anchors=contrast less that over rejected r

    The token's own response is left out. As a tracer on the head with output_function=log_prob,
    exclude_self_response, contrastive_agg=mean, reg_rule=kernel_trace. Nothing is asked of the device.
    """
    wide = torch.promote_types(u.dtype, torch.float32)
    scores = torch.full(mask.shape, torch.nan, dtype=wide, device=u.device)
    for size in sorted({len(group.rows) for group in groups}):
        alike = [group for group in groups if len(group.rows) == size]
        rows = send(torch.tensor([group.rows for group in alike]), u.device)  # [B, R]
        accepted = torch.tensor([group.accepted for group in alike])
        contrast = contrast_weights(accepted, "mean", exclude_self=True)  # [B, R, R]
        if anchors == "accepted":
            contrast = contrast.clamp(min=0)
        valid = mask[rows]  # [B, R, L]
        U = torch.where(valid[..., None], u[rows].to(wide), 0)
        V = v[rows].to(wide)
        G = (U.mT @ V) / valid.sum(-1).clamp(min=1)[..., None, None]  # [B, R, k_out, k_in]
        flat = G.flatten(-2)[None]  # [1, B, R, D]
        if hessian_mode == "inverse":
            (inverse,) = dual_inverses([flat], 0.0, "kernel_trace")
            Q = inverse.directions(send(contrast, u.device), flat)
            Q = torch.where(inverse.failed, torch.nan, Q)
        else:
            Q = InverseHessian().directions(send(contrast, u.device), flat)
        forms = ((U @ Q.view_as(G).to(wide)) * V).sum(-1)  # [B, R, L]
        scores[rows] = torch.where(valid, forms, torch.nan)
    return scores
