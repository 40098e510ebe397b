"""The optimizers of phase 1: AdamW in one fused pass, and Muon for the matrices of a policy with random weights.

Muon (Jordan et al., 2024) replaces the momentum of a matrix by the nearest matrix with equal singular values, found by
five Newton–Schulz steps. With it a small model with random weights needs about half the tokens. Everything else
(embeddings, norms, biases) uses AdamW. Matrices of one shape take the steps together, in float32: torch's own Muon
takes one matrix at a time in bfloat16, which is slow on a CPU. Several processes divide the matrices among themselves:
with nano's small batches the steps are an eighth of the time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pixelis.training.common.distributed import DistributedContext

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic, and its number of steps, as published."""
NEWTON_SCHULZ_STEPS = 5
MOMENTUM = 0.95


class MuonAdamW(torch.optim.AdamW):
    """AdamW, except for the parameter groups with `muon` set."""

    def __init__(self, groups: Any, *, dist: DistributedContext = DistributedContext(), **settings: Any) -> None:
        super().__init__(groups, **settings)
        self.dist = dist

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        all_groups = self.param_groups
        self.param_groups = [group for group in all_groups if not group.get("muon")]
        try:
            loss = super().step(closure)
        finally:
            self.param_groups = all_groups
        for group in all_groups:
            if group.get("muon"):
                self._orthogonal_step(group)
        return loss

    def _orthogonal_step(self, group: dict[str, Any]) -> None:
        shapes: dict[torch.Size, list[torch.nn.Parameter]] = {}
        for value in group["params"]:
            if value.grad is not None:
                shapes.setdefault(value.shape, []).append(value)
        for values in shapes.values():
            for value in values:
                momentum = self.state[value].setdefault("exp_avg", torch.zeros_like(value))
                momentum.lerp_(value.grad, 1.0 - MOMENTUM)
        matrices = [value for values in shapes.values() for value in values]
        for value, update in zip(matrices, self._updates(list(shapes.values())), strict=True):
            rate = group["lr"] * max(1.0, value.shape[0] / value.shape[1]) ** 0.5
            value.mul_(1.0 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)

    def _updates(self, shapes: list[list[torch.nn.Parameter]]) -> list[Tensor]:
        """The update of each matrix. Each process computes its share of every shape; a sum distributes them all."""
        local_updates = []
        for values in shapes:
            nesterov = torch.stack(
                [v.grad.lerp(self.state[v]["exp_avg"], MOMENTUM) for v in values if v.grad is not None]
            )
            local_update = torch.zeros_like(nesterov)
            shard = list(self.dist.shard(range(len(values))))
            local_update[shard] = orthogonalise(nesterov[shard])
            local_updates.append(local_update)
        summed = self.dist.all_reduce_sum(torch.cat([matrices.flatten() for matrices in local_updates]))
        parts = summed.split([matrices.numel() for matrices in local_updates])
        return [update for part, shard in zip(parts, local_updates, strict=True) for update in part.view_as(shard)]


def orthogonalise(matrices: Tensor) -> Tensor:
    """(n, r, c) each matrix with its singular values moved to about 1."""
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
