"""Calibration of stated confidence: reliability bins and the expected calibration error (fig:calib_supp)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Binning = Literal["width", "mass"]


class ReliabilityBin(NamedTuple):
    """One bar of a reliability diagram; an empty bin has confidence and accuracy 0 and no weight."""

    low: float
    high: float
    size: int
    confidence: float
    """Mean stated confidence."""
    accuracy: float
    """Share of right answers."""

    @property
    def gap(self) -> float:
        """Accuracy minus confidence: negative is overconfident."""
        return self.accuracy - self.confidence


def reliability_bins(
    confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15, binning: Binning = "width"
) -> list[ReliabilityBin]:
    """Bins of equal width `(low, high]` over [0, 1] (0 lies in the first), or of equal mass (sizes differ by one).

    With equal mass there are at most as many bins as answers. Raises ValueError without answers, if lengths differ, or
    if a confidence lies outside [0, 1].
    """
    p, right = _answers(confidence, correct)  # (N,), (N,)
    if bins < 1:
        raise ValueError(f"{bins} bins: expected at least one")
    if binning == "mass":
        groups = [g for g in np.array_split(np.argsort(p, kind="stable"), bins) if len(g)]
        return [_bin(p[g], right[g], float(p[g[0]]), float(p[g[-1]])) for g in groups]
    edges = np.linspace(0.0, 1.0, bins + 1)
    index = np.clip(np.searchsorted(edges, p, side="left") - 1, 0, bins - 1)  # (N,)
    return [_bin(p[index == b], right[index == b], float(edges[b]), float(edges[b + 1])) for b in range(bins)]


def expected_calibration_error(
    confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15, binning: Binning = "width"
) -> float:
    """ECE: mean over answers of the gap |accuracy - confidence| of their bin, in [0, 1]. Raises as the bins do."""
    bars = reliability_bins(confidence, correct, bins=bins, binning=binning)
    return sum(bar.size * abs(bar.gap) for bar in bars) / sum(bar.size for bar in bars)


def maximum_calibration_error(
    confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15, binning: Binning = "width"
) -> float:
    """MCE: the largest gap of a bin that holds an answer, in [0, 1]. Raises as the bins do."""
    return max(abs(bar.gap) for bar in reliability_bins(confidence, correct, bins=bins, binning=binning) if bar.size)


def _answers(confidence: ArrayLike, correct: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    p, right = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    if p.shape != right.shape or p.ndim != 1 or not p.size:
        raise ValueError(f"{p.size} confidences and {right.size} outcomes: expected as many, at least one")
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError("a confidence lies outside [0, 1]")
    return p, right


def _bin(p: NDArray[np.float64], right: NDArray[np.float64], low: float, high: float) -> ReliabilityBin:
    if not len(p):
        return ReliabilityBin(low, high, 0, 0.0, 0.0)
    return ReliabilityBin(low, high, len(p), float(p.mean()), float(right.mean()))
