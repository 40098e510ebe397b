"""Z-scores: over a batch or within groups, and with fixed statistics.

Corpus scores, intrinsic rewards and the rewards of a group use the statistics of the batch itself (`zscore`); adjacent
cosines and the memory's summaries use fixed ones (`zscore_with`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

ROUNDING = 1e-12
"""A spread below this share of the values is rounding noise of equal values."""


class MeanStd(NamedTuple):
    """Mean, population standard deviation and number of values."""

    mean: float
    std: float
    samples: int


def mean_and_std(values: ArrayLike) -> MeanStd:
    """Statistics for `zscore_with`, of the finite values (supp:et_dynamics, subsec:eval_setup).

    Equal values have spread 0, exactly: one of 1e-17 would turn their rounding into z-scores. No values: 0, 0, 0.
    """
    x = np.asarray(values, dtype=float).ravel()
    x = x[np.isfinite(x)]
    if x.size == 0:
        return MeanStd(0.0, 0.0, 0)
    std = float(x.std())
    return MeanStd(float(x.mean()), std if std > ROUNDING * np.abs(x).max() else 0.0, int(x.size))


def zscore(values: ArrayLike, *, axis: int | None = None, min_spread: float = 0.0) -> NDArray[np.float64]:
    """(x − mean) / standard deviation over the batch or along an axis, population form (sec:data, subsec:ccrft).

    A NaN or infinite value is excluded from the statistics and gets 0, the batch's mean. Equal values and a single
    value give zeros; so does a spread of at most `least_spread`.
    """
    x = np.asarray(values, dtype=float)
    is_finite = np.isfinite(x)
    if not is_finite.any():
        return np.zeros_like(x)
    filled = np.where(is_finite, x, 0.0)
    count = np.maximum(is_finite.sum(axis=axis, keepdims=True), 1)
    scale = np.abs(filled).max(axis=axis, keepdims=True)  # squares of 1e-162 underflow, those of 1e200 overflow
    unit = np.divide(filled, scale, out=np.zeros_like(filled), where=scale > 0.0)
    centred = np.where(is_finite, unit - unit.sum(axis=axis, keepdims=True) / count, 0.0)
    spread = np.sqrt((centred**2).sum(axis=axis, keepdims=True) / count)
    has_spread = np.broadcast_to((spread > ROUNDING) & (spread * scale > min_spread), x.shape)
    return np.divide(centred, spread, out=np.zeros_like(x), where=has_spread)


def zscore_with(values: ArrayLike, mean: ArrayLike, std: ArrayLike) -> NDArray[np.float64]:
    """(x − mean) / std with given statistics, one pair or one for each value (supp:et_dynamics, subsec:eval_setup).

    A spread of 0 gives 0; NaN stays NaN.
    """
    x, mu, sigma = np.broadcast_arrays(*(np.asarray(part, dtype=float) for part in (values, mean, std)))
    z = np.divide(x - mu, sigma, out=np.zeros(x.shape), where=sigma > 0.0)
    return np.where(np.isnan(x), np.nan, z)
