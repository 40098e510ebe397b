"""Muon beside AdamW: each matrix moves as torch's own Muon moves it, everything else as AdamW does."""

from __future__ import annotations

import torch
from torch import nn

from pixelis.training.common.optimizers import MuonAdamW, orthogonalise


def taught(optimizer_of, steps: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 16))
    inputs = torch.randn(64, 16)
    optimizers = optimizer_of(net)
    for _ in range(steps):
        loss = (net(inputs) - inputs.roll(1, 1)).square().mean()
        net.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    return [value.detach().clone() for value in net.parameters()]


def ours(net: nn.Module) -> list[torch.optim.Optimizer]:
    matrices = [p for p in net.parameters() if p.ndim == 2]
    vectors = [p for p in net.parameters() if p.ndim == 1]
    groups = [
        {"params": matrices, "lr": 0.02, "weight_decay": 0.1, "muon": True},
        {"params": vectors, "lr": 1e-2, "weight_decay": 0.0},
    ]
    return [MuonAdamW(groups, betas=(0.9, 0.95), fused=True)]


def theirs(net: nn.Module) -> list[torch.optim.Optimizer]:
    matrices = [p for p in net.parameters() if p.ndim == 2]
    vectors = [p for p in net.parameters() if p.ndim == 1]
    return [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1, adjust_lr_fn="original"),
        torch.optim.AdamW(vectors, lr=1e-2, weight_decay=0.0, betas=(0.9, 0.95), fused=True),
    ]


def test_singular_values_are_drawn_to_one_and_directions_stay():
    torch.manual_seed(1)
    given = torch.randn(2, 24, 10)
    turned = orthogonalise(given)
    values = torch.linalg.svdvals(turned)
    assert values.min() > 0.5  # the published coefficients trade exactness for speed: 0.68 to 1.14 at the fixed range
    assert values.max() < 1.2
    left, _, right = torch.linalg.svd(given, full_matrices=False)
    in_their_frame = left.mT @ turned @ right.mT
    apart = in_their_frame - torch.diag_embed(in_their_frame.diagonal(dim1=-2, dim2=-1))
    assert apart.abs().max() < 1e-3


def test_three_steps_are_those_of_torchs_own_muon_and_adamw():
    for mine, other in zip(taught(ours), taught(theirs), strict=True):
        if mine.ndim == 1:
            torch.testing.assert_close(mine, other, atol=2e-3, rtol=0)  # its gradient has gone through the matrices
        else:  # theirs goes through bfloat16, which has three digits
            torch.testing.assert_close(mine, other, atol=4e-3, rtol=0)


def test_without_a_marked_group_it_is_adamw_to_the_bit():
    def plain(net: nn.Module) -> list[torch.optim.Optimizer]:
        return [torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True)]

    def unmarked(net: nn.Module) -> list[torch.optim.Optimizer]:
        return [MuonAdamW(net.parameters(), lr=1e-2, fused=True)]

    for mine, other in zip(taught(unmarked), taught(plain), strict=True):
        assert torch.equal(mine, other)
