"""One token for each row: from the policy's own distribution, without what a grammar forbids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pixelis.rollout.grammar import Constrains


def sampled(logprobs: Tensor, uniform: Tensor, temperature: float) -> Tensor:
    """(B,) one token a row by the inverse of its distribution at `uniform` (B,); the likeliest at temperature 0."""
    if temperature == 0.0:
        return logprobs.argmax(-1)
    scaled = logprobs if temperature == 1.0 else logprobs / temperature
    sums = scaled.softmax(-1).cumsum(-1, dtype=torch.float64)  # (B, V)
    wanted = uniform * sums[:, -1] * (1.0 - 1e-15)  # under the last sum, also after rounding
    return torch.searchsorted(sums, wanted[:, None], right=True)[:, 0]


def constrained(logprobs: Tensor, grammar: Constrains, states: Sequence[Any], left: Sequence[int]) -> Tensor:
    """(B, V) what is sampled from, for rows in these states with so many tokens left; rows outside a call are free."""
    held: list[int] = []
    which: list[int] = []
    masks: dict[int, tuple[int, Tensor]] = {}  # rows in the same state share their mask
    for k, (state, room) in enumerate(zip(states, left, strict=True)):
        mask = grammar.allowed(state, room)
        if mask is not None:
            held.append(k)
            which.append(masks.setdefault(id(mask), (len(masks), mask))[0])
    if not held:
        return logprobs
    allowed = torch.stack([mask for _, mask in masks.values()]).to(logprobs.device)
    # added, not filled in: eight times quicker; rows of the embedding that no token has stay forbidden
    bars = torch.full((len(masks), logprobs.shape[1]), -torch.inf, dtype=logprobs.dtype, device=logprobs.device)
    bars[:, : allowed.shape[1]].masked_fill_(allowed, 0.0)
    if len(held) == len(states):
        return logprobs + (bars[which] if len(masks) > 1 else bars)
    kept = logprobs.clone()
    kept[held] += bars[which]
    return kept
