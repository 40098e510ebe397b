"""Statistical inference of the paper: exact proportions, paired permutation tests, false discovery, correlations
(tab:supp_corr_overall, tab:supp_corr_by_bench).

scipy computes; this module adds defined values where scipy has none, and readable errors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

PERMUTATIONS = 10_000


class Proportion(NamedTuple):
    """Bounds of a share, in [0, 1]."""

    low: float
    high: float


class PermutationTest(NamedTuple):
    """A paired comparison."""

    difference: float
    """Mean of `a` minus mean of `b`."""
    p_value: float


class FalseDiscovery(NamedTuple):
    """Benjamini-Hochberg over one family of tests."""

    adjusted: NDArray[np.float64]
    """(m,) adjusted p-values."""
    rejected: NDArray[np.bool_]
    """(m,) which hypotheses are rejected at the level."""


class MeanOfRuns(NamedTuple):
    """The mean of a few runs, as an estimate of the mean of all possible runs."""

    low: float
    high: float
    p_value: float
    """Two-sided p-value of a mean of 0."""


class Correlation(NamedTuple):
    """A correlation in [-1, 1] with its two-sided p-value; 0 and 1 if one side does not vary."""

    value: float
    p_value: float


def clopper_pearson(successes: int, trials: int, *, level: float = 0.95) -> Proportion:
    """Exact two-sided interval of a binomial share (supp:index_whitelist_dedup, residual estimation).

    0 of 50,216 gives [0, 0.0073 %]. No trials: [0, 1].
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} of {trials}: expected 0 <= successes <= trials")
    if trials == 0:
        return Proportion(0.0, 1.0)
    bounds = stats.binomtest(successes, trials).proportion_ci(confidence_level=level, method="exact")
    return Proportion(float(bounds.low), float(bounds.high))


def paired_permutation_test(
    a: ArrayLike, b: ArrayLike, *, rng: np.random.Generator, permutations: int = PERMUTATIONS
) -> PermutationTest:
    """Two-sided test of equal means by swapping within pairs, as `scipy.stats.permutation_test` does it.

    Exact if there are at most `permutations` of the 2^n swaps, else Monte Carlo with the observed one included. If all
    pairs are equal, p = 1. Raises ValueError without pairs or if lengths differ.
    """
    x, y = _pairs(a, b)  # (n,), (n,)
    difference = float(np.mean(x - y))
    if (x == y).all():
        return PermutationTest(difference, 1.0)
    differences = x - y  # (n,) swapping a pair changes the sign of its difference
    result = stats.permutation_test(
        (differences, -differences),
        lambda first, second, axis: np.mean(first, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=permutations,
        batch=max(1, 2_000_000 // len(x)),
        rng=rng,
    )
    return PermutationTest(difference, float(result.pvalue))


def mean_of_runs(differences: ArrayLike, *, level: float = 0.95) -> MeanOfRuns | None:
    """Student's t over runs, such as seeds, which covers the variation between runs that an interval over items
    omits. None for fewer than two runs, or if all are equal up to rounding."""
    x = np.asarray(differences, dtype=np.float64).ravel()
    if len(x) < 2 or np.ptp(x) <= 1e-9 * max(1.0, float(np.abs(x).max())):
        return None
    result = stats.ttest_1samp(x, 0.0)
    bounds = result.confidence_interval(level)
    return MeanOfRuns(float(bounds.low), float(bounds.high), float(result.pvalue))


def benjamini_hochberg(p_values: ArrayLike, *, level: float = 0.05) -> FalseDiscovery:
    """Adjusted p-values of one family of tests, and which are rejected at `level`. No tests: empty arrays.

    Raises ValueError on NaN or a value outside [0, 1].
    """
    p = np.asarray(p_values, dtype=np.float64).ravel()  # (m,)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError("a p-value lies outside [0, 1]")
    adjusted = stats.false_discovery_control(p, method="bh") if len(p) else p
    return FalseDiscovery(adjusted=adjusted, rejected=adjusted <= level)


def relative_gain(score: float, baseline: float) -> float:
    """(score - baseline) / baseline, as in the paper's headline (sec:supp-clarify-table1).

    Raises ValueError for a baseline of 0. NaN stays NaN.
    """
    if baseline == 0:
        raise ValueError(f"no gain of {score} relative to a baseline of 0: report the difference")
    return (score - baseline) / baseline


def spearman(x: ArrayLike, y: ArrayLike) -> Correlation:
    """Spearman's rank correlation. A side that does not vary, or fewer than three pairs: 0 with p = 1."""
    x, y = _pairs(x, y)
    if _is_degenerate(x, y):
        return Correlation(0.0, 1.0)
    result = stats.spearmanr(x, y)
    return Correlation(float(result.statistic), float(result.pvalue))


def point_biserial(outcome: ArrayLike, score: ArrayLike) -> Correlation:
    """Pearson's r of a 0/1 outcome and a score. A side that does not vary, or fewer than three pairs: 0 with p = 1."""
    y, x = _pairs(outcome, score)
    if not np.isin(y, (0.0, 1.0)).all():
        raise ValueError("an outcome is neither 0 nor 1")
    if _is_degenerate(x, y):
        return Correlation(0.0, 1.0)
    result = stats.pointbiserialr(y, x)
    return Correlation(float(result.statistic), float(result.pvalue))


def partial_correlation(x: ArrayLike, y: ArrayLike, controls: ArrayLike, *, ranks: bool = False) -> Correlation:
    """Partial correlation given the controls (chain length, token KL); of ranks with `ranks`.

    `controls` is (n,) or (n, k); the p-value is that of a t with n - 2 - k degrees of freedom. 0 with p = 1 if x or y
    is constant or fully explained, or if no degree of freedom is left.
    """
    a, b = _pairs(x, y)  # (n,), (n,)
    z = np.asarray(controls, dtype=np.float64)
    z = z[:, None] if z.ndim == 1 else z  # (n, k)
    if z.ndim != 2 or len(z) != len(a) or not np.isfinite(z).all():
        raise ValueError(f"{len(a)} pairs and controls of shape {z.shape}: expected one finite row of controls a pair")
    if ranks:
        a, b, z = stats.rankdata(a), stats.rankdata(b), stats.rankdata(z, axis=0)
    freedom = len(a) - 2 - z.shape[1]
    rest_x, rest_y = _residuals(a, z), _residuals(b, z)
    if freedom < 1 or not (rest_x.any() and rest_y.any()):
        return Correlation(0.0, 1.0)
    r = float(np.clip(rest_x @ rest_y / np.sqrt((rest_x @ rest_x) * (rest_y @ rest_y)), -1.0, 1.0))
    t = r * np.sqrt(freedom / max(1 - r * r, np.finfo(float).tiny))
    return Correlation(r, float(2 * stats.t.sf(abs(t), freedom)))


def _pairs(x: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1 or not a.size:
        raise ValueError(f"{a.size} and {b.size} values: expected as many on both sides, at least one")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("a value is NaN or infinite")
    return a, b


def _is_degenerate(x: NDArray[np.float64], y: NDArray[np.float64]) -> bool:
    return len(x) < 3 or bool((x == x[0]).all() or (y == y[0]).all())


def _residuals(values: NDArray[np.float64], controls: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,) residuals of a linear fit on an intercept and the controls; exactly 0 if they are rounding noise."""
    design = np.column_stack([np.ones(len(values)), controls])  # (n, 1+k)
    rest = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
    noise = 1e-10 * float(np.abs(values).max())
    return np.zeros_like(rest) if np.abs(rest).max() <= noise else rest
