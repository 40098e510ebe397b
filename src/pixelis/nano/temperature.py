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
from pixelis.rewards.heads import ToolHeads
from pixelis.training.common.distributed import DistributedContext, reshard
from pixelis.training.dataset.prepared_examples import PreparedExamples
from pixelis.training.dataset.training_index import ExampleRef
from pixelis.training.sft.sft_model import SftModel
from pixelis.training.sft.teacher_forced_eval import teacher_forced_outputs

GRID = tuple(2.0 ** (k / 8) for k in range(-16, 9))
"""Where T is looked for: 1/4 to 2, in steps of 9 %. Its sums add up over batches and processes: no logits are kept."""
DEV_EXAMPLES = 1000
"""Some hundred thousand tokens, for one number."""


def fit_policy_temperature(
    model: Any, dev: PreparedExamples, pool: list[ExampleRef], batch_tokens: int, dist: DistributedContext
) -> float:
    """Fit T on dev and put it into the weights; 1 where there is no dev."""
    if not pool:
        return 1.0
    sft_model: SftModel = getattr(model, "module", model)
    policy = sft_model.policy
    sums = torch.zeros(len(GRID), dtype=torch.float64, device=policy.device)
    for _, batch, output in teacher_forced_outputs(model, dev, pool[:DEV_EXAMPLES], batch_tokens, dist):
        targets = policy.open_places[batch.targets]
        sums += torch.stack(
            [nn.functional.cross_entropy(output.logits / t, targets, reduction="sum").double() for t in GRID]
        )
    temperature = GRID[int(dist.all_reduce_sum(sums).argmin())]
    reshard(sft_model)
    divide_logits_by(policy, temperature)
    compensate_heads(sft_model.heads, temperature)
    return temperature


@torch.no_grad()
def divide_logits_by(policy: Policy, temperature: float) -> None:
    """Divide all logits by T."""
    policy.language.norm.weight.div_(temperature)


@torch.no_grad()
def compensate_heads(heads: ToolHeads, temperature: float) -> None:
    """Tell the argument heads, which read the same states, the same as before the logits were divided by T."""
    for head in (heads.box, heads.text, heads.mask, heads.temp):
        next(head.parameters())[:, : heads.width].mul_(temperature)  # the weight of its first layer
