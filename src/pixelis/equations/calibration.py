"""Confidence calibration and how it enters the vote (sec:supp:voting-calib).

Each calibrator is fitted on dev-cal and is a frozen value with a `__call__`. Temperature scaling is the default; the
others are for the sensitivity table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression, minimize, minimize_scalar
from scipy.special import expit, log_softmax, logit, softmax

Floats = NDArray[np.float64]

TEMPERATURES = (0.05, 20.0)
"""Search range of the temperature; if all answers are right, or all wrong, the optimum is at a bound."""

MIN_CONFIDENCE = 1e-12
"""Confidences are kept this far from 0 and 1, so that a logit is finite and Cal_j lies in (0, 1]."""


@dataclass(frozen=True)
class Temperature:
    """p = softmax(s / T)."""

    temperature: float
    nll: float
    """Mean negative log-likelihood on the data that it was fitted on."""

    def __call__(self, logits: ArrayLike) -> Floats:
        """(n, C) logits to probabilities."""
        return np.asarray(softmax(np.asarray(logits, dtype=np.float64) / self.temperature, axis=-1))

    def confidence(self, raw: ArrayLike) -> Floats:
        """A single confidence instead of a distribution: sigmoid(logit(p) / T)."""
        return np.asarray(expit(_logit(raw) / self.temperature))


@dataclass(frozen=True)
class Platt:
    """p = sigmoid(a s + b); for C classes one pair each, normalised over the classes (one-vs-rest)."""

    slope: Floats
    intercept: Floats

    def __call__(self, scores: ArrayLike) -> Floats:
        """(n,) scores to (n,) probabilities, or (n, C) to (n, C)."""
        p = np.asarray(expit(np.asarray(scores, dtype=np.float64) * self.slope + self.intercept))
        return p if self.slope.ndim == 0 else p / np.maximum(p.sum(axis=-1, keepdims=True), MIN_CONFIDENCE)

    def confidence(self, raw: ArrayLike) -> Floats:
        """A single confidence; requires a fit on logits of single confidences."""
        return self(_logit(raw))


@dataclass(frozen=True)
class Affine:
    """p = softmax(W s + b): vector scaling where W is diagonal, matrix scaling where it is full."""

    weight: Floats
    """(C, C)."""
    bias: Floats
    """(C,)."""

    def __call__(self, logits: ArrayLike) -> Floats:
        return np.asarray(softmax(np.asarray(logits, dtype=np.float64) @ self.weight.T + self.bias, axis=-1))

    def confidence(self, raw: ArrayLike) -> Floats:
        """A single confidence as two classes, wrong and right; requires a fit on such pairs."""
        return np.asarray(self(two_class_logits(raw))[..., 1])


@dataclass(frozen=True)
class Isotonic:
    """A non-decreasing function: linear between the knots and constant outside."""

    knots: Floats
    values: Floats

    def __call__(self, raw: ArrayLike) -> Floats:
        return np.interp(np.asarray(raw, dtype=np.float64), self.knots, self.values)

    def confidence(self, raw: ArrayLike) -> Floats:
        return self(raw)


class Calibrator(Protocol):
    """Maps a raw confidence to a calibrated one."""

    def confidence(self, raw: ArrayLike) -> Floats:
        """(n,) p_raw to (n,) p~."""


def raw_confidence(answer_probability: float, tool_confidences: ArrayLike = ()) -> float:
    """p_raw: probability of the answer tokens x geometric mean of the decisive tools' confidences.

    The paper does not define p_raw (sec:supp:voting-calib). A policy copies a tool's output with probability near 1, so
    the tokens alone would not reveal a misread. Without decisive tools, the answer's probability alone. NaN, or a value
    outside [0, 1], raises ValueError.
    """
    tools = np.asarray(tool_confidences, dtype=np.float64).ravel()
    p = np.append(tools, answer_probability)
    if np.any(~(p >= 0.0)) or np.any(p > 1.0):
        raise ValueError(f"confidences lie in [0, 1], got {p.tolist()}")
    return float(answer_probability * (np.exp(np.log(np.maximum(tools, MIN_CONFIDENCE)).mean()) if tools.size else 1.0))


def vote_calibration(calibrated: ArrayLike, *, alpha: float = 1.0) -> Floats:
    """Cal_j = p~_j ** alpha in (0, 1], alpha in [0.75, 1.25] for the sensitivity analysis (sec:supp:voting-calib).

    NaN stays NaN, which gives its rollout weight 0.
    """
    return np.clip(np.asarray(calibrated, dtype=np.float64), MIN_CONFIDENCE, 1.0) ** alpha


def fit_temperature(logits: ArrayLike, labels: ArrayLike) -> Temperature:
    """T > 0 that minimises -sum log softmax(s_i / T)[y_i] on dev-cal (sec:supp:voting-calib).

    Searched in [0.05, 20] on a log scale; the loss is convex in 1/T. Without data, or with logits that are equal for
    all classes, T = 1. Raises ValueError if lengths differ, a label is not a class, or a logit is NaN or infinite.
    """
    s, y = _check_logits(logits, labels)
    if not len(s) or np.allclose(s, s[:, :1]):
        return Temperature(1.0, float(-log_softmax(s, axis=1)[np.arange(len(y)), y].mean()) if len(s) else 0.0)

    def nll(log_temperature: float) -> float:
        return float(-log_softmax(s / np.exp(log_temperature), axis=1)[np.arange(len(y)), y].mean())

    result = minimize_scalar(nll, bounds=tuple(np.log(TEMPERATURES)), method="bounded", options={"xatol": 1e-10})
    return Temperature(float(np.exp(result.x)), float(result.fun))


def fit_confidence_temperature(raw: ArrayLike, correct: ArrayLike) -> Temperature:
    """T for a single confidence: temperature scaling of the two-class logits (0, logit p) (sec:supp:voting-calib).

    Apply it with `.confidence`. Edge cases as in `fit_temperature`.
    """
    return fit_temperature(two_class_logits(raw), np.asarray(correct, dtype=np.int64))


def two_class_logits(raw: ArrayLike) -> Floats:
    """(n, 2) logits of wrong and right for single confidences: (0, logit p)."""
    p = np.atleast_1d(np.asarray(raw, dtype=np.float64))
    return np.stack([np.zeros_like(p), _logit(p)], axis=-1)


def fit_platt(scores: ArrayLike, targets: ArrayLike) -> Platt:
    """Platt's sigmoid, binary for (n,) scores, one-vs-rest for (n, C) scores and class numbers (sec:supp:voting-calib).

    Platt's own targets (n+ + 1)/(n+ + 2) and 1/(n- + 2) keep it finite on separable data. No data: the sigmoid itself.
    Raises ValueError if lengths differ or a value is NaN or infinite.
    """
    s = _check_finite(scores)
    y = np.asarray(targets, dtype=np.int64)
    if len(s) != len(y):
        raise ValueError(f"{len(s)} rows of scores, but {len(y)} targets: expected one for each row")
    if s.ndim == 1:
        slope, intercept = _fit_sigmoid(s, y == 1)
        return Platt(np.array(slope), np.array(intercept))
    fits = np.array([_fit_sigmoid(s[:, c], y == c) for c in range(s.shape[1])])  # (C, 2)
    return Platt(fits[:, 0], fits[:, 1])


def fit_affine(
    logits: ArrayLike, labels: ArrayLike, *, kind: Literal["vector", "matrix"] = "vector", ridge: float = 1e-3
) -> Affine:
    """Vector or matrix scaling by NLL on dev-cal (sec:supp:voting-calib).

    `ridge` pulls W to the identity and b to 0, so that separable data stay finite. No data: the identity.
    """
    s, y = _check_logits(logits, labels)
    n, C = s.shape
    onehot = np.eye(C)[y]  # (n, C)
    diagonal = np.eye(C, dtype=bool)

    def unpack(x: Floats) -> tuple[Floats, Floats]:
        return (np.diag(x[:C]), x[C:]) if kind == "vector" else (x[: C * C].reshape(C, C), x[C * C :])

    def loss(x: Floats) -> tuple[float, Floats]:
        W, b = unpack(x)
        z = s @ W.T + b
        residual = (softmax(z, axis=1) - onehot) / n  # (n, C)
        off = W - np.eye(C)
        value = -float(log_softmax(z, axis=1)[np.arange(n), y].mean()) + ridge * float((off**2).sum() + (b**2).sum())
        slope = residual.T @ s + 2.0 * ridge * off
        flat = slope[diagonal] if kind == "vector" else slope.ravel()
        return value, np.concatenate([flat, residual.sum(axis=0) + 2.0 * ridge * b])

    start = np.concatenate([np.ones(C) if kind == "vector" else np.eye(C).ravel(), np.zeros(C)])
    solution = _minimise(loss, start) if n else start
    return Affine(*unpack(solution))


def fit_isotonic(raw: ArrayLike, correct: ArrayLike) -> Isotonic:
    """Isotonic regression by pool-adjacent-violators; equal confidences are pooled first (sec:supp:voting-calib).

    No data: the identity. Raises ValueError if lengths differ or a value is NaN or infinite.
    """
    p, y = _check_finite(raw).ravel(), _check_finite(correct).ravel()
    if p.shape != y.shape:
        raise ValueError(f"{p.size} confidences, but {y.size} outcomes: expected one for each")
    if not p.size:
        return Isotonic(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    knots, inverse, counts = np.unique(p, return_inverse=True, return_counts=True)
    means = np.bincount(inverse, weights=y) / counts
    return Isotonic(knots, np.asarray(isotonic_regression(means, weights=counts).x))


def _fit_sigmoid(s: Floats, positive: NDArray[np.bool_]) -> tuple[float, float]:
    n = len(s)
    if not n:
        return 1.0, 0.0
    num_positive = int(positive.sum())
    t = np.where(positive, (num_positive + 1.0) / (num_positive + 2.0), 1.0 / (n - num_positive + 2.0))
    scale = float(np.abs(s).max()) or 1.0  # as in scikit-learn: large scores would make the Hessian ill-conditioned

    def loss(x: Floats) -> tuple[float, Floats]:
        z = x[0] * s / scale + x[1]
        residual = expit(z) - t
        return float(np.sum(np.logaddexp(0.0, z) - t * z)), np.array([residual @ (s / scale), residual.sum()])

    slope, intercept = _minimise(loss, np.array([0.0, 0.0]))
    return float(slope / scale), float(intercept)


def _minimise(loss: Callable[[Floats], tuple[float, Floats]], start: Floats) -> Floats:
    options = {"maxiter": 1000, "ftol": 1e-14, "gtol": 1e-9}
    return np.asarray(minimize(loss, start, jac=True, method="L-BFGS-B", options=options).x)


def _check_logits(logits: ArrayLike, labels: ArrayLike) -> tuple[Floats, NDArray[np.int64]]:
    s, y = _check_finite(logits), np.asarray(labels, dtype=np.int64).ravel()
    if s.ndim != 2 or len(s) != len(y):
        raise ValueError(f"logits of shape {s.shape} and {len(y)} labels: expected one row of logits for each label")
    if len(y) and not 0 <= y.min() <= y.max() < s.shape[1]:
        raise ValueError(f"labels run from {y.min()} to {y.max()}, but there are {s.shape[1]} classes")
    return s, y


def _check_finite(scores: ArrayLike) -> Floats:
    s = np.asarray(scores, dtype=np.float64)
    if not np.isfinite(s).all():
        raise ValueError(f"{int((~np.isfinite(s)).sum())} scores to calibrate on are NaN or infinite: expected numbers")
    return s


def _logit(p: ArrayLike) -> Floats:
    return np.asarray(logit(np.clip(np.asarray(p, dtype=np.float64), MIN_CONFIDENCE, 1.0 - MIN_CONFIDENCE)))
