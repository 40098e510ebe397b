"""Selective answering: risk-coverage curves, the area under them, and Err@Sel (tab:risk_coverage).

The most confident queries are answered first. Where confidences tie, the value is the mean over all orders of the tied
queries, so that no curve depends on the order of the queries.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class RiskCoverage(NamedTuple):
    """Risk of answering the k most confident queries, for k = 1 .. N."""

    coverage: NDArray[np.float64]
    """(N,) k / N."""
    risk: NDArray[np.float64]
    """(N,) share of wrong answers among them: Err@Sel at that coverage."""
    threshold: NDArray[np.float64]
    """(N,) the confidence of the k-th: abstaining below it gives at least this coverage."""


class SelectivePoint(NamedTuple):
    """The outcome of an abstention rule."""

    coverage: float
    """Share of the queries that were answered."""
    error: float
    """Err@Sel: share of wrong answers among them; 0 if none was answered."""


def risk_coverage(confidence: ArrayLike, wrong: ArrayLike) -> RiskCoverage:
    """The risk-coverage curve. `wrong` is 0/1 or a loss. Raises ValueError without queries or if lengths differ."""
    p, loss = _queries(confidence, wrong)  # (N,), (N,)
    order = np.argsort(-p, kind="stable")
    p, loss = p[order], loss[order]
    _, block, size = np.unique(-p, return_inverse=True, return_counts=True)
    expected = (np.bincount(block, weights=loss) / size)[block]  # (N,) mean loss of each query's tied block
    k = np.arange(1, len(p) + 1)
    return RiskCoverage(coverage=k / len(p), risk=np.cumsum(expected) / k, threshold=p)


def aurc(confidence: ArrayLike, wrong: ArrayLike) -> float:
    """Area under the risk-coverage curve: the mean risk over coverages 1/N .. 1, in [0, 1] for 0/1 losses."""
    return float(np.mean(risk_coverage(confidence, wrong).risk))


def excess_aurc(confidence: ArrayLike, wrong: ArrayLike) -> float:
    """`aurc` minus that of the best possible order of the same losses: 0 if confidence ranks perfectly."""
    p, loss = _queries(confidence, wrong)
    return aurc(p, loss) - aurc(-loss, loss)


def error_at_coverage(confidence: ArrayLike, wrong: ArrayLike, *, coverage: float) -> SelectivePoint:
    """Err@Sel if at least this share of the queries is answered; coverage 0 has error 0."""
    curve = risk_coverage(confidence, wrong)
    if not 0 <= coverage <= 1:
        raise ValueError(f"coverage {coverage} lies outside [0, 1]")
    k = int(np.ceil(coverage * len(curve.risk) - 1e-9))  # 0.3 * 10 is 3 queries, not 4
    return SelectivePoint(float(curve.coverage[k - 1]), float(curve.risk[k - 1])) if k else SelectivePoint(0.0, 0.0)


def error_at_margin(margin: ArrayLike, wrong: ArrayLike, *, delta: float) -> SelectivePoint:
    """Err@Sel if queries with a margin below `delta` abstain. None answered: coverage 0, error 0.

    A margin of delta itself is answered despite rounding, as in `voting.consensus`. A NaN margin abstains.
    Raises ValueError without queries or if lengths differ.
    """
    m, loss = np.asarray(margin, dtype=np.float64), np.asarray(wrong, dtype=np.float64)
    _check(m, loss)
    answered = m >= delta - 1e-12  # (N,)
    return SelectivePoint(float(np.mean(answered)), float(loss[answered].mean()) if answered.any() else 0.0)


def _queries(confidence: ArrayLike, wrong: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    p, loss = np.asarray(confidence, dtype=np.float64), np.asarray(wrong, dtype=np.float64)
    _check(p, loss)
    if np.isnan(p).any():
        raise ValueError("a confidence is NaN: it has no place in the order")
    return p, loss


def _check(p: NDArray[np.float64], loss: NDArray[np.float64]) -> None:
    if p.shape != loss.shape or p.ndim != 1 or not p.size:
        raise ValueError(f"{p.size} confidences and {loss.size} outcomes: expected as many, at least one")
