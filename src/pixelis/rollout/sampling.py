"""One token for each row: from the policy's own distribution, without what a grammar forbids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pixelis.rollout.grammar import Constrains

BLOCK = 64
"""Tokens whose chances are added up before they are looked at one by one."""
KEPT_BYTES = 2**26
"""What masks as numbers may come to; beyond it they are made anew."""
LEAST = 1e-20
"""Of all chances: where a grammar leaves less, single precision may have lost some of it."""


class Drawn(NamedTuple):
    """What was sampled."""

    tokens: Tensor
    """(B,)"""
    logprobs: Tensor
    """(B,) of these tokens under the policy itself, at temperature 1 and without a grammar."""


def drawn(logits: Tensor, uniform: NDArray[np.float64], temperature: float, allowed: Tensor | None = None) -> Drawn:
    """One token a row of (B, V), by the inverse of its distribution at `uniform` (B,); the likeliest at temperature 0,
    and in rows whose number is NaN.

    `allowed`, (B, V) or (1, V) of ones and zeros, holds for the choice alone.
    """
    chances = logits.softmax(-1)  # (B, V)
    total = logits.amax(-1) - chances.amax(-1).log()  # (B,) logarithm of the sum of which the likeliest is a share
    surely = np.isnan(uniform) | (temperature == 0.0)  # (B,)
    tokens = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
    if not surely.all():
        if temperature != 1.0:
            chances = (logits / temperature).softmax(-1)
        if allowed is not None:
            left = chances * allowed
            if float(left.sum(-1).min()) < LEAST:  # what is allowed is too unlikely to be told apart
                left = (logits / temperature + allowed.log()).softmax(-1)
            chances = left
        tokens = torch.from_numpy(inverted(chances, np.where(surely, 0.0, uniform))).to(logits.device)
    if surely.any():
        likeliest = (logits if allowed is None else logits + allowed.log()).argmax(-1)
        tokens = torch.where(torch.from_numpy(surely).to(logits.device), likeliest, tokens)
    return Drawn(tokens, logits.gather(-1, tokens[:, None])[:, 0] - total)


def inverted(chances: Tensor, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """(B,) where the running sum of chances (B, V) passes `uniform` (B,) of the whole; never at a chance of zero.

    The sum runs over blocks first, and then over the tokens of one block: a running sum is slow, a sum is not.
    """
    size = chances.shape[1]
    whole = size // BLOCK * BLOCK
    parts = [chances[:, :whole].unflatten(1, (-1, BLOCK)).sum(-1)] if whole else []
    if whole < size:
        parts.append(chances[:, whole:].sum(-1, keepdim=True))
    sums = torch.cat(parts, dim=1).cpu().numpy().astype(np.float64)  # (B, blocks)
    block, beyond = passed(sums, uniform * sums.sum(-1))
    at = block[:, None] * BLOCK + np.arange(BLOCK)  # (B, BLOCK)
    inside = chances.gather(1, torch.from_numpy(np.minimum(at, size - 1)).to(chances.device)).cpu().numpy()
    if whole < size:
        inside[at >= size] = 0.0
    return block * BLOCK + passed(inside, beyond)[0]


def passed(parts: NDArray[np.floating], wanted: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(B,) the part of (B, n) at which their running sum passes `wanted` (B,), and how far into it."""
    running = parts.cumsum(-1, dtype=np.float64)
    # under the last sum, also after rounding, and also where the parts of a block come to less than was thought
    wanted = np.minimum(wanted, running[:, -1] * (1.0 - 1e-15))
    found = (running > wanted[:, None]).argmax(-1)
    rows = np.arange(len(found))
    return found, np.maximum(wanted - running[rows, found] + parts[rows, found], 0.0)


class Allowed:
    """What a grammar allows, as ones and zeros; each of its masks is turned into numbers once."""

    def __init__(self, grammar: Constrains, vocabulary: int, device: torch.device) -> None:
        self.grammar, self.vocabulary, self.device = grammar, vocabulary, device
        self._all = torch.ones(vocabulary, device=device)
        self._known: dict[int, tuple[Tensor, Tensor]] = {}
        """By the identity of a mask, which is held so that nothing else takes it."""

    def __call__(self, states: Sequence[Any], left: Sequence[int]) -> Tensor | None:
        """(B, V) for rows in these states with so many tokens left, (1, V) where all have the same mask, or None where
        every row is free: rows outside a call are."""
        wanted: list[Tensor] = []
        which: dict[int, int] = {}
        order: list[int] = []
        for state, room in zip(states, left, strict=True):
            numbers = self._numbers(self.grammar.allowed(state, room))
            place = which.setdefault(id(numbers), len(wanted))
            if place == len(wanted):
                wanted.append(numbers)
            order.append(place)
        if len(wanted) == 1:
            return None if wanted[0] is self._all else wanted[0][None]
        return torch.stack(wanted)[torch.tensor(order, device=self.device)]

    def _numbers(self, mask: Tensor | None) -> Tensor:
        """(V,) 1 for what may come, 0 for all else, rows of the embedding that no token has among them."""
        if mask is None:
            return self._all
        known = self._known.get(id(mask))
        if known is None:
            if len(self._known) * self.vocabulary * 4 > KEPT_BYTES:
                self._known.clear()
            numbers = torch.zeros(self.vocabulary, device=self.device)
            numbers[: len(mask)] = mask.to(self.device)
            known = self._known[id(mask)] = mask, numbers
        return known[1]
