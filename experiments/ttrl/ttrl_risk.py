"""Selective risk of a stream: error of the given answers and of the pseudo-labels, over coverage
(tab:risk_coverage, supp:failures_risk_coverage)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pixelis.equations.voting import class_scores, vote_weights
from pixelis.metrics.bootstrap import clustered_interval
from pixelis.metrics.selective import aurc, error_at_coverage, error_at_margin

StreamRows = list[dict[str, Any]]
COVERAGE = 0.889
"""Coverage at which errors are compared (tab:risk_coverage)."""
RESAMPLES = 2000


def selective_risk(streams: Sequence[StreamRows]) -> dict[str, Any]:
    """Risk and coverage by the margin of the vote, and of a majority vote by its share, on the same rollouts.

    Seeds answer the same items, so intervals resample whole items; the difference of the two areas has its own
    interval.
    """
    rows = [row for stream in streams for row in stream]
    items = np.array([k for stream in streams for k in range(len(stream))])
    margin, share, mass = (
        np.array([measure(row) for row in rows]) for measure in (vote_margin, majority_share, vote_mass)
    )
    wrong, majority_wrong = (np.array([1.0 - row[key] for row in rows]) for key in ("score", "majority"))
    columns = np.column_stack([margin, wrong, share, majority_wrong, mass])

    def area(statistic: Callable[[NDArray[np.float64]], float]) -> dict[str, float]:
        estimate = clustered_interval(columns, items, statistic, rng=np.random.default_rng(0), resamples=RESAMPLES)
        return {"mean": estimate.point, "low": estimate.low, "high": estimate.high}

    def vote_aurc(sample: NDArray[np.float64]) -> float:
        return aurc(sample[:, 0], sample[:, 1])

    def majority_aurc(sample: NDArray[np.float64]) -> float:
        return aurc(sample[:, 2], sample[:, 3])

    def mass_aurc(sample: NDArray[np.float64]) -> float:
        return aurc(sample[:, 4], sample[:, 1])

    def error(confidence: NDArray[np.float64], loss: NDArray[np.float64]) -> float:
        return 100.0 * error_at_coverage(confidence, loss, coverage=COVERAGE).error

    answered = error_at_margin(np.array([float(row["answered"]) for row in rows]), wrong, delta=0.5)
    return {
        "vote": {"aurc": area(vote_aurc), "error": error(margin, wrong)},
        "majority": {"aurc": area(majority_aurc), "error": error(share, majority_wrong)},
        "mass": {"aurc": area(mass_aurc), "error": error(mass, wrong)},
        "mass_difference": area(lambda sample: mass_aurc(sample) - majority_aurc(sample)),
        "aurc_difference": area(lambda sample: vote_aurc(sample) - majority_aurc(sample)),
        "coverage": 100.0 * answered.coverage, "error_given": 100.0 * answered.error,
    }  # fmt: skip


def selective_risk_difference(
    our_streams: Mapping[int, StreamRows], other_streams: Mapping[int, StreamRows]
) -> dict[str, Any]:
    """Risk of ours by the margin of its vote and by its mass, minus that of the other by the share of its majority, on
    the same queries: AURC, and the error at equal coverage, over shared seeds. `by_share` uses the share of the
    majority on both sides, so that only the policies differ. `lessons_right` is the difference in correct
    pseudo-labels. Streams are by seed; whole items are resampled."""
    seeds = sorted(our_streams.keys() & other_streams.keys())  # every variant has seed 0
    columns, items = list[list[float]](), list[int]()
    for seed in seeds:
        for k, (our_row, other_row) in enumerate(zip(our_streams[seed], other_streams[seed], strict=True)):
            voted = (vote_margin(our_row), vote_mass(our_row), 1.0 - our_row["score"])
            plain = (
                majority_share(our_row),
                1.0 - our_row["majority"],
                majority_share(other_row),
                1.0 - other_row["majority"],
            )
            columns.append([*voted, *plain, *pseudo_label_score(our_row), *pseudo_label_score(other_row)])
            items.append(k)

    def area(sample: NDArray[np.float64], sure: int, wrong: int) -> float:
        return aurc(sample[:, sure], sample[:, wrong]) - aurc(sample[:, 5], sample[:, 6])

    def error(sample: NDArray[np.float64], sure: int, wrong: int) -> float:
        errors = [
            error_at_coverage(sample[:, confidence_column], sample[:, wrong_column], coverage=COVERAGE).error
            for confidence_column, wrong_column in ((sure, wrong), (5, 6))
        ]
        return 100.0 * (errors[0] - errors[1])

    out: dict[str, Any] = {"seeds": len(seeds)}
    measures: dict[str, Callable[[NDArray[np.float64]], float]] = {
        f"{name}{suffix}": partial(function, sure=sure, wrong=wrong)
        for suffix, sure, wrong in (("", 0, 2), ("_by_mass", 1, 2), ("_by_share", 3, 4))
        for name, function in (("aurc", area), ("error", error))
    }
    if all(
        any(pseudo_label_score(row)[0] for seed in seeds for row in side[seed]) for side in (our_streams, other_streams)
    ):
        measures["lessons_right"] = lambda values: percent_correct(values[:, 7:9]) - percent_correct(values[:, 9:11])
    for name, statistic in measures.items():
        values = clustered_interval(
            np.array(columns), np.array(items), statistic, rng=np.random.default_rng(0), resamples=RESAMPLES
        )
        out[name] = {"difference": values.point, "low": values.low, "high": values.high}
    return out


def vote_margin(row: Mapping[str, Any]) -> float:
    return float(row["vote"]["margin"])


def vote_mass(row: Mapping[str, Any]) -> float:
    """Weight of the voted answer minus that of the runner-up, divided by the number of rollouts.

    An alternative to the margin, from the same ballots: it also reflects near-duplicates, rollouts without an answer,
    and weights that are small throughout, which a margin relative to the sum of weights ignores.
    """
    vote = row["vote"]
    if "mass" in vote:
        return float(vote["mass"])
    ballots = vote["ballots"]
    terms = [[ballot[key] for ballot in ballots] for key in ("entropy", "calibrated", "fidelity", "reliability")]
    scores = class_scores([ballot["answer"] for ballot in ballots], vote_weights(*terms).product)
    winner_score = scores.pop(max(vote["scores"], key=vote["scores"].get, default=""), 0.0)
    return (winner_score - max(scores.values(), default=0.0)) / len(ballots)


def majority_share(row: Mapping[str, Any]) -> float:
    """Share of the rollouts that gave the most frequent answer."""
    ballots = row["vote"]["ballots"]
    return sum(b["answer"] is not None and b["answer"] == row["vote"]["majority"] for b in ballots) / len(ballots)


def pseudo_label_accuracy(streams: Sequence[StreamRows]) -> dict[str, Any] | None:
    """Percent of the trained queries whose pseudo-label is correct, the Err@Sel of an update
    (supp:failures_risk_coverage). None if no query was trained on a label."""
    columns = np.array([pseudo_label_score(row) for rows in streams for row in rows])
    items = np.array([k for rows in streams for k in range(len(rows))])
    trained = int(columns[:, 0].sum())
    if not trained:
        return None
    estimate = clustered_interval(columns, items, percent_correct, rng=np.random.default_rng(0), resamples=RESAMPLES)
    wrong = trained - float(columns[:, 1].sum())
    return {"learnt": trained, "wrong": wrong, "mean": estimate.point, "low": estimate.low, "high": estimate.high}


def pseudo_label_score(row: Mapping[str, Any]) -> tuple[float, float]:
    """Whether a query was trained on a label, and the label's score. Entropy minimisation has no labels."""
    trained = float(row["learnt"] and row["advantage"] is not None)
    return trained, trained * row["score"]


def percent_correct(label_scores: NDArray[np.float64]) -> float:
    """(n, 2) label scores to percent; 100 without labels."""
    trained, correct = label_scores.sum(axis=0)
    return 100.0 * float(correct / trained) if trained else 100.0
