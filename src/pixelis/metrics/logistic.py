"""Prediction of success from the process (tab:supp_corr_overall): logistic regression, AUC, average precision."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from scipy.stats import rankdata

MAX_STEPS = 100


class Logistic(NamedTuple):
    """Pr(y = 1 | x) = sigmoid(intercept + x · coefficients)."""

    intercept: float
    coefficients: NDArray[np.float64]
    """(k,)"""

    def probabilities(self, features: ArrayLike) -> NDArray[np.float64]:
        """(n,) Pr(y = 1) of each row of features, (n, k)."""
        return expit(self.intercept + _features(features) @ self.coefficients)


class PredictivePower(NamedTuple):
    """How well held-out predictions of the logistic model rank right answers above wrong ones."""

    auc: float
    average_precision: float


def fit_logistic(features: ArrayLike, outcome: ArrayLike, *, C: float = 1.0) -> Logistic:
    """Minimum of ½|w|² + C Σ log-loss, the intercept left free (scikit-learn's convention), by Newton's method.

    One class only: no slope, and the log-odds of (successes + ½) / (n + 1), since the free intercept would diverge.
    Raises ValueError without rows, if lengths differ, or if an outcome is neither 0 nor 1.
    """
    x, y = _features(features), _outcome(outcome)  # (n, k), (n,)
    if len(x) != len(y) or C <= 0:
        raise ValueError(f"{len(x)} rows, {len(y)} outcomes and C = {C}: expected an outcome a row and C over 0")
    if (y == y[0]).all():
        odds = (y.sum() + 0.5) / (len(y) - y.sum() + 0.5)
        return Logistic(float(np.log(odds)), np.zeros(x.shape[1]))
    design = np.column_stack([np.ones(len(x)), x])  # (n, 1+k)
    ridge = np.diag([0.0] + [1.0] * x.shape[1])  # (1+k, 1+k)
    w = np.zeros(design.shape[1])
    for _ in range(MAX_STEPS):
        p = expit(design @ w)  # (n,)
        gradient = ridge @ w + C * design.T @ (p - y)
        hessian = ridge + C * design.T @ (design * (p * (1 - p))[:, None])
        step = np.linalg.lstsq(hessian, gradient, rcond=None)[0]
        w = _line_search(w, step, design, y, C)
        if np.abs(step).max() < 1e-12 * max(1.0, float(np.abs(w).max())):
            break
    return Logistic(float(w[0]), w[1:])


def held_out_probabilities(
    features: ArrayLike, outcome: ArrayLike, *, rng: np.random.Generator, folds: int = 5, C: float = 1.0
) -> NDArray[np.float64]:
    """(n,) each row's probability by a model fitted without it, over shuffled folds stratified by outcome.

    There are at most as many folds as rows; a single row is predicted from itself. Raises ValueError if lengths differ.
    """
    x, y = _features(features), _outcome(outcome)
    if len(x) != len(y):
        raise ValueError(f"{len(x)} rows and {len(y)} outcomes: expected an outcome a row")
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    fold = np.empty(len(y), dtype=np.intp)
    fold[order] = np.arange(len(y)) % max(2, folds)  # round-robin within each outcome
    p = np.empty(len(y))
    for f in range(max(2, folds)):
        held_out = fold == f
        if held_out.any():
            model = fit_logistic(x[~held_out], y[~held_out], C=C) if (~held_out).any() else fit_logistic(x, y, C=C)
            p[held_out] = model.probabilities(x[held_out])
    return p


def predictive_power(
    features: ArrayLike, outcome: ArrayLike, *, rng: np.random.Generator, folds: int = 5, C: float = 1.0
) -> PredictivePower:
    """AUC and average precision of held-out probabilities; 0.5 and the base rate are chance."""
    p = held_out_probabilities(features, outcome, rng=rng, folds=folds, C=C)
    return PredictivePower(auc=roc_auc(outcome, p), average_precision=average_precision(outcome, p))


def roc_auc(outcome: ArrayLike, score: ArrayLike) -> float:
    """Probability that a success scores above a failure, ties counting half, in [0, 1]. One class only: 0.5."""
    y, s = _check_scores(outcome, score)
    successes, failures = int(y.sum()), int(len(y) - y.sum())
    if not (successes and failures):
        return 0.5
    rank_sum = rankdata(s)[y == 1].sum()
    return float((rank_sum - successes * (successes + 1) / 2) / (successes * failures))


def average_precision(outcome: ArrayLike, score: ArrayLike) -> float:
    """Σ (Rₙ - Rₙ₋₁) Pₙ over the distinct scores, highest first, in [0, 1], without interpolation. No success: 0."""
    y, s = _check_scores(outcome, score)
    if not y.any():
        return 0.0
    values, index = np.unique(-s, return_inverse=True)
    hits = np.bincount(index, weights=y, minlength=len(values))  # successes at each distinct score, highest first
    count = np.bincount(index, minlength=len(values))
    return float(np.sum(hits * np.cumsum(hits) / np.cumsum(count)) / y.sum())


def _line_search(
    w: NDArray[np.float64], step: NDArray[np.float64], design: NDArray[np.float64], y: NDArray[np.float64], C: float
) -> NDArray[np.float64]:
    """One Newton step, halved until the loss does not rise, because a full step may overshoot on separable data."""

    def loss(v: NDArray[np.float64]) -> float:
        logits = design @ v
        return float(0.5 * v[1:] @ v[1:] + C * np.sum(np.logaddexp(0.0, logits) - y * logits))

    previous_loss = loss(w)
    for _ in range(30):
        if loss(w - step) <= previous_loss + 1e-12 * abs(previous_loss):
            break
        step = step / 2
    return w - step


def _features(features: ArrayLike) -> NDArray[np.float64]:
    x = np.asarray(features, dtype=np.float64)
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2 or not len(x) or not np.isfinite(x).all():
        raise ValueError(f"features have the shape {x.shape}: expected (n, k), finite, at least one row")
    return x


def _outcome(outcome: ArrayLike) -> NDArray[np.float64]:
    y = np.asarray(outcome, dtype=np.float64)
    if y.ndim != 1 or not len(y) or not np.isin(y, (0.0, 1.0)).all():
        raise ValueError("outcomes must be 0 or 1, at least one")
    return y


def _check_scores(outcome: ArrayLike, score: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    y, s = _outcome(outcome), np.asarray(score, dtype=np.float64)
    if y.shape != s.shape or np.isnan(s).any():
        raise ValueError(f"{len(y)} outcomes and scores of shape {s.shape}: expected one for each, not NaN")
    return y, s
