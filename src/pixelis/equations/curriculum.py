"""The SFT curriculum: hardness tertiles, medium and hard at 2:1, and when to advance (subsec:sft)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pixelis.equations.ema import ema

EASY, MEDIUM, HARD = 0, 1, 2


def hardness_tertiles(predicted_error: ArrayLike) -> NDArray[np.int64]:
    """EASY, MEDIUM or HARD for each example by the tertiles of SFT-predicted error (subsec:sft).

    Equal errors share a bin; if all are equal, all are MEDIUM. Raises ValueError on NaN or infinity.
    """
    error = np.asarray(predicted_error, dtype=float)
    if not np.isfinite(error).all():
        num_invalid = int((~np.isfinite(error)).sum())
        raise ValueError(f"{num_invalid} of {error.size} predicted errors are NaN or infinite")
    if error.size == 0:
        return np.zeros(0, dtype=np.int64)
    low, high = np.quantile(error, [1 / 3, 2 / 3])
    return (error >= low).astype(np.int64) + (error > high).astype(np.int64)


def sample_medium_hard(
    bins: ArrayLike, count: int, *, rng: np.random.Generator, medium_to_hard: float = 2.0
) -> NDArray[np.int64]:
    """Positions of `count` examples, with replacement, MEDIUM to HARD at 2:1 (subsec:sft), uniform inside each bin.

    If one of the two bins is empty, all come from the other; raises ValueError if both are.
    """
    bins = np.asarray(bins)
    pools = [np.flatnonzero(bins == MEDIUM), np.flatnonzero(bins == HARD)]
    shares = np.array([medium_to_hard if pools[0].size else 0.0, 1.0 if pools[1].size else 0.0])
    if not shares.any():
        raise ValueError(f"none of {bins.size} examples is medium or hard: expected at least one")
    take_hard = rng.random(count) < shares[1] / shares.sum()
    result = np.empty(count, dtype=np.int64)
    for pool, pool_mask in zip(pools, (~take_hard, take_hard), strict=True):
        if pool_mask.any():
            result[pool_mask] = rng.choice(pool, size=int(pool_mask.sum()))
    return result


def smoothed_losses(dev_losses: Sequence[float], *, rho: float = 0.9) -> list[float | None]:
    """EMA of the dev losses L_k (subsec:sft). NaN repeats the previous average (None at the start).

    The paper gives no constant; 0.9 is the one with which it smooths KL.
    """
    smoothed: list[float | None] = []
    average: float | None = None
    for loss in dev_losses:
        average = ema(average, loss, rho=rho)
        smoothed.append(average)
    return smoothed


def should_advance(dev_losses: Sequence[float], *, rho: float = 0.9, tolerance: float = 1.05) -> bool:
    """Whether the curriculum advances: the smoothed dev loss has L_{k+1} ≤ 1.05·L_k (subsec:sft).

    It does not with fewer than two evaluations, or if the last one is NaN or infinite.
    """
    smoothed = smoothed_losses(dev_losses, rho=rho)
    if len(smoothed) < 2 or not np.isfinite(dev_losses[-1]):
        return False
    previous, current = smoothed[-2:]
    return previous is not None and current is not None and current <= tolerance * previous
