"""Bootstrap intervals: BCa (bias-corrected and accelerated), plain, stratified and clustered.

The same numbers as `scipy.stats.bootstrap(method="BCa")` from the same `rng`, but also defined on constant data, where
scipy gives NaN. The paper's intervals are 95 % with 10,000 resamples (tab:supp_single_tool_ablation).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from pixelis.metrics.statistics import clopper_pearson

Statistic = Callable[[NDArray[np.float64]], float]
"""Maps rows (n,) or (n, k) to one number; `np.mean` is computed for many resamples at once."""

RESAMPLES = 10_000
CHUNK_CELLS = 4_000_000
"""Resamples are drawn in chunks of about this many indices, to bound memory."""


class Interval(NamedTuple):
    """A statistic with its confidence interval."""

    point: float
    low: float
    high: float
    method: Literal["BCa", "exact", "constant"]
    """`exact`: Clopper-Pearson, if all answers are right, or all wrong. `constant`: the sample does not vary."""


class _Stratum(NamedTuple):
    """Units that are drawn with replacement: single rows, or whole clusters of rows."""

    units: list[NDArray[np.intp]]

    @property
    def single_rows(self) -> NDArray[np.intp] | None:
        """(n,) the row of each unit, if each unit is one row."""
        return np.concatenate(self.units) if all(len(u) == 1 for u in self.units) else None


def bca_interval(
    rows: ArrayLike,
    statistic: Statistic = np.mean,
    *,
    rng: np.random.Generator,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Interval:
    """BCa interval of a statistic of independent rows, (n,) or (n, k) with rows kept whole.

    If all rows are equal the interval is exact, never NaN: Clopper-Pearson's for the mean of zeros or of ones, else
    the point itself. Raises ValueError without rows.
    """
    sample = _rows(rows)
    strata = [_Stratum([np.array([i]) for i in range(len(sample))])]
    return _interval(sample, strata, statistic, rng=rng, level=level, resamples=resamples)


def stratified_interval(
    rows: ArrayLike,
    strata: ArrayLike,
    statistic: Statistic = np.mean,
    *,
    rng: np.random.Generator,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Interval:
    """BCa interval where each stratum (task, seed) is resampled within itself and keeps its size.

    Constant rows as in `bca_interval`; if every stratum is constant, nothing varies and the interval is the point.
    Raises ValueError if `strata` and rows differ in number.
    """
    sample = _rows(rows)
    units = [_Stratum([np.array([i]) for i in rows_of_group]) for rows_of_group in _groups(sample, strata, "strata")]
    return _interval(sample, units, statistic, rng=rng, level=level, resamples=resamples)


def clustered_interval(
    rows: ArrayLike,
    clusters: ArrayLike,
    statistic: Statistic = np.mean,
    *,
    rng: np.random.Generator,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Interval:
    """BCa interval where whole clusters (clips, shards) are resampled, because rows of a cluster resemble each other.

    Constant rows as in `bca_interval`; the interval of a single cluster is the point, because nothing varies. Raises
    ValueError if cluster names and rows differ in number.
    """
    sample = _rows(rows)
    strata = [_Stratum(_groups(sample, clusters, "clusters"))]
    return _interval(sample, strata, statistic, rng=rng, level=level, resamples=resamples)


def _interval(
    sample: NDArray[np.float64],
    strata: list[_Stratum],
    statistic: Statistic,
    *,
    rng: np.random.Generator,
    level: float,
    resamples: int,
) -> Interval:
    if not 0 < level < 1 or resamples < 1:
        raise ValueError(f"level {level} and {resamples} resamples: expected a level in (0, 1), at least one resample")
    point = float(statistic(sample))
    if (sample == sample[0]).all():
        if statistic is np.mean and sample.ndim == 1 and point in (0.0, 1.0):
            trials = sum(len(s.units) for s in strata)  # a cluster is one trial, because its rows are not independent
            low, high = clopper_pearson(int(point) * trials, trials, level=level)
            return Interval(point, low, high, "exact")
        return Interval(point, point, point, "constant")
    thetas = _resample_statistic(sample, strata, statistic, rng, resamples)  # (B,)
    if (thetas == thetas[0]).all():
        return Interval(point, point, point, "constant")
    jackknife_values = [_jackknife(sample, stratum, statistic) for stratum in strata]
    low, high = np.quantile(thetas, _bca_shares(point, thetas, jackknife_values, level)).tolist()
    return Interval(point, low, high, "BCa")


def _bca_shares(
    point: float, thetas: NDArray[np.float64], jackknife_values: list[NDArray[np.float64]], level: float
) -> tuple[float, float]:
    """Which quantiles of the resampled statistics bound the interval (Efron and Tibshirani 1993, eq. 15.36)."""
    below = float(np.count_nonzero(thetas < point) + np.count_nonzero(thetas <= point)) / (2 * len(thetas))
    below = min(max(below, 0.5 / len(thetas)), 1 - 0.5 / len(thetas))  # finite if the point lies outside all resamples
    bias = float(ndtri(below))
    influence = [(len(t) - 1) * (t.mean() - t) for t in jackknife_values]
    skew = sum(float((u**3).sum()) / len(u) ** 3 for u in influence)
    spread = sum(float((u**2).sum()) / len(u) ** 2 for u in influence)
    acceleration = skew / (6 * spread**1.5) if spread > 0 else 0.0  # a median may not change without one row
    z = float(ndtri((1 - level) / 2))
    low, high = (_accelerated_quantile(bias, bias + side, acceleration) for side in (z, -z))
    return low, high


def _accelerated_quantile(bias: float, shifted: float, acceleration: float) -> float:
    scale = 1 - acceleration * shifted
    if scale <= 0:  # the correction is undefined this far out: the bound is the extreme resample
        return 0.0 if shifted < 0 else 1.0
    return float(ndtr(bias + shifted / scale))


def _resample_statistic(
    sample: NDArray[np.float64],
    strata: list[_Stratum],
    statistic: Statistic,
    rng: np.random.Generator,
    resamples: int,
) -> NDArray[np.float64]:
    """(B,) the statistic of each resample."""
    chunk = max(1, CHUNK_CELLS // sum(len(s.units) for s in strata))
    singles = [s.single_rows for s in strata]
    thetas: list[NDArray[np.float64]] = []
    for start in range(0, resamples, chunk):
        count = min(chunk, resamples - start)
        draws = [rng.integers(0, len(s.units), (count, len(s.units))) for s in strata]  # (b, units) each
        if all(single is not None for single in singles):
            rows = np.hstack([single[d] for single, d in zip(singles, draws, strict=True) if single is not None])
            thetas.append(_statistics(sample, rows, statistic))
        else:
            row_lists = [
                np.concatenate([s.units[u] for s, d in zip(strata, draws, strict=True) for u in d[b]])
                for b in range(count)
            ]
            thetas.append(np.array([float(statistic(sample[p])) for p in row_lists]))
    return np.concatenate(thetas)


def _statistics(sample: NDArray[np.float64], rows: NDArray[np.intp], statistic: Statistic) -> NDArray[np.float64]:
    """(b,) the statistic of each row of indices, (b, n)."""
    if statistic is np.mean and sample.ndim == 1:
        means: NDArray[np.float64] = sample[rows].mean(axis=1)
        return means
    return np.array([float(statistic(sample[r])) for r in rows])


def _jackknife(sample: NDArray[np.float64], stratum: _Stratum, statistic: Statistic) -> NDArray[np.float64]:
    """(n,) the statistic without each unit of the stratum in turn; a single unit stays, and has no influence."""
    units = stratum.units
    if len(units) == 1:
        return np.zeros(1)
    if statistic is np.mean and sample.ndim == 1:  # the weight of each stratum in the mean does not change
        sums, sizes = np.array([sample[u].sum() for u in units]), np.array([len(u) for u in units])  # (n,), (n,)
        means = (sums.sum() - sums) / (sizes.sum() - sizes)
        return (sample.sum() - sums.sum() + sizes.sum() * means) / len(sample)
    return np.array([float(statistic(np.delete(sample, u, axis=0))) for u in units])


def _rows(rows: ArrayLike) -> NDArray[np.float64]:
    sample = np.asarray(rows, dtype=np.float64)
    if sample.ndim == 0 or not len(sample):
        raise ValueError("no rows to resample: expected at least one")
    if not np.isfinite(sample).all():
        raise ValueError("a row contains NaN or infinity: its interval is undefined")
    return sample


def _groups(sample: NDArray[np.float64], names: ArrayLike, label: str) -> list[NDArray[np.intp]]:
    """The rows of each group, in the order of the groups' names."""
    array = np.asarray(names)
    if array.shape != (len(sample),):
        raise ValueError(f"{len(sample)} rows and {label} of shape {array.shape}: expected one name a row")
    _, index = np.unique(array, return_inverse=True)
    return [np.flatnonzero(index == g) for g in range(index.max() + 1)]
