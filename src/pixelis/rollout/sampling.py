"""Sample one token for each row from the policy's distribution, without tokens that a grammar forbids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from pixelis.rollout.constrained import TokenConstraint


BLOCK_SIZE = 64
"""Tokens whose probabilities are summed before any is looked at."""
MASK_CACHE_BYTES = 2**26
"""Upper bound on cached masks."""
MIN_ALLOWED_MASS = 1e-20
"""If a grammar leaves less probability than this, single precision may have lost some of it."""


class SampledTokens(NamedTuple):
    tokens: Tensor
    """(B,)"""
    logprobs: Tensor
    """(B,) under the policy itself, at temperature 1 and without a grammar."""


def sample_tokens(
    logits: Tensor, uniform: NDArray[np.float64], temperature: float, allowed: Tensor | None = None
) -> SampledTokens:
    """One token per row of (B, V), by the inverse CDF at `uniform` (B,); the likeliest at temperature 0, and in rows
    whose number is NaN.

    `allowed`, (B, V) or (1, V) of ones and zeros, applies to the choice alone.
    """
    probs = logits.softmax(-1)  # (B, V)
    log_normaliser = logits.amax(-1) - probs.amax(-1).log()  # (B,)
    greedy = np.isnan(uniform) | (temperature == 0.0)  # (B,)
    tokens = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
    if not greedy.all():
        if temperature != 1.0:
            probs = (logits / temperature).softmax(-1)
        if allowed is not None:
            allowed_probs = probs * allowed
            if float(allowed_probs.sum(-1).min()) < MIN_ALLOWED_MASS:
                allowed_probs = (logits / temperature + allowed.log()).softmax(-1)
            probs = allowed_probs
        tokens = torch.from_numpy(inverse_cdf(probs, np.where(greedy, 0.0, uniform))).to(logits.device)
    if greedy.any():
        greedy_tokens = (logits if allowed is None else logits + allowed.log()).argmax(-1)
        tokens = torch.where(torch.from_numpy(greedy).to(logits.device), greedy_tokens, tokens)
    return SampledTokens(tokens, logits.gather(-1, tokens[:, None])[:, 0] - log_normaliser)


def inverse_cdf(probs: Tensor, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """(B,) where the cumulative sum of (B, V) exceeds `uniform` (B,) of the total; never at a probability of zero.

    It runs over blocks first, then over the tokens of one block: a cumulative sum is slow, a sum is not.
    """
    size = probs.shape[1]
    full = size // BLOCK_SIZE * BLOCK_SIZE
    parts = [probs[:, :full].unflatten(1, (-1, BLOCK_SIZE)).sum(-1)] if full else []
    if full < size:
        parts.append(probs[:, full:].sum(-1, keepdim=True))
    sums = torch.cat(parts, dim=1).cpu().numpy().astype(np.float64)  # (B, blocks)
    block, offset = locate_in_cumsum(sums, uniform * sums.sum(-1))
    at = block[:, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)  # (B, BLOCK)
    inside = probs.gather(1, torch.from_numpy(np.minimum(at, size - 1)).to(probs.device)).cpu().numpy()
    if full < size:
        inside[at >= size] = 0.0
    return block * BLOCK_SIZE + locate_in_cumsum(inside, offset)[0]


def locate_in_cumsum(
    parts: NDArray[np.floating], targets: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(B,) the index at which the cumulative sum of (B, n) exceeds `targets` (B,), and the offset into that part."""
    cumulative = parts.cumsum(-1, dtype=np.float64)
    # below the last sum, even after rounding and if the parts of a block sum to less than the block's sum
    targets = np.minimum(targets, cumulative[:, -1] * (1.0 - 1e-15))
    index = (cumulative > targets[:, None]).argmax(-1)
    rows = np.arange(len(index))
    return index, np.maximum(targets - cumulative[rows, index] + parts[rows, index], 0.0)


class AllowedMask:
    """What a grammar allows, as ones and zeros; each mask is converted once."""

    def __init__(self, grammar: TokenConstraint, vocabulary: int, device: torch.device) -> None:
        self.grammar, self.vocabulary, self.device = grammar, vocabulary, device
        self._all_allowed = torch.ones(vocabulary, device=device)
        self._cache: dict[int, tuple[Tensor, Tensor]] = {}
        """By the id of a mask, which is kept alive so that its id stays its own."""

    def __call__(self, states: Sequence[Any], remaining: Sequence[int]) -> Tensor | None:
        """(B, V) for rows in these states with these numbers of tokens left; (1, V) if all have the same mask, None if
        all rows are unconstrained, as outside a call."""
        masks, slots, order = list[Tensor](), dict[int, int](), list[int]()
        for state, budget in zip(states, remaining, strict=True):
            weights = self._mask_weights(self.grammar.allowed_tokens(state, budget))
            slot = slots.setdefault(id(weights), len(masks))
            if slot == len(masks):
                masks.append(weights)
            order.append(slot)
        if len(masks) == 1:
            return None if masks[0] is self._all_allowed else masks[0][None]
        return torch.stack(masks)[torch.tensor(order, device=self.device)]

    def _mask_weights(self, mask: Tensor | None) -> Tensor:
        """(V,) 1 for allowed tokens, 0 for all others, including rows of the embedding without a token."""
        if mask is None:
            return self._all_allowed
        cached = self._cache.get(id(mask))
        if cached is None:
            if len(self._cache) * self.vocabulary * 4 > MASK_CACHE_BYTES:
                self._cache.clear()
            weights = torch.zeros(self.vocabulary, device=self.device)
            weights[: len(mask)] = mask.to(self.device)
            cached = self._cache[id(mask)] = mask, weights
        return cached[1]
