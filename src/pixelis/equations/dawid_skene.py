"""Dawid and Skene's EM: the reliability of annotators without ground truth (sec:supp:voting-calib).

In the paper an annotator is a rollout. One query per annotator cannot tell a good one from a bad one, so callers pool
over a window of queries, with the chain signature as annotator, and give EM pseudo-counts; an annotator with too few
answers is rated by its `agreement` with the others (voting/reliability.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

TINY = 1e-300
"""Keeps log finite where a probability is exactly 0."""


class DawidSkene(NamedTuple):
    """The fitted model: I items, J annotators, C classes."""

    posterior: NDArray[np.float64]
    """(I, C) probability of each class for each item."""
    prior: NDArray[np.float64]
    """(C,) class prior."""
    confusion: NDArray[np.float64]
    """(J, C, C): [j, c, l] = P(annotator j says l | truth is c)."""
    log_likelihood: float
    iterations: int
    converged: bool

    @property
    def reliability(self) -> NDArray[np.float64]:
        """(J,) r_j: the mean of the confusion matrix's diagonal."""
        return np.einsum("jcc->jc", self.confusion).mean(axis=1)

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """(J,) an annotator's expected accuracy: the diagonal weighted by the class prior.

        For classes of unequal frequency, where `reliability` gives a class that never occurs half of the weight.
        """
        return np.einsum("jcc,c->j", self.confusion, self.prior)

    @property
    def labels(self) -> NDArray[np.int64]:
        """(I,) the most probable class of each item."""
        return self.posterior.argmax(axis=1)


def dawid_skene(
    labels: ArrayLike,
    *,
    n_classes: int | None = None,
    epsilon: float = 1e-2,
    tolerance: float = 1e-6,
    max_iterations: int = 50,
    pseudo: tuple[float, float] = (0.0, 0.0),
    majority: ArrayLike | None = None,
) -> DawidSkene:
    """EM for class prior and confusion matrices from an (items, annotators) matrix of class numbers
    (sec:supp:voting-calib).

    A negative entry is a missing label. The prior starts at the majority labels' frequencies, every confusion matrix
    at the Laplace-smoothed diagonal (I + eps)/(1 + C eps); the prior is smoothed alike, because a class that starts at
    0 could never come back. Stops when the log-likelihood gains less than `tolerance` relative to itself, or after 50
    iterations. A row of a confusion matrix that rests on less than eps of an item (a class that never occurs, an
    annotator without labels) keeps its start value: the ratio of two vanishing masses says nothing.

    `pseudo` are pseudo-counts of every annotator for each class: right labels, and labels of each wrong class. They
    count in every M-step, so that two or three labels cannot make a reliability of 0 or 1; (0, 0) is classical EM.
    `majority` (I,) overrides the majority label of each item, for callers that merged several annotators into one.
    An item without labels gets the prior; no items, or no annotators: uniform prior, log-likelihood 0.
    """
    label_matrix = np.asarray(labels)
    if label_matrix.ndim != 2 or not np.issubdtype(label_matrix.dtype, np.integer):
        raise ValueError(
            f"labels must be an (items, annotators) matrix of integers, got {label_matrix.dtype} {label_matrix.shape}"
        )
    C = int(label_matrix.max(initial=0)) + 1 if n_classes is None else n_classes
    if label_matrix.max(initial=-1) >= C:
        raise ValueError(
            f"label {label_matrix.max()} in a problem of {C} classes: expected 0 to {C - 1}, negative for missing"
        )
    I, J = label_matrix.shape  # noqa: E741 - the paper's letters
    onehot = (label_matrix[:, :, None] == np.arange(C)).astype(np.float64)  # (I, J, C)
    has_labels = onehot.any(axis=(1, 2))
    X = onehot[has_labels].reshape(int(has_labels.sum()), J * C)  # (I', J*C): one column for each annotator and label
    start = np.broadcast_to(((np.eye(C) + epsilon) / (1.0 + C * epsilon))[None], (J, C, C))  # [j, label, truth]
    majority_labels = _majority(onehot) if majority is None else np.eye(C)[np.asarray(majority)]  # (I, C)
    prior = (majority_labels[has_labels].sum(axis=0) + epsilon) / (len(X) + C * epsilon)
    prior /= prior.sum()
    right, wrong = pseudo
    pseudo_counts = right * np.eye(C) + wrong * (1.0 - np.eye(C))  # [label, truth]
    likelihood, previous_likelihood, confusion, enough_mass = 0.0, -np.inf, start, np.zeros((J, 1, C), dtype=bool)
    posterior, converged, iteration = np.zeros((len(X), C)), not len(X), 0
    while len(X) and not converged and iteration < max_iterations:
        iteration += 1
        posterior, likelihood = _expectation(X, prior, confusion)
        converged = abs(likelihood - previous_likelihood) <= tolerance * abs(likelihood)
        previous_likelihood = likelihood
        prior = posterior.mean(axis=0)
        counts = (X.T @ posterior).reshape(J, C, C) + pseudo_counts  # [j, label, truth]
        totals = counts.sum(axis=1, keepdims=True)
        confusion = np.where(totals > 0.0, counts / np.maximum(totals, TINY), start)
        enough_mass = totals >= epsilon
    confusion = np.where(enough_mass, confusion, start)
    full_posterior = np.tile(prior, (I, 1))
    full_posterior[has_labels] = posterior
    return DawidSkene(
        full_posterior, prior, confusion.transpose(0, 2, 1), float(likelihood), iteration, bool(converged)
    )


def agreement(labels: ArrayLike, *, n_classes: int | None = None, epsilon: float = 1e-2) -> NDArray[np.float64]:
    """(J,) share of the other annotators' labels, on the same items, that are the same; Laplace-smoothed by eps.

    (same + eps) / (others + C eps), C the number of classes: replaces r_j (sec:supp:voting-calib) when there is only
    one query. 1 for an annotator without labels or without others.
    """
    label_matrix = np.asarray(labels)
    C = int(label_matrix.max(initial=0)) + 1 if n_classes is None else n_classes
    onehot = (label_matrix[:, :, None] == np.arange(C)).astype(np.float64)  # (I, J, C)
    others = onehot.sum(axis=1, keepdims=True) - onehot  # (I, J, C)
    same = (onehot * others).sum(axis=(0, 2))
    comparable = (onehot.any(axis=2)[:, :, None] * others).sum(axis=(0, 2))
    return np.where(comparable > 0.0, (same + epsilon) / (comparable + C * epsilon), 1.0)


def _expectation(
    X: NDArray[np.float64], prior: NDArray[np.float64], confusion: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Posterior (I, C) and log-likelihood under the current parameters."""
    C = len(prior)
    joint = X @ np.log(np.maximum(confusion, TINY)).reshape(-1, C)  # (I, C)
    joint += np.log(np.maximum(prior, TINY))
    highest = joint.max(axis=1, keepdims=True)
    np.exp(joint - highest, out=joint)
    evidence = joint.sum(axis=1, keepdims=True)
    joint /= evidence
    return joint, float(highest.sum() + np.log(evidence).sum())


def _majority(onehot: NDArray[np.float64]) -> NDArray[np.float64]:
    """(I, C) majority labels; a tie is shared equally."""
    votes = onehot.sum(axis=1)  # (I, C)
    top = (votes == votes.max(axis=1, keepdims=True)).astype(np.float64)
    return top / top.sum(axis=1, keepdims=True)
