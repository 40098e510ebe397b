"""The temperature of an exported policy: what label smoothing spread is gathered in again.

Smoothing with ε leaves about ε of every token's probability on tokens that nobody would write. The likeliest token does
not mind; a rollout of a hundred tokens, sampled, does: nano's was right one time in ten. Not in the paper: T is fitted
on dev by plain cross-entropy, and logits over T are what the exported policy says at temperature 1. T goes into the
final norm, so that any program that opens the checkpoint samples from the same distribution. dev-cal is not touched:
the calibrators of phase 3 are fitted on it, and it must be new to them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pixelis.policy.model import Policy
from pixelis.train.crew import Crew, reshard
from pixelis.train.evaluating import readings
from pixelis.train.heads import ToolHeads
from pixelis.train.lessons import Student
from pixelis.train.prepared import Prepared
from pixelis.train.starting import Lesson

GRID = tuple(2.0 ** (k / 8) for k in range(-16, 9))
"""Where T is looked for: 1/4 to 2, in steps of 9 %. Its sums add up over batches and processes: no logits are kept."""
DEV_EXAMPLES = 1000
"""Some hundred thousand tokens, for one number."""


def temper(taught: Any, dev: Prepared, pool: list[Lesson], batch_tokens: int, us: Crew) -> float:
    """Fit T on dev and put it into the weights; 1 where there is no dev."""
    if not pool:
        return 1.0
    student: Student = getattr(taught, "module", taught)
    policy = student.policy
    sums = torch.zeros(len(GRID), dtype=torch.float64, device=policy.device)
    for _, given, said in readings(taught, dev, pool[:DEV_EXAMPLES], batch_tokens, us):
        targets = policy.open_places[given.targets]
        sums += torch.stack(
            [nn.functional.cross_entropy(said.logits / t, targets, reduction="sum").double() for t in GRID]
        )
    fitted = GRID[int(us.add(sums).argmin())]
    reshard(student)
    divide_logits(policy, fitted)
    undo_division(student.heads, fitted)
    return fitted


@torch.no_grad()
def divide_logits(policy: Policy, temperature: float) -> None:
    """Divide all logits by T."""
    policy.language.norm.weight.div_(temperature)


@torch.no_grad()
def undo_division(heads: ToolHeads, temperature: float) -> None:
    """Tell the argument heads, which read the same states, the same as before the logits were divided by T."""
    for head in (heads.box, heads.text, heads.mask, heads.temp):
        next(head.parameters())[:, : heads.width].mul_(temperature)  # the weight of its first layer
