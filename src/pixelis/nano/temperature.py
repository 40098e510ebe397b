"""The temperature of an exported policy, which undoes the spread that label smoothing leaves.

Smoothing with ε leaves about ε of every token's probability on tokens that nobody would write. The most likely token is
not affected, but a sampled rollout of a hundred tokens is: nano's was right one time in ten. Not in the paper: T is
fitted on dev by plain cross-entropy, and the logits over T are those of the exported policy at temperature 1. T goes
into the final norm, so that any program that opens the checkpoint samples from the same distribution. dev-cal is not
used: the calibrators of phase 3 are fitted on it, and must not have been tuned on it before.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pixelis.policy.model import Policy

GRID = tuple(2.0 ** (k / 8) for k in range(-16, 9))
"""Temperatures to try: 1/4 to 2, in steps of 9 %. Losses add up over batches and processes: no logits are kept."""


def grid_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """(len(GRID),) summed cross-entropy of (n, V) logits at each temperature."""
    losses = [nn.functional.cross_entropy(logits / t, targets, reduction="sum").double() for t in GRID]
    return torch.stack(losses)


@torch.no_grad()
def divide_logits_by(policy: Policy, temperature: float) -> None:
    """Divide all logits by T, in the policy's final norm."""
    policy.language.norm.weight.div_(temperature)
